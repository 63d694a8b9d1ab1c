// The threads of one rank that share a compute instruction. What is computed never depends on how many they are: work
// is cut into items by the caller, and any thread may take any item.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <type_traits>
#include <vector>

#include "runtime/base/Threads.h"

namespace sheaf::cpu {

class ComputePool {
 public:
  // `threads` counts the caller of run(), so one fewer is started. `spins`: how long a thread waits before it sleeps.
  // `begin` is called first on each that is started.
  ComputePool(int threads, int spins, std::function<void()> begin = {});
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  // An error if a thread could not be started: then nothing may be run.
  const Status& status() const { return status_; }
  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(item, thread) once for each item of [0, items), in any order and on any thread; thread numbers lie in
  // [0, threads()). Returns when all are done. One caller at a time.
  template <typename Body>
  void run(int64_t items, Body&& body) {
    if (helpers_.empty() || items <= 1) {
      for (int64_t item = 0; item < items; ++item) body(item, 0);
      return;
    }
    using Function = std::remove_reference_t<Body>;
    share([](void* function, int64_t item, int thread) { (*static_cast<Function*>(function))(item, thread); },
          const_cast<std::remove_const_t<Function>*>(&body), items);
  }

 private:
  using Call = void (*)(void* function, int64_t item, int thread);

  void share(Call call, void* function, int64_t items);
  void work(int thread);
  void help(int thread);

  const int spins_;
  const std::function<void()> begin_;
  Call call_ = nullptr;
  void* function_ = nullptr;
  int64_t items_ = 0;
  alignas(64) std::atomic<int64_t> next_ = 0;
  alignas(64) std::atomic<int> busy_ = 0;
  alignas(64) std::atomic<uint64_t> round_ = 0;
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  Status status_;
  std::vector<Thread> helpers_;
};

}  // namespace sheaf::cpu
