#include "runtime/device/cuda/StepGraphs.h"

namespace sheaf::cuda {

Expected<StepGraphs> StepGraphs::create(std::vector<cudaStream_t> streams, size_t lists) {
  StepGraphs graphs;
  graphs.used_.assign(streams.size(), false);
  graphs.ordered_.assign(streams.size(), true);
  graphs.slots_.resize(lists * kSlots);
  const size_t slots = streams.size() + graphs.slots_.size();
  for (size_t i = 0; i < slots + 1; ++i) {
    Expected<Event> event = makeEvent();
    if (!event.ok()) return event.status();
    if (i < streams.size())
      graphs.ends_.push_back(std::move(*event));
    else if (i < slots)
      graphs.slots_[i - streams.size()].done = std::move(*event);
    else
      graphs.start_ = std::move(*event);
  }
  graphs.streams_ = std::move(streams);
  return graphs;
}

Status StepGraphs::join(bool onlyUsed) {
  for (size_t i = 1; i < streams_.size(); ++i) {
    if (onlyUsed && !used_[i]) continue;
    SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(ends_[i].get(), streams_[i]), "cannot record an event"));
    SHEAF_RETURN_IF_ERROR(check(cudaStreamWaitEvent(streams_[0], ends_[i].get(), 0), "cannot wait for an event"));
  }
  return {};
}

Status StepGraphs::fork() {
  SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(start_.get(), streams_[0]), "cannot record an event"));
  for (size_t i = 1; i < streams_.size(); ++i)
    SHEAF_RETURN_IF_ERROR(check(cudaStreamWaitEvent(streams_[i], start_.get(), 0), "cannot wait for an event"));
  return {};
}

Status StepGraphs::beginCapture() {
  // Only this thread is held to what a capture allows: others, such as those of NCCL, may do what they must.
  SHEAF_RETURN_IF_ERROR(check(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal),
                              "cannot capture the step in a graph"));
  capturing_ = true;
  return fork();
}

void StepGraphs::dropCapture() {
  if (!capturing_) return;
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(streams_[0], &graph);
  (void)cudaGetLastError();
  if (graph) (void)cudaGraphDestroy(graph);
}

Status StepGraphs::endCapture(size_t graph) {
  Expected<GraphInstance> instance = endCapture();
  if (!instance.ok()) return instance.status();
  slots_[graph].instance = std::move(*instance);
  return {};
}

Expected<GraphInstance> StepGraphs::endCapture() {
  SHEAF_RETURN_IF_ERROR(join(false));
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  SHEAF_RETURN_IF_ERROR(
      check(cudaStreamEndCapture(streams_[0], &captured), "the step cannot be captured in a graph (--no-graphs)"));
  Graph graph(captured);
  cudaGraphExec_t instance = nullptr;
  // Without the flag all of a graph has the priority of the stream that it is launched on.
  SHEAF_RETURN_IF_ERROR(check(cudaGraphInstantiate(&instance, captured, cudaGraphInstantiateFlagUseNodePriority),
                              "cannot make the step's graph (--no-graphs)"));
  return GraphInstance(instance);
}

Status StepGraphs::launch(size_t graph) {
  Slot& slot = slots_[graph];
  SHEAF_RETURN_IF_ERROR(join(true));
  SHEAF_RETURN_IF_ERROR(check(cudaGraphLaunch(slot.instance.get(), streams_[0]), "cannot launch the step's graph"));
  SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(slot.done.get(), streams_[0]), "cannot record an event"));
  slot.launched = true;
  last_ = static_cast<int>(graph);
  used_.assign(used_.size(), false);
  ordered_.assign(ordered_.size(), false);
  return {};
}

Status StepGraphs::wait(size_t graph) {
  if (!slots_[graph].launched) return {};
  return check(cudaEventSynchronize(slots_[graph].done.get()), "cannot wait for a step");
}

Status StepGraphs::enter(size_t stream) {
  if (capturing_) return {};
  used_[stream] = true;
  if (ordered_[stream] || last_ < 0) return {};
  ordered_[stream] = true;
  if (stream == 0) return {};
  return check(cudaStreamWaitEvent(streams_[stream], slots_[static_cast<size_t>(last_)].done.get(), 0),
               "cannot wait for an event");
}

}  // namespace sheaf::cuda
