#include "runtime/device/cuda/HostCompute.h"

#include "runtime/device/cpu/RaceRanges.h"
#include "runtime/device/cuda/HostArena.h"

namespace sheaf::cuda {

Expected<std::unique_ptr<HostCompute>> HostCompute::create(int threads, int node, HostThread::Fail fail) {
  auto begin = [node] { runOnNode(node); };
  std::unique_ptr<HostCompute> compute(new HostCompute(threads, begin));
  auto thread = HostThread::create(std::move(fail), begin);
  if (!thread.ok()) return thread.status();
  compute->thread_ = std::move(*thread);
  return compute;
}

void HostCompute::request(std::shared_ptr<const Request> request) {
  const plan::Instruction& instruction = *request->instruction;
  thread_->request(instruction, [this, request = std::move(request)] { return perform(*request); });
}

// The other side of enqueue().
Status HostCompute::perform(const Request& request) {
  if (!thread_->await()) return {};
  cpu::declareAccesses(*request.instruction, request.operands.data());
  cpu::runKernel(request.launch, request.operands.data(), pool_);
  thread_->report();
  return {};
}

}  // namespace sheaf::cuda
