// update_scalar and advance_loss_scale, on the thread that issues them.
#include "runtime/device/cpu/LibraryFunction.h"

namespace sheaf::cpu {
namespace {

class UpdateScalar : public LibraryFunction {
 public:
  using Call = plan::UpdateScalarCall;

  explicit UpdateScalar(const Call& call) : call_(call), rate_(plan::operandIndex<"rate">(call)) {}

  Status run(const Invocation& invocation) const override {
    *invocation.operand<float>(plan::kOperand<Call, "result">) =
        plan::updateScalar(call_.kind, call_.value, invocation.operand<double>(plan::kOperand<Call, "state">),
                           invocation.operand<float>(rate_));
    return Status();
  }

 private:
  const Call call_;
  const int rate_;
};

class AdvanceLossScale : public LibraryFunction {
 public:
  using Call = plan::AdvanceLossScaleCall;

  explicit AdvanceLossScale(const Call& call) : rule_(call) {}

  Status run(const Invocation& invocation) const override {
    const bool finite = invocation.operand<float>(plan::kOperand<Call, "scalars">)[1] != 0;
    plan::advanceLossScale(rule_, finite, invocation.operand<double>(plan::kOperand<Call, "state">));
    return Status();
  }

 private:
  const plan::LossScaleRule rule_;
};

}  // namespace

Function makeFunction(const plan::UpdateScalarCall& call, const CallSite&) {
  return std::make_unique<UpdateScalar>(call);
}

Function makeFunction(const plan::AdvanceLossScaleCall& call, const CallSite&) {
  return std::make_unique<AdvanceLossScale>(call);
}

}  // namespace sheaf::cpu
