#include "runtime/device/cuda/LibraryFunction.h"

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {

int CallSite::alignment(int index) const {
  const plan::Operand& operand = instruction.operands(index);
  const uint64_t all = plan::kAlignment | operand.offset() | operand.shard_stride();
  return static_cast<int>(all & (~all + 1));
}

Expected<std::unique_ptr<const LibraryFunction>> makeLibraryFunction(const plan::Instruction& instruction, int64_t seed,
                                                                     Blas& blas) {
  const plan::LibraryCall& wire = instruction.call();
  const Expected<plan::AnyCall> call = plan::parseCall(wire);
  if (!call.ok()) return call.status();
  const uint64_t scratch = plan::deviceScratch(*call);
  if (wire.device_scratch() < scratch)
    return Status::error(cat(wire.function(), " needs ", bytesText(scratch), " of scratch on a GPU, but the plan has ",
                             bytesText(wire.device_scratch()), ": compile it for one (--target cuda:sm_90)"));
  return std::visit([&](const auto& each) { return makeFunction(each, CallSite{instruction, seed, blas}); }, *call);
}

}  // namespace sheaf::cuda
