// Sixteen floats at a time, loaded from a table's dtype.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_VECTORS_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_VECTORS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// Always inline: GCC takes a function that only prefetches for one that does
// nothing, and drops the call.
#define ALWAYS_INLINE inline __attribute__((always_inline))

struct Bf16 {
  uint16_t bits;
};

struct Fp16 {
  uint16_t bits;
};

template <typename To, typename From>
inline To As(From x) {  // the same bits
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

inline Bits Where(Bits mask, Bits a, Bits b) {
  return (mask & a) | (~mask & b);
}

inline Lanes Splat(float x) { return x - Lanes{}; }

inline Lanes Load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline Bits LoadHalves(const void* p) {
  Halves x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Bits);
}

inline Lanes Load(const Bf16* p) { return As<Lanes>(LoadHalves(p) << 16); }

// Without arithmetic on subnormal floats, which XLA's threads take for zeros.
inline Lanes Load(const Fp16* p) {
  const Bits x = LoadHalves(p), size = (x & 0x7fffu) << 13;
  const Bits exponent = size & 0x0f800000u;
  Bits out = size + (112u << 23);
  out = Where((Bits)(exponent == 0x0f800000u), size + (224u << 23), out);
  const Lanes subnormal =
      __builtin_convertvector(x & 0x3ffu, Lanes) * 0x1p-24f;
  out = Where((Bits)(exponent == 0u), As<Bits>(subnormal), out);
  return As<Lanes>(out | (x & 0x8000u) << 16);
}

inline void Store(Lanes x, float* p) { std::memcpy(p, &x, sizeof x); }

template <typename T>
inline Lanes Load(const T* p, int64_t n) {  // the first n, then zeros
  if (n >= kLanes) return Load(p);
  T part[kLanes] = {};
  std::memcpy(part, p, n * sizeof(T));
  return Load(part);
}

inline void Store(Lanes x, float* p, int64_t n) {
  if (n >= kLanes) return Store(x, p);
  std::memcpy(p, &x, n * sizeof(float));
}

inline float Sum(Lanes x) {
  float halves[kLanes];
  std::memcpy(halves, &x, sizeof x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) halves[i] += halves[i + width];
  return halves[0];
}

inline Lanes Sqrt(Lanes x) {
  for (int i = 0; i < kLanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_VECTORS_H_
