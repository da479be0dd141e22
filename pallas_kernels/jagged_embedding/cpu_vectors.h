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

// Bytes of a register. A vector that is larger than these lies on the stack,
// and GCC copies it there by 16 bytes and reads it by 32, for which processors
// wait until the copy has left for the cache.
#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif

// Sixteen numbers, in as many registers as they need.
template <typename T>
struct Vector {
  using Number = T;
  typedef T Part __attribute__((vector_size(kRegister)));
  static constexpr int kParts = kLanes * sizeof(T) / kRegister;
  Part part[kParts];
};
using Lanes = Vector<float>;
using Bits = Vector<uint32_t>;
typedef uint16_t Halves __attribute__((vector_size(kRegister / 2)));

// Always inline: GCC takes a function that only prefetches for one that does
// nothing, and drops the call.
#define ALWAYS_INLINE inline __attribute__((always_inline))

struct Bf16 {
  uint16_t bits;
};

struct Fp16 {
  uint16_t bits;
};

// A vector of f(i), which makes part i.
template <typename To, typename F>
ALWAYS_INLINE To EachPart(F f) {
  To out;
#pragma GCC unroll 4
  for (int i = 0; i < To::kParts; ++i) out.part[i] = f(i);
  return out;
}

#define VECTOR_OPERATOR(op, To)                                               \
  template <typename T>                                                       \
  ALWAYS_INLINE To operator op(const Vector<T>& a, const Vector<T>& b) {      \
    return EachPart<To>([&](int i) __attribute__((always_inline)) {           \
      return (typename To::Part)(a.part[i] op b.part[i]);                     \
    });                                                                       \
  }                                                                           \
  template <typename T>                                                       \
  ALWAYS_INLINE To operator op(const Vector<T>& a,                            \
                               typename Vector<T>::Number b) {                \
    return EachPart<To>([&](int i) __attribute__((always_inline)) {           \
      return (typename To::Part)(a.part[i] op b);                             \
    });                                                                       \
  }
VECTOR_OPERATOR(+, Vector<T>)
VECTOR_OPERATOR(-, Vector<T>)
VECTOR_OPERATOR(*, Vector<T>)
VECTOR_OPERATOR(/, Vector<T>)
VECTOR_OPERATOR(&, Vector<T>)
VECTOR_OPERATOR(|, Vector<T>)
VECTOR_OPERATOR(^, Vector<T>)
VECTOR_OPERATOR(<<, Vector<T>)
VECTOR_OPERATOR(>>, Vector<T>)
// All bits of a lane are ones where it is true.
VECTOR_OPERATOR(<, Bits)
VECTOR_OPERATOR(<=, Bits)
VECTOR_OPERATOR(>, Bits)
VECTOR_OPERATOR(>=, Bits)
VECTOR_OPERATOR(==, Bits)
#undef VECTOR_OPERATOR

template <typename T>
ALWAYS_INLINE Vector<T>& operator+=(Vector<T>& a, const Vector<T>& b) {
  return a = a + b;
}

template <typename To, typename From>
ALWAYS_INLINE To As(const From& x) {  // the same bits
  return EachPart<To>([&](int i) __attribute__((always_inline)) {
    return (typename To::Part)x.part[i];
  });
}

template <typename To, typename From>
ALWAYS_INLINE To Convert(const From& x) {  // the same numbers
  return EachPart<To>([&](int i) __attribute__((always_inline)) {
    return __builtin_convertvector(x.part[i], typename To::Part);
  });
}

ALWAYS_INLINE Bits Where(const Bits& mask, const Bits& a, const Bits& b) {
  return (mask & a) | ((mask ^ ~0u) & b);
}

template <typename To>
ALWAYS_INLINE To SplatOf(typename To::Number x) {
  return EachPart<To>([&](int) __attribute__((always_inline)) {
    return x - typename To::Part{};
  });
}

ALWAYS_INLINE Lanes Splat(float x) { return SplatOf<Lanes>(x); }

template <typename To>
ALWAYS_INLINE To LoadParts(const typename To::Number* p) {
  return EachPart<To>([&](int i) __attribute__((always_inline)) {
    typename To::Part x;
    std::memcpy(&x, p + i * (kLanes / To::kParts), sizeof x);
    return x;
  });
}

ALWAYS_INLINE Lanes Load(const float* p) { return LoadParts<Lanes>(p); }

ALWAYS_INLINE Bits LoadHalves(const void* p) {
  return EachPart<Bits>([&](int i) __attribute__((always_inline)) {
    Halves x;
    std::memcpy(&x, static_cast<const char*>(p) + i * sizeof x, sizeof x);
    return __builtin_convertvector(x, Bits::Part);
  });
}

// The lower half of each number.
ALWAYS_INLINE void StoreHalves(const Bits& x, void* p) {
#pragma GCC unroll 4
  for (int i = 0; i < Bits::kParts; ++i) {
    const Halves half = __builtin_convertvector(x.part[i], Halves);
    std::memcpy(static_cast<char*>(p) + i * sizeof half, &half, sizeof half);
  }
}

ALWAYS_INLINE Lanes Load(const Bf16* p) {
  return As<Lanes>(LoadHalves(p) << 16);
}

// Without arithmetic on subnormal floats, which XLA's threads take for zeros.
inline Lanes Load(const Fp16* p) {
  const Bits x = LoadHalves(p), size = (x & 0x7fffu) << 13;
  const Bits exponent = size & 0x0f800000u;
  Bits out = size + (112u << 23);
  out = Where(exponent == 0x0f800000u, size + (224u << 23), out);
  const Lanes subnormal = Convert<Lanes>(x & 0x3ffu) * 0x1p-24f;
  out = Where(exponent == 0u, As<Bits>(subnormal), out);
  return As<Lanes>(out | (x & 0x8000u) << 16);
}

ALWAYS_INLINE void Store(const Lanes& x, float* p) {
#pragma GCC unroll 4
  for (int i = 0; i < Lanes::kParts; ++i)
    std::memcpy(p + i * (kLanes / Lanes::kParts), &x.part[i],
                sizeof x.part[i]);
}

template <typename T>
inline Lanes Load(const T* p, int64_t n) {  // the first n, then zeros
  if (n >= kLanes) return Load(p);
  T part[kLanes] = {};
  std::memcpy(part, p, n * sizeof(T));
  return Load(part);
}

inline void Store(const Lanes& x, float* p, int64_t n) {
  if (n >= kLanes) return Store(x, p);
  float part[kLanes];
  Store(x, part);
  std::memcpy(p, part, n * sizeof(float));
}

inline float Sum(const Lanes& x) {
  float halves[kLanes];
  Store(x, halves);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) halves[i] += halves[i + width];
  return halves[0];
}

inline Lanes Sqrt(Lanes x) {
#pragma GCC unroll 4
  for (auto& part : x.part)
    for (int i = 0; i < kLanes / Lanes::kParts; ++i)
      part[i] = std::sqrt(part[i]);
  return x;
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_VECTORS_H_
