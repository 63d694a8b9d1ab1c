// A thread of the host that does its part of what one stream of a GPU does, in the stream's order: input and output of
// files, launches on the host. The stream and the thread take turns by words in pinned memory (kernels/HandOver.h), in
// graphs as outside of them. The thread calls nothing of CUDA.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/device/cuda/Resources.h"
#include "runtime/device/cuda/kernels/HandOver.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

class HostThread {
 public:
  // Receives an error of the thread's part, on the thread. It aborts the run, which calls stop().
  using Fail = std::function<void(const plan::Instruction&, const std::string& why)>;
  // The thread's part of an instruction. It awaits as often as the stream's part reports, and reports as often as that
  // awaits.
  using Part = std::function<Status()>;

  // `begin` is called first on the thread.
  static Expected<std::unique_ptr<HostThread>> create(Fail fail, std::function<void()> begin = {});
  // After the stream has come to its end, or after stop(). What the thread has begun is done then.
  ~HostThread();
  HostThread(const HostThread&) = delete;
  HostThread& operator=(const HostThread&) = delete;

  // Asks for a part, which the thread does when the stream comes to the instruction. Requests are made in the stream's
  // order, each once for every time that the stream comes to the instruction, and before it does.
  void request(const plan::Instruction& instruction, Part part);
  // Of the stream's part, to be captured or to be done at once: the stream reports `report` times, then waits until the
  // thread has reported `await` more times.
  Status turn(uint32_t report, uint32_t await, cudaStream_t stream);
  // Ends all waits, of the stream and of the thread, from any thread: what was under way is left as it is.
  void stop();

  // For the thread's part. Until the stream has reported once more; false after stop().
  bool await();
  void report();

 private:
  explicit HostThread(Fail fail) : fail_(std::move(fail)) {}
  void work();
  HandOver& words() const { return *reinterpret_cast<HandOver*>(words_.get()); }

  struct Request {
    const plan::Instruction* instruction = nullptr;
    Part part;
  };
  const Fail fail_;
  PinnedMemory words_;
  uint64_t awaited_ = 0, done_ = 0;  // by the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> requests_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace sheaf::cuda
