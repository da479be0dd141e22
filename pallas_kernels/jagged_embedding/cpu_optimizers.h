// How a row and its slots move. The formulas are those of rules.py.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_OPTIMIZERS_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_OPTIMIZERS_H_

#include <cmath>
#include <cstdint>
#include <string_view>

#include "cpu_vectors.h"

namespace {

// Options of an update. Decays and the norm are 0 where there is none.
struct Rule {
  double eps, beta1, beta2, momentum, trust, l2, decoupled, max_norm;
  bool row_count;
};
constexpr size_t kConstants = 8;  // numbers of a rule

// What the count of the updates makes of the means: 1 / (1 - beta ** count).
struct Corrections {
  float first, second;
};

Corrections CorrectionsOf(const Rule& rule, double count) {
  return {float(-1 / std::expm1(count * std::log(rule.beta1))),
          float(-1 / std::expm1(count * std::log(rule.beta2)))};
}

// What rows of one group move by; without groups, all rows.
struct Settings {
  Rule rule;
  float rate;
  Corrections correct;
};

// One row on its way: `w` is moved in place. The gradient and `spare`, a row of
// memory, do not overlap it.
struct Row {
  float* w;
  const float* grad;
  float* slots[3];
  int64_t dim;
  float rate;
  Corrections correct;
  float* spare;
};

// Calls f(column, numbers left from there) for each vector of a row.
template <typename F>
ALWAYS_INLINE void EachVector(int64_t dim, F f) {
  for (int64_t c = 0; c < dim; c += kLanes) f(c, dim - c);
}

ALWAYS_INLINE Lanes Gradient(const Rule& rule, const Row& row, int64_t c,
                             int64_t n) {
  Lanes g = Load(row.grad + c, n);
  if (rule.l2 != 0) g += Splat(rule.l2) * Load(row.w + c, n);
  return g;
}

// Takes step(column, left, gradient) off the row, and decoupled decay.
template <typename F>
ALWAYS_INLINE void Move(const Rule& rule, const Row& row, F step) {
  const Lanes decay = Splat(row.rate * float(rule.decoupled));
  EachVector(row.dim, [&](int64_t c, int64_t n) {
    const Lanes w = Load(row.w + c, n);
    Lanes off = step(c, n, Gradient(rule, row, c, n));
    if (rule.decoupled != 0) off += decay * w;
    Store(w - off, row.w + c, n);
  });
}

inline float SumOfSquares(const float* x, int64_t dim) {
  Lanes sum = {};
  EachVector(dim, [&](int64_t c, int64_t n) {
    const Lanes v = Load(x + c, n);
    sum += v * v;
  });
  return Sum(sum);
}

inline float MeanSquareGradient(const Rule& rule, const Row& row) {
  Lanes sum = {};
  EachVector(row.dim, [&](int64_t c, int64_t n) {
    const Lanes g = Gradient(rule, row, c, n);
    sum += g * g;
  });
  return Sum(sum) / row.dim;
}

inline float Ratio(float a, float b) { return a > 0 && b > 0 ? a / b : 1; }

void Sgd(const Rule& rule, const Row& row) {
  const Lanes rate = Splat(row.rate);
  Move(rule, row, [&](int64_t, int64_t, Lanes g) { return rate * g; });
}

void Momentum(const Rule& rule, const Row& row) {
  const Lanes rate = Splat(row.rate), keep = Splat(rule.momentum);
  Move(rule, row, [&](int64_t c, int64_t n, Lanes g) {
    const Lanes m = keep * Load(row.slots[0] + c, n) + g;
    Store(m, row.slots[0] + c, n);
    return rate * m;
  });
}

void Lars(const Rule& rule, const Row& row) {
  const float size = std::sqrt(SumOfSquares(row.w, row.dim));
  const float grad = std::sqrt(SumOfSquares(row.grad, row.dim));
  const float ratio =
      Ratio(float(rule.trust) * size, grad + float(rule.l2) * size);
  const Lanes rate = Splat(row.rate * ratio), keep = Splat(rule.momentum);
  Move(rule, row, [&](int64_t c, int64_t n, Lanes g) {
    const Lanes m = keep * Load(row.slots[0] + c, n) + rate * g;
    Store(m, row.slots[0] + c, n);
    return m;
  });
}

void RowAdagrad(const Rule& rule, const Row& row) {
  const float sum = *row.slots[0] += MeanSquareGradient(rule, row);
  const Lanes rate = Splat(row.rate / (std::sqrt(sum) + float(rule.eps)));
  Move(rule, row, [&](int64_t, int64_t, Lanes g) { return rate * g; });
}

void Adagrad(const Rule& rule, const Row& row) {
  const Lanes rate = Splat(row.rate), eps = Splat(rule.eps);
  Move(rule, row, [&](int64_t c, int64_t n, Lanes g) {
    const Lanes sum = Load(row.slots[0] + c, n) + g * g;
    Store(sum, row.slots[0] + c, n);
    return rate * g / (Sqrt(sum) + eps);
  });
}

// Calls use(rule, row, direction): Adam's step before the learning rate.
template <bool kRowWise, typename F>
ALWAYS_INLINE void Moments(const Rule& rule, const Row& row, F use) {
  Corrections correct = row.correct;
  if (rule.row_count) correct = CorrectionsOf(rule, *row.slots[2] += 1);
  const Lanes keep1 = Splat(rule.beta1), take1 = Splat(1 - rule.beta1),
              keep2 = Splat(rule.beta2), take2 = Splat(1 - rule.beta2),
              first = Splat(correct.first), eps = Splat(rule.eps);
  Lanes scale;
  if (kRowWise) {
    float& v = *row.slots[1];
    v = float(rule.beta2) * v +
        float(1 - rule.beta2) * MeanSquareGradient(rule, row);
    scale = Splat(std::sqrt(correct.second * v)) + eps;
  }
  use([&](int64_t c, int64_t n, Lanes g) __attribute__((always_inline)) {
    const Lanes m = keep1 * Load(row.slots[0] + c, n) + take1 * g;
    Store(m, row.slots[0] + c, n);
    if (!kRowWise) {
      const Lanes v = keep2 * Load(row.slots[1] + c, n) + take2 * g * g;
      Store(v, row.slots[1] + c, n);
      return first * m / (Sqrt(v * Splat(correct.second)) + eps);
    }
    return first * m / scale;
  });
}

template <bool kRowWise>
void Adam(const Rule& rule, const Row& row) {
  const Lanes rate = Splat(row.rate);
  Moments<kRowWise>(rule, row, [&](auto direction) {
    Move(rule, row, [&](int64_t c, int64_t n, Lanes g) {
      return rate * direction(c, n, g);
    });
  });
}

template <bool kRowWise>
void Lamb(const Rule& rule, const Row& row) {
  const Lanes decay = Splat(rule.decoupled);
  Moments<kRowWise>(rule, row, [&](auto direction) {
    EachVector(row.dim, [&](int64_t c, int64_t n) {
      Lanes u = direction(c, n, Gradient(rule, row, c, n));
      if (rule.decoupled != 0) u += decay * Load(row.w + c, n);
      Store(u, row.spare + c, n);
    });
  });
  const float ratio = Ratio(std::sqrt(SumOfSquares(row.w, row.dim)),
                            std::sqrt(SumOfSquares(row.spare, row.dim)));
  const Lanes rate = Splat(row.rate * ratio);
  EachVector(row.dim, [&](int64_t c, int64_t n) {
    Store(Load(row.w + c, n) - rate * Load(row.spare + c, n), row.w + c, n);
  });
}

// Scales a row that is longer than the norm.
void Shrink(const Rule& rule, const Row& row) {
  const float limit = rule.max_norm;
  const float norm = std::sqrt(SumOfSquares(row.w, row.dim));
  if (!(norm > limit)) return;
  const Lanes scale = Splat(limit / norm);
  EachVector(row.dim, [&](int64_t c, int64_t n) {
    Store(Load(row.w + c, n) * scale, row.w + c, n);
  });
}

using Optimizer = void (*)(const Rule&, const Row&);

Optimizer OptimizerOf(std::string_view name) {
  static constexpr struct {
    std::string_view name;
    Optimizer step;
  } kAll[] = {
      {"sgd", Sgd},
      {"momentum", Momentum},
      {"lars", Lars},
      {"row_adagrad", RowAdagrad},
      {"adagrad", Adagrad},
      {"row_adam", Adam<true>},
      {"adam", Adam<false>},
      {"row_lamb", Lamb<true>},
      {"lamb", Lamb<false>},
  };
  for (const auto& one : kAll)
    if (one.name == name) return one.step;
  return nullptr;
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_OPTIMIZERS_H_
