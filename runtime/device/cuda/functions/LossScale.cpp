// update_scalar and advance_loss_scale.
#include "runtime/device/cuda/kernels/LossScale.h"

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {

MadeFunction makeFunction(const plan::UpdateScalarCall& call, const CallSite&) {
  using Call = plan::UpdateScalarCall;
  return enqueues([call](const Invocation& invocation) {
    return toStatus(updateScalar(invocation.stream, call.kind, call.value,
                                 invocation.operand<double>(plan::kOperand<Call, "state">),
                                 invocation.operand<float>(plan::operandIndex<"rate">(call)),
                                 invocation.operand<float>(plan::kOperand<Call, "result">)));
  });
}

MadeFunction makeFunction(const plan::AdvanceLossScaleCall& call, const CallSite&) {
  using Call = plan::AdvanceLossScaleCall;
  return enqueues([call](const Invocation& invocation) {
    return toStatus(advanceLossScale(invocation.stream, call,
                                     invocation.operand<float>(plan::kOperand<Call, "scalars">),
                                     invocation.operand<double>(plan::kOperand<Call, "state">)));
  });
}

}  // namespace sheaf::cuda
