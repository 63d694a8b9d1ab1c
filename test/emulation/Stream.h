// Streams and events of the emulated CUDA runtime. A stream is a thread with a queue. While it is captured, what it is
// given becomes part of a graph instead.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sheaf::emulation {

using Task = std::function<void()>;

// A capture under way, later a graph: its tasks in the order in which they were captured, which respects all of its
// edges, so it is the order in which they run, too. What the order does not show is checked: that every stream that
// joined the capture is waited for by the stream that began it.
struct Capture {
  using Position = std::map<cudaStream_t, size_t>;  // how far each stream's work is known to be done
  std::vector<Task> tasks;
  cudaStream_t origin = nullptr;
  std::map<cudaStream_t, Position> joined;
  bool invalid = false;
};

// One record of an event. The event itself is the latest one.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::chrono::steady_clock::time_point time;
  // Of a record in a capture, which is not a point in time.
  std::shared_ptr<Capture> capture;
  Capture::Position position;

  void reach();
  void wait();
};

// Whether this thread runs a host function, in which calls of the runtime are not allowed.
extern thread_local constinit bool inHostFunction;

// Whether this thread captures a stream: what might wait, or allocates, is not allowed then either.
extern thread_local constinit bool inCapture;
inline bool restricted() {
  return inHostFunction || inCapture;
}

// Appends work to the stream, or to its capture.
cudaError_t enqueue(cudaStream_t stream, Task task);

}  // namespace sheaf::emulation

struct CUstream_st {
  CUstream_st();
  ~CUstream_st();
  void push(sheaf::emulation::Task task);
  void drain();
  bool idle();

  std::mutex mutex;
  std::condition_variable filled, emptied;
  std::deque<sheaf::emulation::Task> queue;
  uint64_t pushed = 0, done = 0;
  bool stop = false;
  std::shared_ptr<sheaf::emulation::Capture> capture;  // by the issuing thread only
  std::thread thread;
};

struct CUevent_st {
  std::mutex mutex;
  bool timed = true;
  std::shared_ptr<sheaf::emulation::Record> latest;

  std::shared_ptr<sheaf::emulation::Record> last() {
    std::lock_guard lock(mutex);
    return latest;
  }
};
