#include "ir/Train/FusionCost.h"

using namespace mlir;

namespace sheaf::train {

int elementCost(Operation* op) {
  auto elementwise = dyn_cast<FusableElementwise>(op);
  return elementwise ? elementwise.operationCost() : 1;
}

bool isElementaryFunction(Operation* op) {
  return elementCost(op) >= 12;
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
