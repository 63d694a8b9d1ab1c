// Whether all processes begin the next step: asked while the step before it runs, so that no step waits for the answer,
// and ended by one process's wish, so that all end after the same step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::exec {

class StopVote {
 public:
  // Answers come in the order of the questions, on a thread of their own; after an error there are no more.
  using Answer = std::function<void(int64_t step, const Expected<bool>& stop)>;
  StopVote(comm::ProcessGroup& processes, Answer answer);
  // Returns after the last answer.
  ~StopVote();

  // Every process asks for the same steps in the same order. Does not wait.
  void ask(int64_t step, bool stop);

 private:
  void serve();

  comm::ProcessGroup& processes_;
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, bool>> questions_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace sheaf::exec
