// The threads of a process's part of a run, besides those of its device: started before the first step, so that none
// can be missing later.
#pragma once

#include <memory>

#include "runtime/base/Threads.h"

namespace sheaf::exec {

struct RunThreads {
  std::unique_ptr<WorkerThreads> ranks;  // one per local rank; issues its instructions
  std::unique_ptr<WorkerThreads> vote;   // one; null if there is one process

  static Expected<RunThreads> start(size_t ranks, bool votes) {
    Expected<std::unique_ptr<WorkerThreads>> team = WorkerThreads::create("a rank's instructions", ranks);
    if (!team.ok()) return team.status();
    RunThreads threads{std::move(*team), nullptr};
    if (!votes) return threads;
    team = WorkerThreads::create("votes on the next step", 1);
    if (!team.ok()) return team.status();
    threads.vote = std::move(*team);
    return threads;
  }
};

}  // namespace sheaf::exec
