// A queue of work and the thread that runs it in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/base/Threads.h"
#include "runtime/device/Device.h"
#include "runtime/device/cpu/Events.h"

namespace sheaf::cpu {

struct Entry;

// An issued instruction.
struct Work {
  const Entry* entry = nullptr;
  std::shared_ptr<const StepValues> step;
  Events::Record record;  // of a record or wait
  bool odd = false;       // which places generations in files had when it was issued: RankContext::oddGeneration
  uint64_t persists = 0;  // issued for steps before this one
};

class Stream {
 public:
  // Starts the thread. `execute` runs one piece of work on it.
  Stream(std::function<void(const Work&)> execute, int spins);
  // Runs what is queued, then ends the thread.
  ~Stream();
  // An error if its thread could not be started: then nothing may be pushed.
  const Status& status() const { return status_; }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Appends work; waits while the queue is full.
  void push(Work work);
  // Waits until everything pushed is done.
  void drain();
  // Whether everything pushed is done.
  bool idle();

 private:
  void loop();

  const std::function<void(const Work&)> execute_;
  const int spins_;
  std::mutex mutex_;
  std::condition_variable filled_, emptied_;
  std::deque<Work> queue_;
  std::atomic<uint64_t> pushed_ = 0;
  uint64_t done_ = 0;
  bool stop_ = false;
  Status status_;
  Thread thread_;
};

}  // namespace sheaf::cpu
