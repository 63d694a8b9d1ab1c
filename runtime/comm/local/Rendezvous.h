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
  // By rank `rank`, before a wait(): its operands. Between processes they lie in the rank's memory.
  void post(int64_t rank, const CollectiveBuffers& buffers);
  // What `rank` has posted, at addresses in this process. For rank `reader`, from the wait() after its own post() to
  // its next post(). During that wait() only `last` may ask, for all ranks.
  CollectiveBuffers posted(int64_t reader, int64_t rank) const;
  // Returns when all ranks have called it. The last rank to arrive runs `last` before any rank returns. Errors: the
  // signal's if the run was aborted, and that a rank has not arrived within the limit.
  Status wait(int64_t rank, const std::function<void()>& last = nullptr);
  // Called by all ranks with the same number of parts, at most one for each rank. Each part is done once, by the first
  // rank that gets there, preferably the rank of its number; returns when all are done. So the others need not wait for
  // a rank whose thread has no core at the moment. Errors: as wait().
  Status share(int64_t rank, int64_t parts, const std::function<void(int64_t part)>& work);

 private:
  struct State;
  // Waits for `done`; `isMissing` tells for which ranks, should the limit pass.
  template <typename Done, typename Missing>
  Status waitFor(const Done& done, const Missing& isMissing);
  template <typename Done, typename Missing>
  Status sleep(const Done& done, const Missing& isMissing);
  void wakeSleepers();
  template <typename Missing>
  Status late(const Missing& isMissing) const;

  const int64_t ranks_;
  AbortSignal& abort_;
  const int spins_;
  const Shared shared_;
  std::unique_ptr<std::byte[]> own_;  // the state, of threads
  State* state_;
};

}  // namespace sheaf::comm
