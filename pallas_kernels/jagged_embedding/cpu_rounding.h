// Rows of floats to 16 bits, to the nearest or by chance, as rounding.py.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_ROUNDING_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_ROUNDING_H_

#include <cstdint>
#include <cstring>

#include "cpu_vectors.h"

namespace {

// What the chance of stochastic rounding depends on; null for the ids, zeros.
struct Chance {
  bool on;
  uint32_t seed;
  const uint32_t *rows, *first_columns;
};

// The finalizer of MurmurHash3, as `hashing.mix` in Python.
template <typename U>
inline U Mix(U x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Sixteen numbers as bfloat16; `by_chance` says which take the random bits.
inline Bits Narrow(const Bits& bits, const Bits& by_chance,
                   const Bits& random, const Bf16*) {
  const Bits nearest = ((bits >> 16) & 1u) + 0x7fffu;
  const Bits up = bits + Where(by_chance, random >> 16, nearest);
  const Bits nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return Where(nan, bits | 0x400000u, up) >> 16;
}

// As float16. A float is a whole number of steps from its neighbour below,
// and a share of one step: 2 ** -10 of its power of two, at least 2 ** -24.
inline Bits Narrow(const Bits& bits, const Bits& by_chance,
                   const Bits& random, const Fp16*) {
  const Bits size = bits & 0x7fffffffu, least = SplatOf<Bits>(113u << 23);
  Bits power = bits & 0x7f800000u;
  power = Where(power > least, power, least);
  const Lanes places = As<Lanes>(Where(size < 0x47800000u, size, Bits{})) *
                       As<Lanes>(SplatOf<Bits>(264u << 23) - power);
  const Bits whole = Convert<Bits>(places);
  const Lanes share = places - Convert<Lanes>(whole);
  const Lanes chance = Convert<Lanes>(random >> 8);
  const Bits nearest =
      (share > 0.5f) | ((share == 0.5f) & ((whole & 1u) == 1u));
  const Bits up = Where(by_chance, chance < share * 0x1p24f, nearest);
  // A leading one in `whole` adds to the exponent, and so does its overflow.
  Bits out = (((power >> 23) - 113u) << 10) + whole + (up & 1u);
  out = Where(size >= 0x47800000u, SplatOf<Bits>(0x7c00u), out);
  out = Where(size > 0x7f800000u, SplatOf<Bits>(0x7e00u), out);
  return out | ((bits >> 16) & 0x8000u);
}

constexpr uint32_t Largest(const Bf16*) { return 0x7f7f0000u; }
constexpr uint32_t Largest(const Fp16*) { return 0x477fe000u; }

constexpr uint32_t kCount[] = {0, 1, 2,  3,  4,  5,  6,  7,
                               8, 9, 10, 11, 12, 13, 14, 15};

template <typename T>
void StoreRow(const float* x, T* row, int64_t dim, const Chance& chance,
              int64_t place, uint32_t id) {
  const uint32_t number = chance.rows ? chance.rows[place] : id;
  const uint32_t first = chance.first_columns ? chance.first_columns[place] : 0;
  const uint32_t hash = Mix(chance.seed ^ Mix(number));
  for (int64_t c = 0; c < dim; c += kLanes) {
    const Bits bits = As<Bits>(Load(x + c));
    Bits random = {}, by_chance = {};
    if (chance.on) {
      const Bits column = LoadParts<Bits>(kCount) + uint32_t(first + c);
      random = Mix(column * 0x9e3779b9u + hash);
      by_chance = (bits & 0x7fffffffu) <= Largest(row);
    }
    const Bits out = Narrow(bits, by_chance, random, row);
    if (dim - c >= kLanes) {
      StoreHalves(out, row + c);
    } else {
      T part[kLanes];
      StoreHalves(out, part);
      std::memcpy(row + c, part, (dim - c) * sizeof(T));
    }
  }
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_ROUNDING_H_
