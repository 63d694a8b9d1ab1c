#include "runtime/device/cuda/HostThread.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sheaf::cuda {
namespace {

// A thread that waits for the stream looks again after a pause, which doubles up to this: a part may begin a step after
// it was requested, and the next turn of one that has begun is there at once.
constexpr std::chrono::microseconds kLongestPause(100);

}  // namespace

Expected<std::unique_ptr<HostThread>> HostThread::create(Fail fail, std::function<void()> begin) {
  std::unique_ptr<HostThread> thread(new HostThread(std::move(fail)));
  Expected<PinnedMemory> words = makePinned(sizeof(HandOver));
  if (!words.ok()) return words.status();
  thread->words_ = std::move(*words);
  Expected<Thread> started =
      Thread::start("work of a rank on the host", [raw = thread.get(), begin = std::move(begin)] {
        if (begin) begin();
        raw->work();
      });
  if (!started.ok()) return started.status();
  thread->thread_ = std::move(*started);
  return thread;
}

HostThread::~HostThread() {
  stop();
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void HostThread::stop() {
  if (words_) __atomic_store_n(&words().stop, 1, __ATOMIC_RELEASE);
}

void HostThread::request(const plan::Instruction& instruction, Part part) {
  {
    std::lock_guard lock(mutex_);
    requests_.push_back({&instruction, std::move(part)});
  }
  changed_.notify_one();
}

void HostThread::drain() {
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [this] { return idle_ && requests_.empty(); });
}

Status HostThread::turn(uint32_t report, uint32_t await, cudaStream_t stream) {
  return report + await == 0 ? Status() : check(handOver(&words(), report, await, stream), "cannot wait for the host");
}

void HostThread::work() {
  for (;;) {
    Request request;
    {
      std::unique_lock lock(mutex_);
      idle_ = requests_.empty();
      if (idle_) emptied_.notify_all();
      changed_.wait(lock, [this] { return end_ || !requests_.empty(); });
      if (end_) return;
      idle_ = false;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    if (Status status = request.part(); !status.ok()) fail_(*request.instruction, status.message());
  }
}

bool HostThread::await() {
  ++awaited_;
  std::chrono::microseconds pause(0);
  while (__atomic_load_n(&words().reported, __ATOMIC_ACQUIRE) < awaited_) {
    if (__atomic_load_n(&words().stop, __ATOMIC_ACQUIRE) != 0) return false;
    if (pause.count() == 0)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(pause);
    pause = std::min(std::max(2 * pause, std::chrono::microseconds(1)), kLongestPause);
  }
  return __atomic_load_n(&words().stop, __ATOMIC_ACQUIRE) == 0;
}

void HostThread::report() {
  __atomic_store_n(&words().done, ++done_, __ATOMIC_RELEASE);
}

}  // namespace sheaf::cuda
