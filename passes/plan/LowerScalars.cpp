// Lowers the scalars of a step: those that the runtime computes, and with a loss scale its state, the scalars that
// follow from it, and its change at the end of the step.
#include "passes/plan/ZeroLowering.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

std::optional<plan::UpdateScalar> kindOf(plan::StepScalar::Kind kind) {
  switch (kind) {
    case plan::StepScalar::LR_OVER_BIAS_CORRECTION:
      return plan::UpdateScalar::kLrOverBiasCorrection;
    case plan::StepScalar::BIAS_CORRECTION:
      return plan::UpdateScalar::kBiasCorrection;
    case plan::StepScalar::SQRT_BIAS_CORRECTION:
      return plan::UpdateScalar::kSqrtBiasCorrection;
    case plan::StepScalar::STEP:
      return plan::UpdateScalar::kStep;
    case plan::StepScalar::FIRST_STEP:
      return plan::UpdateScalar::kFirstStep;
    default:
      return std::nullopt;
  }
}

}  // namespace

void ZeroLowering::declareScalarBuffers() {
  scalarBuffer_ = builder_.buffer("scalars", plan::ACTIVATIONS, 0);
  normScalars_ = builder_.buffer("norm_scalars", plan::ACTIVATIONS, 8);
}

LogicalResult ZeroLowering::declareLossScale() {
  if (!from_.step || from_.step.getBody().front().getOps<train::LossScaleOp>().empty()) return success();
  auto training = from_.module->getAttrOfType<DictionaryAttr>("train.training");
  auto text = training ? training.getAs<StringAttr>("loss_scale") : StringAttr();
  Expected<std::optional<plan::LossScale>> parsed = plan::parseLossScale(text ? text.str() : "dynamic");
  if (!parsed.ok() || !*parsed)
    return from_.module->emitError() << "the step scales its loss, and train.training has no rule for the loss scale";
  lossScale_ = **parsed;
  lossScaleState_ = builder_.buffer("loss_scale", plan::OPTIMIZER, plan::kLossScaleState * 8, true);
  builder_.plan().set_loss_scale_buffer(static_cast<uint32_t>(lossScaleState_));
  updateScalarBuffer_ = builder_.buffer("update_scalars", plan::ACTIVATIONS, 0);
  lossScale();  // it is the first
  return success();
}

int64_t ZeroLowering::scalarSlot(const StepScalar& scalar) {
  auto known = llvm::find(scalars_, scalar);
  if (known != scalars_.end()) return known - scalars_.begin();
  scalars_.push_back(scalar);
  return scalars_.size() - 1;
}

Operand ZeroLowering::updateScalar(const plan::UpdateScalarCall& scalar, int64_t rateSlot) {
  const UpdateScalar wanted{scalar, rateSlot};
  auto known = llvm::find(updateScalars_, wanted);
  const int64_t slot = known - updateScalars_.begin();
  if (known == updateScalars_.end()) updateScalars_.push_back(wanted);
  return {updateScalarBuffer_, slot * 4, 4, 0, kRead};
}

std::optional<Operand> ZeroLowering::updateScalar(const StepScalar& scalar) {
  const std::optional<plan::UpdateScalar> kind = lossScale_ ? kindOf(scalar.kind) : std::nullopt;
  if (!kind) return std::nullopt;
  const bool takesValue = *kind != plan::UpdateScalar::kStep && *kind != plan::UpdateScalar::kFirstStep;
  const plan::UpdateScalarCall call{*kind, takesValue ? scalar.value : 0};
  return updateScalar(call, call.hasRate() ? scalarSlot({plan::StepScalar::LR_TIMES, 1, scalar.group}) : 0);
}

void ZeroLowering::computeScalars(MutableArrayRef<func::FuncOp> parts) {
  const auto bytes = static_cast<int64_t>(scalars_.size()) * 4;
  for (const StepScalar& scalar : scalars_) {
    plan::StepScalar& made = *builder_.plan().add_scalars();
    made.set_kind(scalar.kind);
    made.set_value(scalar.value);
    made.set_group(static_cast<uint32_t>(scalar.group));
  }
  builder_.at(scalarBuffer_).set_bytes(bytes);
  if (lossScale_) builder_.at(updateScalarBuffer_).set_bytes(updateScalars_.size() * 4);
  builder_.atBegin(*builder_.plan().mutable_body(), [&] {
    if (bytes) builder_.add(kComputeStream, "step scalars", {{scalarBuffer_, 0, bytes, 0, kWrite}}).mutable_scalars();
    for (size_t slot = 0; slot < updateScalars_.size(); ++slot) computeUpdateScalar(slot);
  });
  for (auto [part, function] : llvm::zip(*builder_.plan().mutable_parts(), parts))
    if (!function.getBody().front().getOps<train::LossScaleOp>().empty())
      builder_.atBegin(*part.mutable_instructions(), [&] { computeUpdateScalar(0); });
}

void ZeroLowering::computeUpdateScalar(int64_t slot) {
  const UpdateScalar& scalar = updateScalars_[slot];
  SmallVector<Operand> operands{{lossScaleState_, 0, plan::kLossScaleState * 8, 0, kRead},
                                {updateScalarBuffer_, slot * 4, 4, 0, kWrite}};
  if (scalar.call.hasRate()) operands.push_back({scalarBuffer_, scalar.rateSlot * 4, 4, 0, kRead});
  builder_.call("update scalars", scalar.call, operands);
}

void ZeroLowering::advanceLossScale() {
  if (!lossScale_) return;
  builder_.call("loss scale", plan::AdvanceLossScaleCall{plan::ruleOf(*lossScale_)},
                {{normScalars_, 0, 8, 0, kRead}, {lossScaleState_, 0, plan::kLossScaleState * 8, 0, kReadWrite}});
}

}  // namespace sheaf::plan_ir
