#include "runtime/device/cuda/nccl/Watchdog.h"

#include "runtime/base/Text.h"

namespace sheaf::nccl {

Watchdog::Watchdog(int64_t rank, const cuda::Progress& progress, comm::AbortSignal& abort, WatchdogOptions options)
    : rank_(rank),
      progress_(progress),
      abort_(abort),
      options_(std::move(options)),
      since_(std::chrono::steady_clock::now()) {
  Expected<Thread> thread = Thread::start("the watchdog of NCCL", [this] { watch(); });
  status_ = thread.status();
  if (thread.ok()) thread_ = std::move(*thread);
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

Status Watchdog::look() {
  if (Status status = options_.errors(); !status.ok())
    return Status::error(cat("rank ", rank_, ": ", status.message(), ", at ", progress_.text()));
  const auto now = std::chrono::steady_clock::now();
  const uint64_t count = progress_.count();
  if (count != seen_ || !progress_.busy()) {
    seen_ = count;
    since_ = now;
  }
  if (now - since_ < options_.timeLimit) return {};
  return Status::error(cat("rank ", rank_, " has made no progress for ",
                           secondsText(std::chrono::duration<double>(options_.timeLimit).count()), " at ",
                           progress_.text(),
                           ": another rank did not reach it, or the network does not deliver (SHEAF_TIMEOUT)"));
}

void Watchdog::watch() {
  if (options_.begin) options_.begin();
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, options_.interval, [this] { return stop_; })) {
    if (!abort_.raised())
      if (Status status = look(); !status.ok()) abort_.raise(std::move(status));
    if (!abort_.raised()) continue;
    const std::string why = abort_.status().message();
    options_.end(why);
    if (!stopped_.wait_for(lock, options_.grace, [this] { return stop_; }) && options_.abandon)
      options_.abandon(cat(why, "; the process has not let go of the GPU (after ",
                           secondsText(std::chrono::duration<double>(options_.grace).count()), ")"));
    return;
  }
}

}  // namespace sheaf::nccl
