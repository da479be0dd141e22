// The way of rows from the table through an optimizer and back.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_UPDATE_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_UPDATE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu_lookup.h"
#include "cpu_optimizers.h"
#include "cpu_rounding.h"
#include "cpu_threads.h"

namespace {

struct Slot {
  float* data;
  int64_t width;  // numbers a row
};

struct Update {
  Optimizer optimizer;
  // Of each group, and behind them those of groups that do not exist.
  std::vector<Settings> settings;
  const int32_t* groups;  // of each id; null where all rows are alike
  Chance chance;
  std::vector<Slot> slots;

  const Settings& Of(int64_t g) const {
    if (!groups) return settings.front();
    const size_t group = static_cast<uint32_t>(groups[g]);
    return group < settings.size() ? settings[group] : settings.back();
  }
};

// Rows of floats, aligned, for one thread.
class Memory {
 public:
  Memory(int64_t rows, int64_t dim)
      : width_((dim + kLanes - 1) / kLanes * kLanes),
        floats_(rows * width_ + kLanes) {}
  float* row(int64_t i) {
    const auto address = reinterpret_cast<uintptr_t>(floats_.data());
    return reinterpret_cast<float*>((address + 63) / 64 * 64) + i * width_;
  }

 private:
  int64_t width_;
  std::vector<float> floats_;
};

template <typename T, typename Source>
void UpdateRows(ffi::ThreadPool& pool, int64_t threads, const Table<T>& table,
                const Update& update, const Source& source) {
  const int64_t dim = table.dim;
  Parallel(pool, threads, source.size(), 2048, [&](int64_t begin, int64_t end) {
    Memory memory(3, dim);
    auto prefetch = [&](int64_t g) __attribute__((always_inline)) {
      const int64_t id = source.id(g);
      if (!table.has(id)) return;
      Prefetch<true>(table.row(id), dim);
      for (const Slot& s : update.slots)
        Prefetch<true>(s.data + id * s.width, s.width);
      source.Prefetch(g);
    };
    for (int64_t g = begin; g < std::min(begin + kAhead, end); ++g) prefetch(g);
    for (int64_t g = begin; g < end; ++g) {
      if (g + kAhead < end) prefetch(g + kAhead);
      const int64_t id = source.id(g);
      if (!table.has(id)) continue;
      const Settings& own = update.Of(g);
      Row row{nullptr, source.Gradient(g, memory.row(0)), {}, dim,
              own.rate, own.correct, memory.row(1)};
      for (size_t s = 0; s < update.slots.size(); ++s)
        row.slots[s] = update.slots[s].data + id * update.slots[s].width;
      if constexpr (std::is_same_v<T, float>) {
        row.w = table.row(id);
      } else {
        row.w = memory.row(2);
        EachVector(dim, [&](int64_t c, int64_t n) {
          Store(Load(table.row(id) + c, n), row.w + c);
        });
      }
      update.optimizer(own.rule, row);
      if (own.rule.max_norm > 0) Shrink(own.rule, row);
      if constexpr (!std::is_same_v<T, float>)
        StoreRow(row.w, table.row(id), dim, update.chance, g, id);
    }
  });
}

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_UPDATE_H_
