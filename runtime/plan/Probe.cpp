#include "runtime/plan/Probe.h"

#include <algorithm>

#include "runtime/plan/Library.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {

void makeProbe(Plan& plan, int64_t ranks, const std::vector<SampleKernel>& samples) {
  plan.set_version(kPlanVersion);
  plan.set_model("probe");
  plan.set_ranks(ranks);
  plan.set_batch(ranks);
  plan.set_max_threads(1);
  plan.add_streams("compute");
  plan.set_events(0);
  // What kernels read has to be written first.
  *plan.add_body()->mutable_call() = toWire(ZeroCall());
  uint64_t bytes = 0;
  for (const SampleKernel& sample : samples) {
    const Kernel& kernel = plan.kernels(sample.kernel);
    Instruction* instruction = plan.add_body();
    instruction->set_label(kernel.symbol());
    KernelLaunch* launch = instruction->mutable_kernel();
    launch->set_kernel(static_cast<uint32_t>(sample.kernel));
    launch->set_rows(kernel.rows());
    launch->set_block(kernel.block());
    uint64_t end = 0;
    for (int i = 0; i < kernel.operand_bytes_size(); ++i) {
      const int place = sample.sharesWith[static_cast<size_t>(i)];
      Operand* operand = instruction->add_operands();
      operand->set_offset(place < 0 ? end : instruction->operands(place).offset());
      operand->set_bytes(kernel.operand_bytes(i));
      operand->set_access(kernel.operand_access(i));
      if (place < 0) end = aligned(end + kernel.operand_bytes(i));
    }
    bytes = std::max(bytes, end);
  }
  Buffer* buffer = plan.add_buffers();
  buffer->set_name("samples");
  buffer->set_kind(WORKSPACE);
  buffer->set_bytes(bytes);
  Operand* whole = plan.mutable_body(0)->add_operands();
  whole->set_bytes(bytes);
  whole->set_access(WRITE);
  plan.mutable_memory()->set_peak_bytes(bytes);
  plan.mutable_memory()->set_library_bytes(libraryBytes(plan));
  declareMemoryByKind(plan);
}

bool isProbe(const Plan& plan) {
  if (plan.buckets_size() + plan.inputs_size() + plan.constants_size() > 0) return false;
  if (plan.prologue_size() + plan.epilogue_size() > 0 || plan.body_size() < 2) return false;
  return plan.body(0).call().function() == "zero" &&
         std::all_of(plan.body().begin() + 1, plan.body().end(), [](const auto& each) { return each.has_kernel(); });
}

std::vector<SampleKernel> samplesOf(const Plan& probe) {
  std::vector<SampleKernel> samples;
  for (const Instruction& instruction : probe.body()) {
    if (!instruction.has_kernel()) continue;
    const int index = static_cast<int>(instruction.kernel().kernel());
    const Kernel& kernel = probe.kernels(index);
    SampleKernel sample{index, {}};
    for (int i = 0; i < instruction.operands_size(); ++i) {
      int place = -1;
      for (int earlier = 0; earlier < i && place < 0; ++earlier)
        if (sample.sharesWith[static_cast<size_t>(earlier)] < 0 &&
            instruction.operands(earlier).offset() == instruction.operands(i).offset() &&
            kernel.operand_bytes(earlier) == kernel.operand_bytes(i))
          place = earlier;
      sample.sharesWith.push_back(place);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace sheaf::plan
