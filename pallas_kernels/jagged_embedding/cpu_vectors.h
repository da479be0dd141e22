// Sixteen floats at a time, loaded from and rounded to a table's dtype.

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

struct Bf16 {
  uint16_t bits;
};

inline Lanes Splat(float x) { return x - Lanes{}; }

inline Lanes Load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline Lanes Load(const Bf16* p) {
  Halves x;
  std::memcpy(&x, p, sizeof x);
  Bits wide = __builtin_convertvector(x, Bits) << 16;
  Lanes out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
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


// The finalizer of MurmurHash3, as `rounding.mix` in Python.
template <typename U>
inline U Mix(U x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

struct Rounding {
  bool stochastic;
  uint32_t seed;
};

// Stores a row's columns from `column`; to float32 there is nothing to round.
inline void StoreRow(Lanes x, float* row, int64_t column, int64_t n, Rounding,
                     uint32_t) {
  Store(x, row + column, n);
}

inline void StoreRow(Lanes x, Bf16* row, int64_t column, int64_t n,
                     Rounding rounding, uint32_t row_hash) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  Bits noise;
  if (rounding.stochastic) {
    for (int i = 0; i < kLanes; ++i) noise[i] = uint32_t(column + i);
    noise = Mix(noise * 0x9e3779b9u + row_hash) >> 16;
  } else {
    noise = ((bits >> 16) & 1u) + 0x7fffu;
  }
  Bits nan = (Bits)((bits & 0x7fffffffu) > 0x7f800000u);
  bits = (nan & (bits | 0x400000u)) | (~nan & (bits + noise));
  Halves out = __builtin_convertvector(bits >> 16, Halves);
  if (n >= kLanes)
    std::memcpy(row + column, &out, sizeof out);
  else
    std::memcpy(row + column, &out, n * sizeof(Bf16));
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_VECTORS_H_
