// Products of queries with rows of a table, and their gradients.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_SCORES_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_SCORES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu_lookup.h"
#include "cpu_threads.h"
#include "cpu_vectors.h"

namespace {

using Part = Lanes::Part;
constexpr int kParts = Lanes::kParts;
constexpr int kPart = kLanes / kParts;  // numbers of a register
using EachLane = std::make_integer_sequence<int, kPart>;

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int Places __attribute__((vector_size(kRegister)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// Blocks of `kWidth` lanes in turns of `a` and of `b`, to each of which the
// next block is added.
template <int kWidth, int... kLane>
ALWAYS_INLINE Part AddBlocks(const Part& a, const Part& b,
                             std::integer_sequence<int, kLane...>) {
  constexpr auto of_b = [](int lane) { return (lane / kWidth) % 2 == 1; };
  return SHUFFLE(a, b,
                 (of_b(kLane) ? kPart + kLane - kWidth : kLane)...) +
         SHUFFLE(a, b, (of_b(kLane) ? kPart + kLane : kLane + kWidth)...);
}
#undef SHUFFLE

// Lane i is the sum of the lanes of x[i], in the order in which `Sum` adds:
// upper halves to lower ones. For all of x it takes a third of its time.
template <int kWidth = kPart / 2>
ALWAYS_INLINE Part SumEach(Part* x) {
  if constexpr (kWidth == 0) {
    return x[0];
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kWidth; ++i)
      x[i] = AddBlocks<kWidth>(x[i], x[i + kWidth], EachLane{});
    return SumEach<kWidth / 2>(x);
  }
}

// Adds upper registers to lower ones until one is left.
ALWAYS_INLINE Part SumParts(Lanes x) {
#pragma GCC unroll 2
  for (int width = kParts / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) x.part[i] += x.part[i + width];
  return x.part[0];
}

// Where vectors begin that together read columns 0 .. dim - 1. The last one
// overlaps the one before it, rather than read behind the row.
class Columns {
 public:
  explicit Columns(int64_t dim) : dim_(dim) {
    for (int64_t c = 0; c < dim; c += kLanes)
      begins_.push_back(std::max<int64_t>(0, std::min(c, dim - kLanes)));
  }
  int64_t dim() const { return dim_; }
  int64_t size() const { return begins_.size(); }
  int64_t begin(int64_t i) const { return begins_[i]; }
  int64_t last() const { return begins_.back(); }
  // Whether a row is shorter than a vector.
  bool narrow() const { return dim_ < kLanes; }

  // A row as vectors, each number in one of them alone: zero where it is in the
  // vector before, and behind the row.
  void Split(const float* row, Lanes* out) const {
    for (int64_t i = 0; i < size(); ++i) {
      float numbers[kLanes] = {};
      const int64_t shared = i * kLanes - begins_[i];
      const int64_t count = std::min<int64_t>(kLanes, dim_ - begins_[i]);
      std::copy(row + begins_[i] + shared, row + begins_[i] + count,
                numbers + shared);
      out[i] = Load(numbers);
    }
  }

 private:
  int64_t dim_;
  std::vector<int64_t> begins_;
};

// The rows of some ids. Rows that are shorter than a vector get zeros behind,
// in a copy: of the table, or of a row for each id where those are fewer.
class WideRows {
 public:
  WideRows(const Table<float>& table, const Columns& columns,
           const int32_t* ids, int64_t count)
      : table_(table), ids_(ids) {
    if (!columns.narrow()) return;
    const bool whole = count >= table.rows;
    const int64_t size = whole ? table.rows : count;
    rows_.resize(size * kLanes);
    if (!whole) numbers_.resize(size);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t row = whole ? i : ids[i];
      const bool known = table.has(row);
      if (known)
        std::copy(table.row(row), table.row(row) + table.dim,
                  &rows_[i * kLanes]);
      if (!whole) numbers_[i] = known ? i : -1;
    }
    table_ = {rows_.data(), size, kLanes};
    if (!whole) ids_ = numbers_.data();
  }
  const Table<float>& table() const { return table_; }
  const int32_t* ids() const { return ids_; }

 private:
  Table<float> table_;
  const int32_t* ids_;
  std::vector<float> rows_;
  std::vector<int32_t> numbers_;
};

// A query's products with kPart rows. Few of them at a time, so that their sums
// stay in registers.
ALWAYS_INLINE Part ScoreSome(const Lanes* query, const float* const* rows,
                             const Columns& columns) {
  constexpr int kRows = kParts == 1 ? kPart : kPart / 2;
  Part sums[kPart];
#pragma GCC unroll 2
  for (int first = 0; first < kPart; first += kRows) {
    Lanes sum[kRows] = {};
    for (int64_t c = 0; c < columns.size(); ++c) {
      const Lanes q = query[c];
      const int64_t at = columns.begin(c);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sum[i] += q * Load(rows[first + i] + at);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) sums[first + i] = SumParts(sum[i]);
  }
  return SumEach(sums);
}

// The queries' products with the rows of their ids, `[count, each]`.
void Scores(ffi::ThreadPool& pool, int64_t threads,
            const Table<float>& given_table, const float* queries,
            const int32_t* given_ids, int64_t count, int64_t each,
            float* out) {
  const Columns columns(given_table.dim);
  const WideRows wide(given_table, columns, given_ids, count * each);
  const Table<float>& table = wide.table();
  const int32_t* ids = wide.ids();
  // Rows that fit the cache are there before they are asked for.
  const bool ahead = table.rows * table.dim > (1 << 18);
  const std::vector<float> zeros(table.dim);
  Parallel(pool, threads, count, 16, [&](int64_t begin, int64_t end) {
    std::vector<Lanes> query(columns.size());
    for (int64_t t = begin; t < end; ++t) {
      columns.Split(queries + t * columns.dim(), query.data());
      const int32_t* id = ids + t * each;
      for (int64_t r = 0; r < each; r += kPart) {
        const int64_t n = std::min<int64_t>(kPart, each - r);
        const float* rows[kPart];
        for (int64_t i = 0; i < kPart; ++i) {
          const bool known = i < n && table.has(id[r + i]);
          rows[i] = known ? table.row(id[r + i]) : zeros.data();
          const int64_t next = r + kPart + i;
          if (ahead && next < each && table.has(id[next]))
            Prefetch<false>(table.row(id[next]), table.dim);
        }
        const Part found = ScoreSome(query.data(), rows, columns);
        for (int64_t i = 0; i < n; ++i)
          out[t * each + r + i] = table.has(id[r + i]) ? found[i] : kNan;
      }
    }
  });
}

// Sums of `kCount` vectors of columns of the rows, each times its factor.
template <int kCount>
ALWAYS_INLINE void SumColumns(const Table<float>& table, const int32_t* ids,
                              const float* factors, int64_t each,
                              const Columns& columns, int64_t first,
                              float* out) {
  Lanes sum[kCount] = {};
  int64_t at[kCount];
  for (int i = 0; i < kCount; ++i) at[i] = columns.begin(first + i);
  for (int64_t r = 0; r < each; ++r) {
    // What is masked counts for nothing, whatever its row holds.
    if (factors[r] == 0) continue;
    if (!table.has(ids[r])) {
      for (auto& s : sum) s += Splat(kNan);
      continue;
    }
    const float* row = table.row(ids[r]);
    const Lanes factor = Splat(factors[r]);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) sum[i] += factor * Load(row + at[i]);
  }
  for (int i = 0; i < kCount; ++i) Store(sum[i], out + at[i]);
}

