// Occurrences of ids, grouped by id: radix sort and sums of gradients.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_GROUPS_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu_lookup.h"
#include "cpu_threads.h"
#include "cpu_vectors.h"

namespace {

// A key is id << 32 | payload. Keys come in the order of their payloads, and a
// radix sort keeps it, so an id's gradients are summed in their order.
uint64_t* Sort(uint64_t* keys, uint64_t* spare, int64_t n, int64_t rows) {
  if (n < 512) {
    std::stable_sort(keys, keys + n, [](uint64_t a, uint64_t b) {
      return (a >> 32) < (b >> 32);
    });
    return keys;
  }
  int bits = 1;
  while (bits < 31 && (int64_t(1) << bits) < rows) ++bits;
  const int passes = (bits + 11) / 12, digit = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t(1) << digit) - 1;
  std::vector<uint32_t> count(passes << digit);
  for (int64_t i = 0; i < n; ++i)
    for (int p = 0; p < passes; ++p)
      ++count[(p << digit) + ((keys[i] >> (32 + p * digit)) & mask)];
  for (int p = 0; p < passes; ++p) {
    uint32_t* place = count.data() + (p << digit);
    uint32_t sum = 0;
    for (uint64_t d = 0; d <= mask; ++d) sum += std::exchange(place[d], sum);
    for (int64_t i = 0; i < n; ++i)
      spare[place[(keys[i] >> (32 + p * digit)) & mask]++] = keys[i];
    std::swap(keys, spare);
  }
  return keys;
}

// The sum of gradient rows for each distinct id.
class Groups {
 public:
  // Without lengths id k has row k of `grads`, with them the row of its bag.
  Groups(const Ids& ids, const Ids& lengths, bool bagged, const float* weights,
         const float* grads, int64_t rows, int64_t dim)
      : scratch_(4 * ids.element_count() + 4),
        weights_(weights),
        grads_(grads),
        dim_(dim) {
    const int64_t n = ids.element_count();
    const int32_t* id = ids.typed_data();
    uint64_t* keys = scratch_.data();
    uint64_t* spare = keys + n;
    auto* words = reinterpret_cast<uint32_t*>(spare + n);
    ids_ = words;
    starts_ = words + n;
    bag_ = starts_ + n + 1;
    int64_t used = 0;
    auto add = [&](int64_t k, uint64_t payload) {
      if (id[k] >= 0 && id[k] < rows)
        keys[used++] = uint64_t(id[k]) << 32 | payload;
    };
    if (bagged) {
      const auto offsets = Offsets(lengths, n);
      for (int64_t b = 0; b + 1 < int64_t(offsets.size()); ++b)
        for (int64_t k = offsets[b]; k < offsets[b + 1]; ++k) {
          add(k, weights ? k : b);
          bag_[k] = b;
        }
    } else {
      for (int64_t k = 0; k < n; ++k) add(k, k);
      bag_ = nullptr;
    }
    keys_ = Sort(keys, spare, used, rows);
    for (int64_t i = 0; i < used; ++i) {
      const uint32_t key = keys_[i] >> 32;
      if (size_ && ids_[size_ - 1] == key) continue;
      ids_[size_] = key;
      starts_[size_++] = i;
    }
    starts_[size_] = used;
  }

  int64_t size() const { return size_; }
  int64_t id(int64_t g) const { return ids_[g]; }

  ALWAYS_INLINE void Prefetch(int64_t g) const {
    const uint32_t payload = keys_[starts_[g]];
    const float* row = grads_ + Source(payload) * dim_;
    ::Prefetch<false>(row, dim_);
  }

  // Gradient of group g: in `buffer`, or where it stands if nothing is added.
  const float* Gradient(int64_t g, float* buffer) const {
    int64_t i = starts_[g];
    const int64_t end = starts_[g + 1];
    const float* first = grads_ + Source(keys_[i]) * dim_;
    if (!weights_ && end == i + 1) return first;
    constexpr int kBlock = 4;
    int64_t c = 0;
    for (; c + kBlock * kLanes <= dim_; c += kBlock * kLanes)
      SumColumns<kBlock>(i, end, c, buffer);
    for (; c < dim_; c += kLanes) SumColumns<1>(i, end, c, buffer);
    return buffer;
  }

 private:
  int64_t Source(uint32_t payload) const {
    return weights_ && bag_ ? bag_[payload] : payload;
  }

  template <int kBlock>
  void SumColumns(int64_t i, int64_t end, int64_t c, float* buffer) const {
    Lanes sum[kBlock] = {};
    for (; i < end; ++i) {
      const uint32_t payload = keys_[i];
      const float* row = grads_ + Source(payload) * dim_ + c;
      for (int j = 0; j < kBlock; ++j) {
        const Lanes x =
            kBlock == 1 ? Load(row, dim_ - c) : Load(row + j * kLanes);
        sum[j] += weights_ ? Splat(weights_[payload]) * x : x;
      }
    }
    for (int j = 0; j < kBlock; ++j)
      Store(sum[j], buffer + c + j * kLanes, dim_ - c - j * kLanes);
  }

  Scratch scratch_;
  const float* weights_;
  const float* grads_;
  int64_t dim_, size_ = 0;
  uint64_t* keys_;
  uint32_t *ids_, *starts_, *bag_;
};

// Distinct ids whose gradients are merged already; `rows` in spare places.
class Merged {
 public:
  Merged(const Ids& ids, const float* grads, int64_t dim)
      : ids_(ids.typed_data()),
        size_(ids.element_count()),
        grads_(grads),
        dim_(dim) {}
  int64_t size() const { return size_; }
  int64_t id(int64_t g) const { return ids_[g]; }
  ALWAYS_INLINE void Prefetch(int64_t g) const {
    ::Prefetch<false>(grads_ + g * dim_, dim_);
  }
  const float* Gradient(int64_t g, float*) const { return grads_ + g * dim_; }

 private:
  const int32_t* ids_;
  int64_t size_;
  const float* grads_;
  int64_t dim_;
};

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_GROUPS_H_
