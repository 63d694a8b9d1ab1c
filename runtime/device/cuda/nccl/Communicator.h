// One communicator of NCCL. NCCL allows one thread at a time in a communicator: every call goes through here.
#pragma once

#include <chrono>
#include <mutex>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/device/cuda/nccl/NcclApi.h"

namespace sheaf::nccl {

class Communicator {
 public:
  // `limit`: how long NCCL may take for a call.
  Communicator(const Api& api, const comm::AbortSignal& signal, std::chrono::milliseconds limit)
      : api_(api), signal_(signal), limit_(limit) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // With the other ranks, as rank `rank` of `ranks`. Every open() is followed by close() or abort().
  Status open(int ranks, const ncclUniqueId& id, int rank, ncclConfig_t config);

  // Runs function(ncclComm_t), which makes one call or one group of calls, and waits until NCCL has taken it.
  template <typename Function>
  Status call(const char* what, Function function) {
    std::lock_guard lock(mutex_);
    if (!comm_) return closed();
    return finish(function(comm_), what);
  }

  // Registers memory as a symmetric window with the other ranks. One window at a time; null memory is none.
  Status setWindow(std::byte* memory, uint64_t bytes);

  // An error of NCCL between calls. Does not wait: a call that is under way reports its own error.
  Status error();

  // Ends in order, with the other ranks; after a raised signal without them.
  void close();
  // Ends what waits on the GPU for other ranks. Blocks until nothing refers to the communicator: its kernels have
  // ended, and the graphs that captured them are destroyed. Safe from any thread, any number of times.
  void abort();

 private:
  // The communicator, for who ends it, which may take long: no other thread finds it afterwards.
  ncclComm_t take();
  // Waits until the communicator is ready again. Only its state tells: ncclCommWindowRegister, from 2.28.3 on, returns
  // success before it is done.
  Status finish(ncclResult_t result, const char* what);
  Status closed() const;
  Status failure(ncclResult_t result, const std::string& what) const;

  const Api& api_;
  const comm::AbortSignal& signal_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;  // held by the thread that is in NCCL
  ncclComm_t comm_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

inline bool usable(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace sheaf::nccl
