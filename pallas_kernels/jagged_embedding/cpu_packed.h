// Bags of tables whose rows are whole numbers of 8, 4 or 2 bits.
//
// A row holds its codes, the first in the lowest bits, and two numbers, in front
// of them or behind: an element is code * scale + bias.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_PACKED_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_PACKED_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include "cpu_lookup.h"
#include "cpu_threads.h"
#include "cpu_vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

typedef int32_t Whole __attribute__((vector_size(kRegister)));

// As many bytes as a register has floats, each of them one.
ALWAYS_INLINE Whole WidenBytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Whole)_mm512_cvtepu8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (Whole)_mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef uint8_t Some __attribute__((vector_size(kRegister / 4)));
  Some some;
  std::memcpy(&some, p, sizeof some);
  return __builtin_convertvector(some, Whole);
#endif
}

// Codes of less than a byte, as many: each lane shifts a word of them to its
// own place (the first byte is the lowest: x86, arm64).
template <int kBits>
ALWAYS_INLINE Whole ShiftCodes(const uint8_t* p) {
  constexpr int kEach = kRegister / 4;
  typedef uint32_t Words __attribute__((vector_size(kRegister)));
#if defined(__AVX512F__)
  if constexpr (kBits == 4) {
    // A byte becomes two; a word would not hold all.
    __m128i x = _mm_cvtepu8_epi16(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    x = _mm_and_si128(_mm_or_si128(x, _mm_slli_epi16(x, 4)),
                      _mm_set1_epi8(15));
    return (Whole)_mm512_cvtepu8_epi32(x);
  }
#endif
  uint32_t word = 0;
  std::memcpy(&word, p, std::min(kEach * kBits / 8, 4));
  Words shift;
#pragma GCC unroll 16
  for (int l = 0; l < kEach; ++l) shift[l] = l * kBits % 32;
  return (Whole)(((word - Words{}) >> shift) & ((1u << kBits) - 1));
}

// Sixteen codes as floats.
template <int kBits>
ALWAYS_INLINE Lanes LoadCodes(const uint8_t* p) {
  return EachPart<Lanes>([&](int i) __attribute__((always_inline)) {
    const uint8_t* at = p + i * (kRegister / 4) * kBits / 8;
    Whole codes;
    if constexpr (kBits == 8)
      codes = WidenBytes(at);
    else
      codes = ShiftCodes<kBits>(at);
    return __builtin_convertvector(codes, Lanes::Part);
  });
}

struct PackedTable {
  const uint8_t* data;
  int64_t rows, bytes;  // of a row
  int64_t columns, codes, numbers;  // where these begin in it
  bool half;  // whether the two numbers are float16
  bool has(int64_t id) const { return id >= 0 && id < rows; }
  const uint8_t* row(int64_t id) const { return data + id * bytes; }

  float number(int64_t id, int which) const {
    const uint8_t* p = row(id) + numbers + which * (half ? 2 : 4);
    if (!half) {
      float x;
      std::memcpy(&x, p, sizeof x);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return ToFloat(bits);
  }

  // Of a float16. Both ways keep subnormal numbers, whatever a thread does to
  // those of float32; not every GCC knows _Float16.
  static float ToFloat(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    const uint32_t sign = (bits & 0x8000u) << 16, size = (bits & 0x7fffu) << 13;
    uint32_t out = size + (112u << 23);
    float x;
    if ((bits & 0x7c00u) == 0x7c00u) out = size + (224u << 23);
    if ((bits & 0x7c00u) == 0) {
      x = float(bits & 0x3ffu) * 0x1p-24f;
      std::memcpy(&out, &x, sizeof out);
    }
    out |= sign;
    std::memcpy(&x, &out, sizeof x);
    return x;
#endif
  }
};

// Sums `n` columns, at most kBlock vectors, of the rows of one bag.
template <int kBits, int kBlock>
void SumPackedBag(const PackedTable& table, const int32_t* ids, int64_t begin,
                  int64_t end, int64_t known, const float* weights,
                  int64_t column, int64_t n, float* out) {
  constexpr int64_t kBytes = kLanes * kBits / 8;  // of a vector's codes
  Lanes sum[kBlock] = {};
  for (int64_t k = begin; k < end; ++k) {
    if (column == 0 && k + kAhead < known && table.has(ids[k + kAhead]))
      Prefetch<false>(table.row(ids[k + kAhead]), table.bytes);
    if (!table.has(ids[k])) {
      for (auto& s : sum) s += Splat(kNan);
      continue;
    }
    const Lanes scale = Splat(table.number(ids[k], 0));
    const Lanes bias = Splat(table.number(ids[k], 1));
    const uint8_t* codes =
        table.row(ids[k]) + table.codes + column / kLanes * kBytes;
    const Lanes weight = Splat(weights ? weights[k] : 1.0f);
    for (int i = 0; i < kBlock; ++i) {
      const uint8_t* some = codes + i * kBytes;
      uint8_t part[kBytes] = {};
      if (kBlock == 1 && n < kLanes) {  // what follows is not this row's
        std::memcpy(part, codes, (n * kBits + 7) / 8);
        some = part;
      }
      const Lanes x = LoadCodes<kBits>(some) * scale + bias;
      sum[i] += weights ? weight * x : x;
    }
  }
  for (int i = 0; i < kBlock; ++i)
    Store(sum[i], out + i * kLanes, n - i * kLanes);
}

template <int kBits>
void PackedBags(ffi::ThreadPool& pool, int64_t threads,
                const PackedTable& table, const Ids& ids, const Ids& lengths,
                const float* weights, float* out) {
  const auto offsets = Offsets(lengths, ids.element_count());
  const int64_t bags = lengths.element_count(), dim = table.columns;
  const int32_t* id = ids.typed_data();
  constexpr int kBlock = 4;
  Parallel(pool, threads, bags, 128, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t c = 0;
      for (; c + kBlock * kLanes <= dim; c += kBlock * kLanes)
        SumPackedBag<kBits, kBlock>(table, id, offsets[b], offsets[b + 1],
                                    offsets[bags], weights, c, kBlock * kLanes,
                                    out + b * dim + c);
      for (; c < dim; c += kLanes)
        SumPackedBag<kBits, 1>(table, id, offsets[b], offsets[b + 1],
                               offsets[bags], weights, c,
                               std::min(kLanes, dim - c), out + b * dim + c);
    }
  });
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_PACKED_H_
