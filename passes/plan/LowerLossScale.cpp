// Lowers the loss scale: its state, the step scalars that follow from it, and its change at the end of the step.
#include "passes/plan/Lowering.h"

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

LogicalResult Lowering::declareLossScale() {
  if (!step || step.getBody().front().getOps<train::LossScaleOp>().empty()) return success();
  auto training = module->getAttrOfType<DictionaryAttr>("train.training");
  auto text = training ? training.getAs<StringAttr>("loss_scale") : StringAttr();
  Expected<std::optional<plan::LossScale>> parsed = plan::parseLossScale(text ? text.str() : "dynamic");
  if (!parsed.ok() || !*parsed)
    return module.emitError() << "the step scales its loss, and train.training has no rule for the loss scale";
  lossScale = **parsed;
  lossScaleState = buffer("loss_scale", plan::OPTIMIZER, plan::kLossScaleState * 8, true);
  LossScaleOp::create(head, module.getLoc(), lossScaleState);
  updateScalarBuffer = buffer("update_scalars", plan::ACTIVATIONS, 0);
  updateScalar(plan::UpdateScalarCall());  // the scale itself is the first
  return success();
}

Operand Lowering::updateScalar(const plan::UpdateScalarCall& scalar, int64_t rateSlot) {
  const UpdateScalar wanted{scalar, rateSlot};
  auto known = llvm::find(updateScalars, wanted);
  const int64_t slot = known - updateScalars.begin();
  if (known == updateScalars.end()) updateScalars.push_back(wanted);
  return {updateScalarBuffer, slot * 4, 4, 0, kRead};
}

std::optional<Operand> Lowering::updateScalar(const StepScalar& scalar) {
  const std::optional<plan::UpdateScalar> kind = lossScale ? kindOf(scalar.kind) : std::nullopt;
  if (!kind) return std::nullopt;
  const bool takesValue = *kind != plan::UpdateScalar::kStep && *kind != plan::UpdateScalar::kFirstStep;
  const plan::UpdateScalarCall call{*kind, takesValue ? scalar.value : 0};
  return updateScalar(call, call.hasRate() ? scalarSlot({plan::StepScalar::LR_TIMES, 1, scalar.group}) : 0);
}

// The insertion point is at the start of the body, after the step scalars.
void Lowering::computeUpdateScalars() {
  if (!lossScale) return;
  updateScalarBuffer.getDefiningOp<BufferOp>().setBytes(updateScalars.size() * 4);
  for (size_t slot = 0; slot < updateScalars.size(); ++slot) computeUpdateScalar(slot);
}

void Lowering::computeUpdateScalar(int64_t slot) {
  const UpdateScalar& scalar = updateScalars[slot];
  SmallVector<Operand> operands{{lossScaleState, 0, plan::kLossScaleState * 8, 0, kRead},
                                {updateScalarBuffer, slot * 4, 4, 0, kWrite}};
  if (scalar.call.hasRate()) operands.push_back({scalarBuffer, scalar.rateSlot * 4, 4, 0, kRead});
  call(NameLoc::get(head.getStringAttr("update scalars")), scalar.call, operands);
}

void Lowering::advanceLossScale() {
  if (!lossScale) return;
  auto loc = NameLoc::get(head.getStringAttr("loss scale"));
  call(loc, plan::AdvanceLossScaleCall{plan::ruleOf(*lossScale)},
       {{normScalars, 0, 8, 0, kRead}, {lossScaleState, 0, plan::kLossScaleState * 8, 0, kReadWrite}});
}

}  // namespace sheaf::plan_ir
