// A thread that aborts a run after an error of NCCL or without progress, and ends the process if an abort does not.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "runtime/base/Threads.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/device/cuda/Progress.h"

namespace sheaf::nccl {

struct WatchdogOptions {
  std::function<void()> begin;  // called first on the thread, if set
  std::chrono::milliseconds interval{100};
  std::chrono::milliseconds timeLimit{300'000};
  std::function<Status()> errors;               // asked every interval
  std::function<void(const std::string&)> end;  // called once, when the run was aborted or must be; must not wait
  // How long after end() the watchdog may still exist, and what is called when it does: the GPU is still held.
  std::chrono::milliseconds grace{0};
  std::function<void(const std::string&)> abandon;
};

class Watchdog {
 public:
  Watchdog(int64_t rank, const cuda::Progress& progress, comm::AbortSignal& abort, WatchdogOptions options);
  ~Watchdog();

  // An error if its thread could not be started.
  const Status& status() const { return status_; }

 private:
  void watch();
  Status look();

  const int64_t rank_;
  const cuda::Progress& progress_;
  comm::AbortSignal& abort_;
  const WatchdogOptions options_;
  uint64_t seen_ = 0;
  std::chrono::steady_clock::time_point since_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  Status status_;
  Thread thread_;
};

}  // namespace sheaf::nccl
