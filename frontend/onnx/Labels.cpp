#include "frontend/onnx/Labels.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

bool isInteger(Value v) {
  auto type = dyn_cast<IntegerType>(getElementTypeOrSelf(v.getType()));
  return type && type.getWidth() > 1;
}

unsigned widthOf(Value v) {
  return getElementTypeOrSelf(v.getType()).getIntOrFloatBitWidth();
}

// The input that labels come from. `all`: each of its elements is one, unchanged.
BlockArgument inputOf(Value v, bool& all) {
  all = true;
  while (v) {
    if (auto argument = dyn_cast<BlockArgument>(v)) return argument;
    Operation* op = v.getDefiningOp();
    const bool widened =
        isa<train::CastOp>(op) && isInteger(op->getOperand(0)) && widthOf(op->getOperand(0)) <= widthOf(v);
    all &= widened || isa<train::ReshapeOp, train::TransposeOp>(op);
    // Shifted, padded or masked labels come from one operand; the others are constants.
    Value next;
    for (Value operand : op->getOperands()) {
      if (!isInteger(operand) || operand.getDefiningOp<train::ConstantOp>() || operand == next) continue;
      if (next) return {};
      next = operand;
    }
    v = next;
  }
  return {};
}

func::FuncOp functionOf(BlockArgument argument) {
  return dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
}

bool isOfTokens(BlockArgument argument) {
  return cast<RankedTensorType>(argument.getType()).getRank() == 2;
}

}  // namespace

void stateLabels(const Tensor& labels, int64_t classes, std::optional<int64_t> ignored) {
  bool all = false;
  BlockArgument argument = labels && labels.value() ? inputOf(labels.value(), all) : BlockArgument();
  func::FuncOp function = argument ? functionOf(argument) : func::FuncOp();
  if (!function) return;
  Builder builder(function.getContext());
  const unsigned index = argument.getArgNumber();
  if (isOfTokens(argument)) function.setArgAttr(index, "train.tokens", builder.getUnitAttr());
  // Of two losses of the same labels the first one says.
  if (!all || classes < 1 || function.getArgAttr(index, "train.classes")) return;
  function.setArgAttr(index, "train.classes", builder.getI64IntegerAttr(classes));
  if (ignored) function.setArgAttr(index, "train.ignored_label", builder.getI64IntegerAttr(*ignored));
}

void statePerplexity(const Tensor& loss) {
  Value v = loss ? loss.value() : Value();
  train::CrossEntropyOp entropy;
  for (bool mean = false; v && !entropy;) {
    Operation* op = v.getDefiningOp();
    if (!op) return;
    auto reduce = dyn_cast<train::ReduceOp>(op);
    mean |= isa<train::DivOp>(op) || (reduce && reduce.getKind() == train::ReduceKind::mean);
    if (mean) entropy = dyn_cast<train::CrossEntropyOp>(op);
    if (entropy && v != entropy.getLoss()) return;
    const bool same =
        isa<train::ReshapeOp, train::CastOp, train::DivOp>(op) ||
        (reduce && (reduce.getKind() == train::ReduceKind::mean || reduce.getKind() == train::ReduceKind::sum));
    if (!same && !entropy) return;
    v = op->getOperand(0);
  }
  if (!entropy) return;
  bool all = false;
  BlockArgument argument = inputOf(entropy.getLabels(), all);
  if (func::FuncOp function = argument && isOfTokens(argument) ? functionOf(argument) : func::FuncOp())
    function.setArgAttr(argument.getArgNumber(), "train.perplexity", Builder(function.getContext()).getUnitAttr());
}

}  // namespace sheaf::frontend
