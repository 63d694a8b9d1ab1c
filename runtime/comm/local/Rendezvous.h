// Where ranks whose memory all of them can read meet: each posts the operands of a collective, then all wait for each
// other. The ranks are threads of one process, or of several processes on one host that share memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/Communicator.h"

namespace sheaf::comm {

class Rendezvous {
 public:
  // Between processes: where the state and the ranks' memory lie in this process, and how long a process may keep the
  // others waiting.
  struct Shared {
    std::byte* state = nullptr;          // stateBytes(ranks) of zeroed memory that all processes map
    std::vector<std::byte*> memory;      // of each rank: the same bytes in every process, at addresses of its own
    std::chrono::milliseconds limit{0};  // after which wait() names who is missing; 0: none
    std::function<std::string(int64_t rank)> describe;  // the process of a rank, for errors
  };

  // Of threads. The signal must outlive the last wait; spins: see spinUntil.
  Rendezvous(int64_t ranks, AbortSignal& abort, int spins);
  Rendezvous(int64_t ranks, AbortSignal& abort, int spins, Shared shared);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  static uint64_t stateBytes(int64_t ranks);

  int64_t ranks() const { return ranks_; }
  // By rank `rank`, before a wait(): what it brings. Operands between processes lie in the rank's memory.
  void post(int64_t rank, const CollectiveBuffers& buffers);
  // After that wait() and before the next post(): what a rank brought, at addresses in this process.
  CollectiveBuffers posted(int64_t rank) const;
  // Returns when all ranks have called it; the signal's error if the run was aborted, and an error if a rank does not
  // come within the limit.
  Status wait(int64_t rank);

 private:
  struct State;
  Status sleep(uint64_t generation);
  void wakeSleepers();
  Status late(uint64_t generation) const;

  const int64_t ranks_;
  AbortSignal& abort_;
  const int spins_;
  const Shared shared_;
  std::unique_ptr<std::byte[]> own_;  // the state, of threads
  State* state_;
};

}  // namespace sheaf::comm
