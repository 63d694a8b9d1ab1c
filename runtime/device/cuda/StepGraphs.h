// The body as CUDA graphs: captured from the streams once for each slot of host memory, then launched as a whole. What
// runs outside of graphs is ordered before and after them on all streams.
#pragma once

#include <vector>

#include "runtime/device/cuda/HostSlots.h"
#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {

class StepGraphs {
 public:
  // Streams of the rank; the first one launches graphs.
  static Expected<StepGraphs> create(std::vector<cudaStream_t> streams);

  bool captured(int slot) const { return instances_[slot] != nullptr; }
  // What is enqueued on any of the streams from begin to end becomes the slot's graph.
  Status beginCapture();
  Status endCapture(int slot);
  // Into a graph that belongs to no slot.
  Expected<GraphInstance> endCapture();
  // Ends a capture that failed, so that the streams can be used.
  void dropCapture();
  bool capturing() const { return capturing_; }

  // Runs the slot's graph after everything on all streams.
  Status launch(int slot);
  // Waits until the slot's last launch is done.
  Status wait(int slot);
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
  GraphInstance instances_[kSlots];
  Event done_[kSlots];
  bool launched_[kSlots] = {};
  Event start_;
  int last_ = -1;  // slot of the last launch
  bool capturing_ = false;
};

}  // namespace sheaf::cuda
