// Votes on whether all processes begin the next step. A vote runs during the previous step, so that no step waits for
// it. One process that wants to stop is enough, and all stop after the same step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "runtime/base/Status.h"
#include "runtime/base/Threads.h"
#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::exec {

class StopVote {
 public:
  // Results arrive in order on the thread of `team`, which has one and nothing else to do. After an error there are no
  // more.
  using Answer = std::function<void(int64_t step, const Expected<bool>& stop)>;
  StopVote(comm::ProcessGroup& processes, WorkerThreads& team, Answer answer);
  // Returns after the last result.
  ~StopVote();

  // Starts a vote without waiting. Every process starts the same votes in the same order.
  void ask(int64_t step, bool stop);

 private:
  void serve();

  comm::ProcessGroup& processes_;
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, bool>> questions_;
  bool end_ = false;
  WorkerThreads& team_;
};

}  // namespace sheaf::exec