// The gradient of the queries: sums of rows.
void QueryGradients(ffi::ThreadPool& pool, int64_t threads,
                    const Table<float>& given_table,
                    const int32_t* given_ids, const float* grads,
                    int64_t count, int64_t each, float* out) {
  const Columns columns(given_table.dim);
  const WideRows wide(given_table, columns, given_ids, count * each);
  const Table<float>& table = wide.table();
  const int32_t* ids = wide.ids();
  Parallel(pool, threads, count, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(table.dim);
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* id = ids + t * each;
      const float* factors = grads + t * each;
      int64_t c = 0;
      for (; c + 4 <= columns.size(); c += 4)
        SumColumns<4>(table, id, factors, each, columns, c, sum.data());
      for (; c < columns.size(); ++c)
        SumColumns<1>(table, id, factors, each, columns, c, sum.data());
      std::copy_n(sum.data(), columns.dim(), out + t * columns.dim());
    }
  });
}

// Adds a multiple of a query to a row of as many numbers.
ALWAYS_INLINE void AddTo(float* row, float factor, const float* query,
                         const Columns& columns) {
  if (columns.narrow()) {
    for (int64_t c = 0; c < columns.dim(); ++c) row[c] += factor * query[c];
    return;
  }
  const Lanes factors = Splat(factor);
  // The last vector is read before the one that it overlaps is written: both
  // have the same sums there.
  const int64_t last = columns.last();
  const Lanes end_of_row = Load(row + last);
  for (int64_t c = 0; c < last; c += kLanes)
    Store(Load(row + c) + factors * Load(query + c), row + c);
  Store(end_of_row + factors * Load(query + last), row + last);
}

// The gradient of the table: each row is added up by the thread that owns it,
// in the order of the queries, so that the sums do not depend on threads.
void RowGradients(ffi::ThreadPool& pool, int64_t threads,
                  const float* queries, const int32_t* ids, const float* grads,
                  int64_t count, int64_t each, const Table<float>& out) {
  constexpr int64_t kBlock = 64;  // rows that lie together have one owner
  constexpr int64_t kMostOwners = 16;  // each reads all ids, which is not free
  const int64_t blocks = (out.rows + kBlock - 1) / kBlock;
  if (threads <= 0) threads = pool.num_threads();
  const int64_t owners = std::max<int64_t>(
      1, std::min({threads, blocks, kMostOwners}));
  const Columns columns(out.dim);
  // A division for each id would cost more than its sum.
  std::vector<int32_t> owner(blocks);
  for (int64_t b = 0; b < blocks; ++b) owner[b] = b % owners;
  Parallel(pool, threads, owners, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> own(each);
    for (int64_t me = begin; me < end; ++me) {
      for (int64_t b = me; b < blocks; b += owners)
        std::fill(out.row(b * kBlock),
                  out.row(std::min((b + 1) * kBlock, out.rows)), 0.0f);
      for (int64_t t = 0; t < count; ++t) {
        const int32_t* id = ids + t * each;
        const float* factors = grads + t * each;
        // Without a branch, which no processor could foretell.
        int64_t found = 0;
        for (int64_t r = 0; r < each; ++r) {
          own[found] = r;
          const bool known = out.has(id[r]);
          const int64_t block = known ? id[r] / kBlock : 0;
          found += known & (factors[r] != 0) & (owner[block] == me);
        }
        const float* query = queries + t * out.dim;
        for (int64_t i = 0; i < found; ++i) {
          if (i + kAhead < found)
            Prefetch<true>(out.row(id[own[i + kAhead]]), out.dim);
          AddTo(out.row(id[own[i]]), factors[own[i]], query, columns);
        }
      }
    }
  });
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_SCORES_H_
