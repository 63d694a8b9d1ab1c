#include "passes/train/EqualRows.h"

#include "ir/Train/Constant.h"
#include "ir/Train/TensorBuilder.h"

using namespace mlir;

namespace sheaf::train {

OpOperand* firstWithRows(Operation* op, const BatchStates& states) {
  for (OpOperand& operand : op->getOpOperands())
    if (states.lookup(operand.get()).isSplit()) return &operand;
  return nullptr;
}

SmallVector<OpOperand*> operandsAlongRows(Operation* op, const BatchStates& states, int64_t size, bool sums) {
  OpOperand* first = firstWithRows(op, states);
  if (!first) return {};
  const int64_t dimension = states.lookup(first->get()).dimensions.front();
  // Operands of other ops have no dimension in common with the rows of another.
  auto product = dyn_cast<MatMulOp>(op);
  const bool meets =
      op->hasTrait<OpTrait::Elementwise>() ||
      isa<ConcatOp, ScatterOp, GatherElementsOp, AttentionOp, CrossEntropyOp, ConvGradFilterOp, MaxPoolGradOp>(op) ||
      (product && !sums && dimension == 0 && TensorBuilder::typeOf(product.getResult()).getRank() == 3);
  if (!meets) return {};
  SmallVector<OpOperand*> found;
  for (OpOperand& operand : op->getOpOperands()) {
    RankedTensorType type = TensorBuilder::typeOf(operand.get());
    if (states.lookup(operand.get()).isSplit() || type.getRank() <= dimension || type.getDimSize(dimension) != size)
      continue;
    // A sum of rows' updates is added to what has no rows.
    if (auto scatter = dyn_cast<ScatterOp>(op); scatter && sums && operand.get() == scatter.getData()) continue;
    found.push_back(&operand);
  }
  return found;
}

bool hasEqualParts(ConstantOp constant, int64_t dimension, int64_t part) {
  std::optional<Constant> whole = Constant::fromAttribute(constant.getValue());
  if (!whole) return false;
  if (whole->isSplat()) return true;
  OpBuilder builder(constant);
  SmallVector<int64_t> starts(whole->shape().size(), 0), sizes(whole->shape()), steps(starts.size(), 1);
  const int64_t size = std::exchange(sizes[dimension], part);
  std::optional<Constant> first;
  for (int64_t& start = starts[dimension]; start < size; start += part) {
    auto slice = SliceOp::create(builder, constant.getLoc(), constant, starts, sizes, steps);
    auto values = ConstantEvaluation(slice, *whole).run();
    slice.erase();
    if (failed(values)) return false;
    Constant& one = values->front();
    if (!first) first = one;
    if (first->stored != one.stored || *first->data != *one.data) return false;
  }
  return true;
}

LogicalResult checkConstants(Operation* op, const BatchStates& states, bool sums) {
  OpOperand* first = firstWithRows(op, states);
  if (!first) return success();
  const BatchState state = states.lookup(first->get());
  const int64_t dimension = state.dimensions.front();
  const int64_t size = TensorBuilder::typeOf(first->get()).getDimSize(dimension);
  if (state.rows == 1 || size != state.rows * state.minor) return success();
  for (OpOperand* operand : operandsAlongRows(op, states, size, sums)) {
    Value v = operand->get();
    for (auto broadcast = v.getDefiningOp<BroadcastOp>();
         broadcast && TensorBuilder::typeOf(broadcast.getOperand()).getDimSize(dimension) == size;
         broadcast = v.getDefiningOp<BroadcastOp>())
      v = broadcast.getOperand();
    auto iota = v.getDefiningOp<IotaOp>();
    auto constant = v.getDefiningOp<ConstantOp>();
    if ((iota && int64_t(iota.getAxis()) == dimension) ||
        (constant && !hasEqualParts(constant, dimension, state.minor)))
      return op->emitOpError(
          "takes a constant that differs from row to row of the batch, as a range of its size does, which is not "
          "supported with more than one rank: make it an input of the model, with a row for each of the batch's");
  }
  return success();
}

}  // namespace sheaf::train
