// Lists of instructions as CUDA graphs: each is captured from the streams once for each slot of host memory, then
// launched as a whole; a graph is known by its list's number times kSlots and its slot. What
// runs outside of graphs is ordered before and after them on all streams.
#pragma once

#include <vector>

#include "runtime/device/cuda/HostSlots.h"
#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {

class StepGraphs {
 public:
  // Streams of the rank; the first one launches graphs.
  static Expected<StepGraphs> create(std::vector<cudaStream_t> streams, size_t lists);

  bool captured(size_t graph) const { return slots_[graph].instance != nullptr; }
  // What is enqueued on any of the streams from begin to end becomes the graph.
  Status beginCapture();
  Status endCapture(size_t graph);
  // Into a graph that belongs to no list.
  Expected<GraphInstance> endCapture();
  // Ends a capture that failed, so that the streams can be used. By the thread that began it.
  void dropCapture();
  bool capturing() const { return capturing_; }

  // Runs a graph after everything on all streams.
  Status launch(size_t graph);
  // Waits until the graph's last launch is done.
  Status wait(size_t graph);
  // To be called before something is enqueued on a stream outside of graphs: lets it wait for the last launch.
  Status enter(size_t stream);

 private:
  // Lets the first stream wait for all others, or all others for the first one.
  Status join(bool onlyUsed);
  Status fork();

  std::vector<cudaStream_t> streams_;
  std::vector<Event> ends_;    // of each stream
  std::vector<bool> used_;     // outside of graphs, since the last launch
  std::vector<bool> ordered_;  // after the last launch
  struct Slot {
    GraphInstance instance;
    Event done;
    bool launched = false;
  };
  std::vector<Slot> slots_;  // by graph
  Event start_;
  int last_ = -1;  // the graph that was launched last
  bool capturing_ = false;
};

}  // namespace sheaf::cuda
