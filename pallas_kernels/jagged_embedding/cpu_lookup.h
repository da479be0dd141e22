// Tables, bags, and what is read of them.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_LOOKUP_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_LOOKUP_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu_threads.h"
#include "cpu_vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using Ids = ffi::Buffer<ffi::S32>;
using Floats = ffi::Buffer<ffi::F32>;

// First id of each bag and the end of the last; never beyond the ids there are.
std::vector<int64_t> Offsets(const Ids& lengths, int64_t ids) {
  const int64_t bags = lengths.element_count();
  std::vector<int64_t> out(bags + 1);
  for (int64_t b = 0; b < bags; ++b)
    out[b + 1] = std::clamp<int64_t>(out[b] + lengths.typed_data()[b], out[b],
                                     std::max(ids, out[b]));
  return out;
}

constexpr int64_t kAhead = 16;  // rows that are on their way from memory

template <bool kWrite, typename T>
ALWAYS_INLINE void Prefetch(const T* row, int64_t dim) {
  const char* p = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < dim * int64_t(sizeof(T)); i += 64)
    __builtin_prefetch(p + i, kWrite, 3);
  __builtin_prefetch(p + dim * sizeof(T) - 1, kWrite, 3);
}

template <typename T>
struct Table {
  T* data;
  int64_t rows, dim;
  bool has(int64_t id) const { return id >= 0 && id < rows; }
  T* row(int64_t id) const { return data + id * dim; }
};

// Sums `n` columns, at most kBlock vectors, of the rows of one bag.
template <int kBlock, typename T>
void SumBag(const Table<T>& table, const int32_t* ids, int64_t begin,
            int64_t end, int64_t known, const float* weights, int64_t column,
            int64_t n, float* out) {
  Lanes sum[kBlock] = {};
  for (int64_t k = begin; k < end; ++k) {
    if (column == 0 && k + kAhead < known && table.has(ids[k + kAhead]))
      Prefetch<false>(table.row(ids[k + kAhead]), table.dim);
    if (!table.has(ids[k])) {
      for (auto& s : sum) s += Splat(kNan);
      continue;
    }
    const T* row = table.row(ids[k]) + column;
    const Lanes weight = Splat(weights ? weights[k] : 1.0f);
    for (int i = 0; i < kBlock; ++i) {
      const Lanes x = kBlock == 1 ? Load(row, n) : Load(row + i * kLanes);
      sum[i] += weights ? weight * x : x;
    }
  }
  for (int i = 0; i < kBlock; ++i)
    Store(sum[i], out + i * kLanes, n - i * kLanes);
}

template <typename T>
void Bags(ffi::ThreadPool& pool, int64_t threads, const Table<T>& table,
          const Ids& ids, const Ids& lengths, const float* weights,
          float* out) {
  const auto offsets = Offsets(lengths, ids.element_count());
  const int64_t bags = lengths.element_count(), dim = table.dim;
  const int32_t* id = ids.typed_data();
  constexpr int kBlock = 4;
  Parallel(pool, threads, bags, 128, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t c = 0;
      for (; c + kBlock * kLanes <= dim; c += kBlock * kLanes)
        SumBag<kBlock>(table, id, offsets[b], offsets[b + 1], offsets[bags],
                       weights, c, kBlock * kLanes, out + b * dim + c);
      for (; c < dim; c += kLanes)
        SumBag<1>(table, id, offsets[b], offsets[b + 1], offsets[bags], weights,
                  c, std::min(kLanes, dim - c), out + b * dim + c);
    }
  });
}

template <typename T>
void Gather(ffi::ThreadPool& pool, int64_t threads, const Table<T>& table,
            const Ids& ids, int64_t count, bool spare, T fill, T* out) {
  const int32_t* id = ids.typed_data();
  const int64_t dim = table.dim;
  Parallel(pool, threads, ids.element_count(), 4096,
           [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      if (k + kAhead < count && table.has(id[k + kAhead]))
        Prefetch<false>(table.row(id[k + kAhead]), dim);
      if (k < count && table.has(id[k]))
        std::memcpy(out + k * dim, table.row(id[k]), dim * sizeof(T));
      else if (k >= count || (spare && id[k] == table.rows))
        std::memset(out + k * dim, 0, dim * sizeof(T));
      else
        std::fill(out + k * dim, out + (k + 1) * dim, fill);
    }
  });
}

// d loss / d weight of each id: its bag's gradient times its row.
template <typename T>
void Dots(ffi::ThreadPool& pool, int64_t threads, const Table<T>& table,
          const Ids& ids, const Ids& lengths, const float* grads, float* out) {
  const auto offsets = Offsets(lengths, ids.element_count());
  const int64_t bags = lengths.element_count(), dim = table.dim;
  const int32_t* id = ids.typed_data();
  Parallel(pool, threads, bags, 128, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t k = offsets[b]; k < offsets[b + 1]; ++k) {
        if (k + kAhead < offsets[bags] && table.has(id[k + kAhead]))
          Prefetch<false>(table.row(id[k + kAhead]), dim);
        Lanes sum = Splat(table.has(id[k]) ? 0.0f : kNan);
        if (table.has(id[k]))
          for (int64_t c = 0; c < dim; c += kLanes)
            sum += Load(table.row(id[k]) + c, dim - c) *
                   Load(grads + b * dim + c, dim - c);
        out[k] = Sum(sum);
      }
    }
  });
  std::fill(out + offsets[bags], out + ids.element_count(), 0.0f);
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_LOOKUP_H_
