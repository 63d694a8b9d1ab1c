#include "runtime/device/cuda/nccl/LaunchOrder.h"

#include "runtime/device/cuda/nccl/Environment.h"

namespace sheaf::nccl {
namespace {

constexpr int kImplicitOrder = 22600;  // the first version that can order launches by itself

}  // namespace

Status LaunchOrder::open(int version, size_t streams, bool byNccl) {
  const bool itself = version >= kImplicitOrder && launchesAreOrdered(byNccl && streams > 1);
  if (streams <= 1) return {};
  text_ = itself ? "nccl" : "events";
  if (itself) return {};
  Expected<cuda::Event> event = cuda::makeEvent();
  if (!event.ok()) return event.status();
  event_ = std::move(*event);
  return {};
}

Status LaunchOrder::awaitLast(cudaStream_t stream) {
  if (!event_ || !last_ || last_ == stream) return {};
  return cuda::check(cudaStreamWaitEvent(stream, event_.get(), 0), "cannot wait for an event");
}

Status LaunchOrder::record(cudaStream_t stream) {
  if (!event_) return {};
  last_ = stream;
  return cuda::check(cudaEventRecord(event_.get(), stream), "cannot record an event");
}

}  // namespace sheaf::nccl
