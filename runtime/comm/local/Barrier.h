// Where the ranks of one process wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/comm/AbortSignal.h"

namespace sheaf::comm {

class Barrier {
 public:
  // The signal must outlive the last meeting. spins: see spinUntil.
  Barrier(int64_t ranks, AbortSignal& abort, int spins);

  // Returns when all ranks have called it; false if the run was aborted.
  bool wait();

 private:
  const int64_t ranks_;
  AbortSignal& abort_;
  const int spins_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t arrived_ = 0;
  std::atomic<uint64_t> generation_ = 0;
};

}  // namespace sheaf::comm
