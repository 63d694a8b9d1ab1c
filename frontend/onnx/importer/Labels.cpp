#include "frontend/onnx/importer/Labels.h"

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

// By how many places an op moves the last dimension of a matrix of tokens that it takes from `from`.
int64_t shiftOf(Operation* op, Value from) {
  if (cast<RankedTensorType>(from.getType()).getRank() != 2) return 0;
  if (auto slice = dyn_cast<train::SliceOp>(op)) return slice.getSteps()[1] == 1 ? slice.getStarts()[1] : 0;
  if (auto pad = dyn_cast<train::PadOp>(op)) return -pad.getLow()[1];
  auto concat = dyn_cast<train::ConcatOp>(op);
  if (!concat || concat.getAxis() != 1) return 0;
  int64_t before = 0;
  for (Value operand : concat.getOperands()) {
    if (operand == from) break;
    before += cast<RankedTensorType>(operand.getType()).getDimSize(1);
  }
  return -before;
}

// The input that labels come from. `all`: each of its elements is one, unchanged. `shift`: how many tokens further each
// label stands in its row of the input.
BlockArgument inputOf(Value v, bool& all, int64_t& shift) {
  all = true;
  shift = 0;
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
    if (next) shift += shiftOf(op, next);
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
  int64_t shift = 0;
  BlockArgument argument = labels && labels.value() ? inputOf(labels.value(), all, shift) : BlockArgument();
  func::FuncOp function = argument ? functionOf(argument) : func::FuncOp();
  if (!function) return;
  Builder builder(function.getContext());
  const unsigned index = argument.getArgNumber();
  if (isOfTokens(argument)) function.setArgAttr(index, "train.tokens", builder.getUnitAttr());
  if (isOfTokens(argument) && shift > 0) function.setArgAttr(index, "train.shifted", builder.getUnitAttr());
  // Of two losses of the same labels the first one says.
  if (!all || classes < 1 || function.getArgAttr(index, "train.classes")) return;
  function.setArgAttr(index, "train.classes", builder.getI64IntegerAttr(classes));
  if (ignored) function.setArgAttr(index, "train.ignored_label", builder.getI64IntegerAttr(*ignored));
}

void stateIds(const Tensor& ids, int64_t rows) {
  bool all = false;
  int64_t shift = 0;
  BlockArgument argument = ids && ids.value() ? inputOf(ids.value(), all, shift) : BlockArgument();
  func::FuncOp function = argument && all && rows > 0 ? functionOf(argument) : func::FuncOp();
  if (!function || function.getArgAttr(argument.getArgNumber(), "train.classes")) return;
  Builder builder(function.getContext());
  function.setArgAttr(argument.getArgNumber(), "train.classes", builder.getI64IntegerAttr(rows));
  function.setArgAttr(argument.getArgNumber(), "train.ids", builder.getUnitAttr());
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
  int64_t shift = 0;
  BlockArgument argument = inputOf(entropy.getLabels(), all, shift);
  if (func::FuncOp function = argument && isOfTokens(argument) ? functionOf(argument) : func::FuncOp())
    function.setArgAttr(argument.getArgNumber(), "train.perplexity", Builder(function.getContext()).getUnitAttr());
}

}  // namespace sheaf::frontend
