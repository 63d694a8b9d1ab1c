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

// States how far each stream's work is known to be done.
using Position = std::map<cudaStream_t, size_t>;

// A capture under way, later a graph. Its nodes run in a random order that respects its edges: what a stream's order or
// an event does not order is not ordered. What edges do not show is checked: that every stream that joined the capture
// is waited for by the stream that began it.
struct Capture {
  struct Node {
    Task task;
    std::vector<size_t> after;  // nodes with smaller indices
    bool waits;                 // for other GPUs, while other nodes go on
  };
  std::vector<Node> nodes;
  cudaStream_t origin = nullptr;
  std::thread::id thread;  // that began it
  int device = 0;
  bool invalid = false;
  std::map<cudaStream_t, Position> joined;
  // A node that waits: its index, and a flag for each such node before it that must be done first.
  struct Collective {
    size_t node;
    std::vector<bool> after;
  };
  std::vector<Collective> collectives;
  // Released when the graph, all of its instances and their launches are gone (cudaUserObject).
  std::vector<std::shared_ptr<void>> held;

  // Fills `collectives`, once all nodes are known.
  void findCollectives();
  void run() const;
  // Draws the order in which this device runs the collectives of a launch.
  std::vector<size_t> orderOfCollectives(uint32_t launch) const;
};

// One record of an event. The event itself is the latest one.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  std::chrono::steady_clock::time_point time;
  cudaStream_t stream = nullptr;
  // All work that is done when the record is reached, including the stream's own.
  Position position;
  // A record in a capture is not a point in time. It does not keep the graph alive.
  bool captured = false;
  std::weak_ptr<Capture> capture;

  void reach();
  void wait();
};

// Whether this thread runs a host function, in which calls of the runtime are not allowed.
extern thread_local constinit bool inHostFunction;

// The capture that this thread has begun, or null.
extern thread_local constinit Capture* threadCapture;

// Returns an error if a call that may wait or allocate is not allowed now. It is not in a host function, and it
// invalidates the thread's capture (CUDA Programming Guide, CUDA Graphs, "Prohibited and Unhandled Operations",
// "Invalidation").
cudaError_t mayWait();
// Does the same for a call that asks for the stream's state or waits for it, which may not be in a capture.
cudaError_t mayAsk(cudaStream_t stream);
// Invalidates the capture, in which a prohibited operation was tried, and returns `error`.
cudaError_t invalidate(const std::shared_ptr<Capture>& capture, cudaError_t error);

// Appends work to the stream, or to its capture. `waits`: it may wait for other GPUs.
cudaError_t enqueue(cudaStream_t stream, Task task, bool waits = false);

// Record, as an event does, what the stream has been given so far, and let a stream wait for that.
cudaError_t record(cudaStream_t stream, std::shared_ptr<Record>& result);
cudaError_t await(cudaStream_t stream, const std::shared_ptr<Record>& record);
// Returns true if work that the stream is given from now on comes after the record: by the order of streams and events,
// or because the record has been reached. Both are in one capture, or in none.
bool comesAfter(cudaStream_t stream, const std::shared_ptr<Record>& record);

}  // namespace sheaf::emulation

struct CUstream_st {
  explicit CUstream_st(int device);
  ~CUstream_st();
  void push(sheaf::emulation::Task task);
  void drain();
  bool idle();

  std::mutex mutex;
  std::condition_variable filled, emptied;
  std::deque<sheaf::emulation::Task> queue;
  uint64_t pushed = 0, done = 0;
  bool stop = false;
  const int device;
  // The records of each stream that come before this stream's next work. One mutex guards those of all streams.
  sheaf::emulation::Position seen;
  std::shared_ptr<sheaf::emulation::Capture> capture;  // by the issuing thread only
  std::thread thread;
};

struct CUevent_st {
  explicit CUevent_st(int device) : device(device) {}

  const int device;
  std::mutex mutex;
  bool timed = true;
  std::shared_ptr<sheaf::emulation::Record> latest;

  std::shared_ptr<sheaf::emulation::Record> last() {
    std::lock_guard lock(mutex);
    return latest;
  }
};
