// How a row and its slots move: SGD, AdaGrad row-wise and full, Adam.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_OPTIMIZERS_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_OPTIMIZERS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu_lookup.h"
#include "cpu_threads.h"
#include "cpu_vectors.h"

namespace {

struct Rule {
  float rate, eps;
  double beta1, beta2;
  float correct1, correct2;  // of Adam: 1 / (1 - beta ** count)
};

template <typename T>
struct Rows {
  Table<T> table;
  float* slots[2];
  Rule rule;
  Rounding rounding;
};

template <typename T, typename F>
inline void EachColumn(const Rows<T>& rows, int64_t id, const float* grad,
                       F step) {
  T* row = rows.table.row(id);
  const int64_t dim = rows.table.dim;
  uint32_t hash = 0;
  if (rows.rounding.stochastic) hash = Mix(rows.rounding.seed ^ Mix(uint32_t(id)));
  for (int64_t c = 0; c < dim; c += kLanes)
    StoreRow(Load(row + c, dim - c) - step(c, Load(grad + c, dim - c)), row, c,
             dim - c, rows.rounding, hash);
}

struct Sgd {
  static constexpr int kSlots = 0, kRowSlots = 0;
  template <typename T>
  static void Step(const Rows<T>& rows, int64_t id, const float* grad) {
    const Lanes rate = Splat(rows.rule.rate);
    EachColumn(rows, id, grad, [&](int64_t, Lanes g) { return rate * g; });
  }
};

struct RowAdagrad {
  static constexpr int kSlots = 0, kRowSlots = 1;
  template <typename T>
  static void Step(const Rows<T>& rows, int64_t id, const float* grad) {
    const int64_t dim = rows.table.dim;
    Lanes squares = {};
    for (int64_t c = 0; c < dim; c += kLanes) {
      const Lanes g = Load(grad + c, dim - c);
      squares += g * g;
    }
    const float sum = rows.slots[0][id] += Sum(squares) / dim;
    const Lanes rate =
        Splat(rows.rule.rate / (std::sqrt(sum) + rows.rule.eps));
    EachColumn(rows, id, grad, [&](int64_t, Lanes g) { return rate * g; });
  }
};

struct Adagrad {
  static constexpr int kSlots = 1, kRowSlots = 0;
  template <typename T>
  static void Step(const Rows<T>& rows, int64_t id, const float* grad) {
    const int64_t dim = rows.table.dim;
    float* sums = rows.slots[0] + id * dim;
    const Lanes rate = Splat(rows.rule.rate), eps = Splat(rows.rule.eps);
    EachColumn(rows, id, grad, [&](int64_t c, Lanes g) {
      const Lanes sum = Load(sums + c, dim - c) + g * g;
      Store(sum, sums + c, dim - c);
      return rate * g / (Sqrt(sum) + eps);
    });
  }
};

struct Adam {
  static constexpr int kSlots = 2, kRowSlots = 0;
  template <typename T>
  static void Step(const Rows<T>& rows, int64_t id, const float* grad) {
    const Rule& r = rows.rule;
    const int64_t dim = rows.table.dim;
    float* means = rows.slots[0] + id * dim;
    float* variances = rows.slots[1] + id * dim;
    EachColumn(rows, id, grad, [&](int64_t c, Lanes g) {
      const Lanes mean = Splat(r.beta1) * Load(means + c, dim - c) +
                         Splat(1 - r.beta1) * g;
      const Lanes variance = Splat(r.beta2) * Load(variances + c, dim - c) +
                             Splat(1 - r.beta2) * g * g;
      Store(mean, means + c, dim - c);
      Store(variance, variances + c, dim - c);
      return Splat(r.rate * r.correct1) * mean /
             (Sqrt(variance * Splat(r.correct2)) + Splat(r.eps));
    });
  }
};

template <typename Optimizer, typename T, typename Source>
void UpdateRows(ffi::ThreadPool& pool, int64_t threads, const Rows<T>& rows,
                const Source& source) {
  const Table<T>& table = rows.table;
  Parallel(pool, threads, source.size(), 2048, [&](int64_t begin, int64_t end) {
    std::vector<float> memory(table.dim + kLanes);
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    auto* buffer = reinterpret_cast<float*>((address + 63) / 64 * 64);
    auto prefetch = [&](int64_t g) __attribute__((always_inline)) {
      const int64_t id = source.id(g);
      if (id < 0 || id >= table.rows) return;
      Prefetch<true>(table.row(id), table.dim);
      for (int s = 0; s < Optimizer::kSlots; ++s)
        Prefetch<true>(rows.slots[s] + id * table.dim, table.dim);
      if (Optimizer::kRowSlots) __builtin_prefetch(rows.slots[0] + id, 1, 3);
      source.Prefetch(g);
    };
    for (int64_t g = begin; g < std::min(begin + kAhead, end); ++g) prefetch(g);
    for (int64_t g = begin; g < end; ++g) {
      if (g + kAhead < end) prefetch(g + kAhead);
      const int64_t id = source.id(g);
      if (id < 0 || id >= table.rows) continue;
      Optimizer::Step(rows, id, source.Gradient(g, buffer));
    }
  });
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_OPTIMIZERS_H_
