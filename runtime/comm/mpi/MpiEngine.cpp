#include "runtime/comm/mpi/MpiEngine.h"

#include <sys/prctl.h>

#include <algorithm>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

// MPI moves bytes within its calls only, so the thread calls without pause while messages come and go. When nothing has
// happened for so long, it sleeps between calls. It does not yield instead: where compute threads keep all cores busy,
// a thread that yields waits for their time slices (milliseconds), one that wakes up goes first.
constexpr std::chrono::microseconds kEager(50), kShortSleep(20);
// Without messages under way, calls are for what MPI has taken from us but not sent yet.
constexpr std::chrono::milliseconds kLongSleep(2);

std::string errorText(int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

void MpiEngine::serve() {
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; of this thread
  const Status status = start();
  {
    std::lock_guard lock(mutex_);
    started_ = true;
    startStatus_ = status;
  }
  changed_.notify_all();
  if (status.ok()) move();
  bool orderly;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finishing_; });
    orderly = orderly_;
  }
  if (status.ok() && orderly) MPI_Finalize();
  // Under the lock: when others see it, this thread uses nothing of the engine any more.
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

Status MpiEngine::start() const {
  int initialized = 0, provided = 0;
  MPI_Initialized(&initialized);
  if (initialized) return Status::error("MPI has been started before in this process");
  if (int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); error != MPI_SUCCESS)
    return Status::error(cat("MPI_Init_thread: ", errorText(error)));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_FUNNELED) return Status::error("this MPI does not work in programs with threads");
  int rank = 0, size = 0, found = 0, *most = nullptr;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != place_.ranks[place_.mine] || size <= *std::max_element(place_.ranks.begin(), place_.ranks.end()))
    return Status::error(cat("to MPI this is process ", rank, " of ", size, ", to the launcher process ",
                             place_.ranks[place_.mine], ": the processes were not started by this MPI's mpirun"));
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
  if (found && place_.lastTag > *most)
    return Status::error(cat("this MPI has tags up to ", *most, ", the plan needs ", place_.lastTag + 1,
                             " for its communicators and ranks of a process"));
  return {};
}

void MpiEngine::move() {
  for (;;) {
    if (news_.exchange(false, std::memory_order_acquire)) {
      taken_.clear();
      {
        std::lock_guard lock(mutex_);
        if (finishing_) return;
        taken_.swap(submitted_);
      }
      for (const MpiChannel::Message& message : taken_) post(message);
    }
    if (!test()) rest();
  }
}

void MpiEngine::post(const MpiChannel::Message& message) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int bytes = static_cast<int>(message.bytes), peer = place_.ranks[static_cast<size_t>(message.process)],
            tag = message.channel->tag();
  const int error = message.sends ? MPI_Isend(message.data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request)
                                  : MPI_Irecv(message.data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
  if (error != MPI_SUCCESS) return fail(message, error);
  requests_.push_back(request);
  messages_.push_back(message);
  lastMove_ = Clock::now();
}

// Whether any message is done.
bool MpiEngine::test() {
  const size_t count = requests_.size();
  if (count == 0) return false;
  indices_.resize(count);
  statuses_.resize(count);
  int done = 0;
  const int result = MPI_Testsome(static_cast<int>(count), requests_.data(), &done, indices_.data(), statuses_.data());
  if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) {
    for (const MpiChannel::Message& message : messages_) fail(message, result);
    return false;
  }
  if (done <= 0) return false;
  for (size_t i = 0; i < static_cast<size_t>(done); ++i) {
    const MpiChannel::Message& message = messages_[static_cast<size_t>(indices_[i])];
    const int error = result == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS;
    int bytes = static_cast<int>(message.bytes);
    if (error == MPI_SUCCESS && !message.sends) MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    if (error != MPI_SUCCESS)
      fail(message, error);
    else if (static_cast<uint64_t>(bytes) != message.bytes)
      message.channel->fail(cat("the connection to ", place_.names[static_cast<size_t>(message.process)],
                                " is broken: ", bytes, " bytes came instead of ", message.bytes));
    else
      message.channel->complete(message);
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    messages_[kept++] = messages_[i];
  }
  requests_.resize(kept);
  messages_.resize(kept);
  lastMove_ = Clock::now();
  return true;
}

void MpiEngine::rest() {
  const bool idle = requests_.empty();
  if (idle) {
    int ignored = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &ignored, MPI_STATUS_IGNORE);
  }
  if (Clock::now() - lastMove_ < kEager) return;
  std::unique_lock lock(mutex_);
  auto news = [&] { return news_.load(std::memory_order_relaxed); };
  if (idle)
    changed_.wait_for(lock, kLongSleep, news);
  else
    changed_.wait_for(lock, kShortSleep, news);
}

void MpiEngine::fail(const MpiChannel::Message& message, int error) const {
  message.channel->fail(
      cat("the connection to ", place_.names[static_cast<size_t>(message.process)], " is broken: ", errorText(error)));
}

bool MpiEngine::waitForStart(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return started_; });
}

Status MpiEngine::startStatus() {
  std::lock_guard lock(mutex_);
  return startStatus_;
}

void MpiEngine::submit(std::vector<MpiChannel::Message>& messages) {
  {
    std::lock_guard lock(mutex_);
    submitted_.insert(submitted_.end(), messages.begin(), messages.end());
    news_.store(true, std::memory_order_release);
  }
  messages.clear();
  changed_.notify_all();
}

void MpiEngine::finish(bool orderly) {
  {
    std::lock_guard lock(mutex_);
    orderly_ = orderly && !finishing_;
    finishing_ = true;
    news_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

bool MpiEngine::waitForEnd(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return ended_; });
}

}  // namespace sheaf::comm
