#include "runtime/exec/StopVote.h"

#include <algorithm>

#include "runtime/base/Text.h"

namespace sheaf::exec {

StopVote::StopVote(comm::ProcessGroup& processes, WorkerThreads& team, Answer answer)
    : processes_(processes), answer_(std::move(answer)), team_(team) {
  team_.start([this](size_t) { serve(); });
}

StopVote::~StopVote() {
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  team_.wait();
}

void StopVote::ask(int64_t step, bool stop) {
  {
    std::lock_guard lock(mutex_);
    questions_.emplace_back(step, stop);
  }
  changed_.notify_all();
}

void StopVote::serve() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return end_ || !questions_.empty(); });
    if (questions_.empty()) return;
    auto [step, stop] = questions_.front();
    questions_.pop_front();
    lock.unlock();
    Expected<std::vector<std::string>> votes = processes_.allGather(stop ? "stop" : "", cat("step ", step));
    if (!votes.ok()) return answer_(step, votes.status());
    answer_(step, std::any_of(votes->begin(), votes->end(), [](const std::string& vote) { return !vote.empty(); }));
  }
}

}  // namespace sheaf::exec
