// Collectives between the ranks of one process: every rank reads straight from its peers' memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::comm {

// What one rank brings to a collective: addresses of its operands in memory that all ranks can read.
struct CollectiveBuffers {
  plan::CollectiveOp op = plan::COLLECTIVE_OP_UNSPECIFIED;
  plan::ElementType type = plan::ELEMENT_TYPE_UNSPECIFIED;
  uint64_t count = 0;  // as in plan::Collective
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
};

// The first error among the ranks of one process. Raising it wakes everybody who waits for a peer.
class AbortSignal {
 public:
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // The first error raised; success if none was.
  Status status() const;
  // Keeps the first error only, then runs the listeners. Safe from any thread.
  void raise(Status error);
  // Called once when an error is raised (at once if one was). Listeners must outlive every use of the signal.
  void listen(std::function<void()> listener);

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> raised_ = false;
  Status status_;
  std::vector<std::function<void()>> listeners_;
};

// One communicator: all ranks run the same collectives on it in the same order.
class LocalCommunicator {
 public:
  LocalCommunicator(int64_t ranks, AbortSignal& abort, int spins);

  // Runs a collective as one of the ranks. Begins when all ranks have arrived and returns when all have left, so that
  // buffers may be reused. `onPeerRead` (if set) is told each range of a peer's memory before it is read.
  Status run(int64_t rank, const CollectiveBuffers& buffers,
             const std::function<void(const void*, size_t)>& onPeerRead = nullptr);

 private:
  // Waits for all ranks; false if the run was aborted.
  bool rendezvous();
  Status aborted() const { return abort_.status(); }

  const int64_t ranks_;
  AbortSignal& abort_;
  const int spins_;
  std::vector<CollectiveBuffers> posted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t arrived_ = 0;
  std::atomic<uint64_t> generation_ = 0;
};

}  // namespace sheaf::comm
