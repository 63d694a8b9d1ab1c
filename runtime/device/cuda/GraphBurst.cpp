// Instructions as a graph of their own, timed by the GPU's events: what they take in a step, which is a graph, too.
#include "runtime/device/cuda/CudaContext.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {

class CudaContext::GraphBurst : public Burst {
 public:
  GraphBurst(CudaContext& context, GraphInstance graph, Event begin, Event end)
      : context_(context), graph_(std::move(graph)), begin_(std::move(begin)), end_(std::move(end)) {}

  Expected<double> run() override {
    context_.progress_.setBusy(true);
    const cudaStream_t stream = context_.streams_[0].get();
    SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(begin_.get(), stream), "cannot record an event"));
    SHEAF_RETURN_IF_ERROR(check(cudaGraphLaunch(graph_.get(), stream), "cannot launch the graph"));
    SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(end_.get(), stream), "cannot record an event"));
    SHEAF_RETURN_IF_ERROR(context_.synchronize());
    float milliseconds = 0;
    SHEAF_RETURN_IF_ERROR(check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cannot read a time"));
    return double{milliseconds} * 1e-3;
  }

 private:
  CudaContext& context_;
  const GraphInstance graph_;
  const Event begin_, end_;
};

Status CudaContext::enqueueAll(std::span<const plan::Instruction* const> instructions) {
  const Values values = std::make_shared<StepValues>();
  for (const plan::Instruction* instruction : instructions) {
    Entry* entry = table_->find(*instruction);
    if (!entry) return Status::error("the instruction is not in the plan");
    Status status = graphs_->enter(instruction->stream());
    if (status.ok()) status = enqueue(*entry, values);
    if (!status.ok()) return Status::error(cat(plan::describe(*world_->plan, *instruction), ": ", status.message()));
  }
  return {};
}

Expected<std::unique_ptr<Burst>> CudaContext::prepare(std::span<const plan::Instruction* const> instructions) {
  if (!world_->options.graphs || !world_->communicators->capturable()) return std::unique_ptr<Burst>();
  // The host's part is asked for when an instruction is issued, not when a graph is launched.
  for (const plan::Instruction* instruction : instructions)
    if (const Entry* entry = table_->find(*instruction); entry && entry->asksHost()) return std::unique_ptr<Burst>();
  progress_.setBusy(true);
  for (int64_t i = 0; i < kRunsBeforeGraphs; ++i) {
    SHEAF_RETURN_IF_ERROR(enqueueAll(instructions));
    SHEAF_RETURN_IF_ERROR(synchronize());
  }
  world_->communicators->beginOrder();
  Status status = graphs_->beginCapture();
  if (status.ok()) status = enqueueAll(instructions);
  Expected<GraphInstance> graph = status.ok() ? graphs_->endCapture() : Expected<GraphInstance>(status);
  graphs_->dropCapture();  // it is still open after an error
  world_->communicators->beginOrder();
  if (!graph.ok()) return graph.status();
  Expected<Event> begin = makeEvent(true), end = makeEvent(true);
  if (!begin.ok()) return begin.status();
  if (!end.ok()) return end.status();
  return std::unique_ptr<Burst>(
      std::make_unique<GraphBurst>(*this, std::move(*graph), std::move(*begin), std::move(*end)));
}

}  // namespace sheaf::cuda
