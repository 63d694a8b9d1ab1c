#include "ir/Train/FusionCost.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace sheaf::train {

int elementCost(Operation* op) {
  return TypeSwitch<Operation*, int>(op)
      .Case<DivOp, SqrtOp, RsqrtOp, ReciprocalOp, ModOp>([](auto) { return 6; })
      .Case<ExpOp>([](auto) { return 15; })
      .Case<LogOp, SigmoidOp>([](auto) { return 22; })
      .Case<TanhOp, ErfOp, SinOp, CosOp>([](auto) { return 32; })
      .Case<PowOp>([](auto) { return 120; })
      .Default([](Operation*) { return 1; });
}

int64_t fusionOperations(FusionOp fusion) {
  int64_t operations = 0;
  for (Operation& op : fusion.getBody().front().without_terminator()) {
    if (isa<BroadcastOp, ReshapeOp, ConstantOp, IotaOp>(op)) continue;
    int64_t elements = 0;
    for (Value operand : op.getOperands())
      elements = std::max(elements, cast<RankedTensorType>(operand.getType()).getNumElements());
    operations += elementCost(&op) * elements;
  }
  return operations;
}

}  // namespace sheaf::train
