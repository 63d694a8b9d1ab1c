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

// A capture under way, later a graph. Its nodes run in a random order that respects its edges: what a stream's order or
// an event does not order is not ordered. What edges do not show is checked: that every stream that joined the capture
// is waited for by the stream that began it.
struct Capture {
  struct Node {
    Task task;
    std::vector<size_t> after;  // nodes with smaller indices
    bool waits;                 // for other GPUs, while other nodes go on
  };
  using Position = std::map<cudaStream_t, size_t>;  // how far each stream's work is known to be done
  std::vector<Node> nodes;
  cudaStream_t origin = nullptr;
  std::map<cudaStream_t, Position> joined;
  // Released when the graph, all of its instances and their launches are gone (cudaUserObject).
  std::vector<std::shared_ptr<void>> held;

  void run() const;
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

// Appends work to the stream, or to its capture. `waits`: it may wait for other GPUs.
cudaError_t enqueue(cudaStream_t stream, Task task, bool waits = false);

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
