// A host thread that does the host's share of one GPU stream's work, in the stream's order: file input and output,
// launches on the host. Stream and thread take turns by counters in pinned memory (kernels/HandOver.h), in graphs, too.
// The thread makes no CUDA calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/base/Threads.h"
#include "runtime/device/cuda/Resources.h"
#include "runtime/device/cuda/kernels/HandOver.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

class HostThread {
 public:
  // Receives an error of the thread's part, on the thread. It aborts the run, which calls stop().
  using Fail = std::function<void(const plan::Instruction&, const std::string& why)>;
  // The thread's part of an instruction. It calls await() once for each report of the stream, and report() once for
  // each that the stream awaits.
  using Part = std::function<Status()>;

  // `begin` is called first on the thread.
  static Expected<std::unique_ptr<HostThread>> create(Fail fail, std::function<void()> begin = {});
  // Call it after the stream is done, or after stop(). Waits for the part under way.
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

  // Waits until the parts that were requested are done, or have ended after stop().
  void drain();

  // For the thread's part. Waits for one more report of the stream; false after stop().
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
  std::condition_variable changed_, emptied_;
  std::deque<Request> requests_;
  bool idle_ = true;
  bool end_ = false;
  Thread thread_;
};

}  // namespace sheaf::cuda
