// Work spread over XLA's threads, and memory that is kept between calls.

#ifndef PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_THREADS_H_
#define PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_THREADS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// The caller works too and never waits for a task that has not begun, so a pool
// that is busy delays nothing. What is thrown on any thread is thrown here, when
// all have stopped.
void Parallel(ffi::ThreadPool& pool, int64_t threads, int64_t count,
              int64_t grain, const std::function<void(int64_t, int64_t)>& run) {
  struct State {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::exception_ptr thrown;
    std::mutex mutex;
    std::condition_variable all_done;
  };
  const int64_t chunks = (count + grain - 1) / grain;
  if (threads <= 0) threads = pool.num_threads();
  const int64_t others = std::min(threads, chunks) - 1;
  if (others <= 0) {
    if (count > 0) run(0, count);
    return;
  }
  auto state = std::make_shared<State>();
  const auto* body = &run;
  auto work = [state, body, chunks, grain, count] {
    int64_t mine = 0;
    std::exception_ptr thrown;
    for (int64_t i; (i = state->next++) < chunks; ++mine) {
      if (thrown) continue;  // others wait until each chunk is counted
      try {
        (*body)(i * grain, std::min(count, (i + 1) * grain));
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    if (!mine) return;
    std::lock_guard<std::mutex> lock(state->mutex);
    if (thrown) state->thrown = thrown;
    state->done += mine;
    if (state->done == chunks) state->all_done.notify_one();
  };
  for (int64_t i = 0; i < others; ++i) pool.Schedule(decltype(work)(work));
  work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == chunks; });
  if (state->thrown) std::rethrow_exception(state->thrown);
}

// Memory that is kept: fresh pages cost more than sorting does. What is larger
// than kMost is given back, so that one huge batch does not hold it for good.
class Scratch {
 public:
  explicit Scratch(size_t words) {
    {
      std::lock_guard<std::mutex> lock(Mutex());
      if (!Free().empty()) {
        memory_ = std::move(Free().back());
        Free().pop_back();
      }
    }
    if (memory_.size() < words) memory_ = std::vector<uint64_t>(words);
  }
  ~Scratch() {
    std::lock_guard<std::mutex> lock(Mutex());
    if (Free().size() < kKept && memory_.size() <= kMost)
      Free().push_back(std::move(memory_));
  }
  uint64_t* data() { return memory_.data(); }

 private:
  static constexpr size_t kKept = 4;
  static constexpr size_t kMost = (64 << 20) / sizeof(uint64_t);
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::vector<std::vector<uint64_t>>& Free() {
    static auto* free = [] {
      auto* made = new std::vector<std::vector<uint64_t>>;
      made->reserve(kKept);  // a destructor must not allocate
      return made;
    }();
    return *free;
  }
  std::vector<uint64_t> memory_;
};

}  // namespace

#endif  // PALLAS_KERNELS_JAGGED_EMBEDDING_CPU_THREADS_H_
