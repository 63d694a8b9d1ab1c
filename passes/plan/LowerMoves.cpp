// Lowers ops that move elements: views where that is enough, else copies of strided ranges.
#include "passes/plan/LowerOps.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

SmallVector<int64_t> denseStrides(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size(), 1);
  for (int64_t d = int64_t(shape.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  return strides;
}

// Returns true if every reader of rows of so many elements, a slice of the last dimension, can read them in place:
// attentions, through reshapes, where a row is a token. A row that is only one head of a token is not.
bool readInPlace(Value value, int64_t rowElements) {
  return llvm::all_of(value.getUses(), [&](OpOperand& use) {
    if (auto reshape = dyn_cast<train::ReshapeOp>(use.getOwner())) return readInPlace(reshape.getResult(), rowElements);
    return isa<train::AttentionOp, train::AttentionGradOp>(use.getOwner()) && use.getOperandNumber() < 3 &&
           tokenElements(use.get()) == rowElements;
  });
}

// Returns true if a slice is one piece of its operand, which begins at element `begin`.
bool isContiguous(train::SliceOp op, int64_t& begin) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  SmallVector<int64_t> strides = denseStrides(from.getShape());
  bool several = false;  // elements of dimensions so far
  for (int64_t d = 0; d < from.getRank(); ++d) {
    if (several && to.getDimSize(d) != from.getDimSize(d)) return false;
    if (to.getDimSize(d) > 1 && op.getSteps()[d] != 1) return false;
    several |= to.getDimSize(d) > 1;
    begin += op.getStarts()[d] * strides[d];
  }
  return true;
}

}  // namespace

LogicalResult lower(Lowering& l, train::SliceOp op) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  int64_t width = widthOf(from.getElementType()), last = from.getRank() - 1;
  Location source = l.places.of(op.getOperand());
  bool lastOnly = last >= 0 && op.getSteps()[last] == 1 && !source.rowStride;
  for (int64_t d = 0; d < last; ++d) lastOnly &= from.getDimSize(d) == to.getDimSize(d) && op.getSteps()[d] == 1;
  if (lastOnly && readInPlace(op.getResult(), to.getDimSize(last))) {
    source.offset += op.getStarts()[last] * width;
    source.rowStride = from.getDimSize(last) * width;
    source.rowBytes = to.getDimSize(last) * width;
    l.places[op.getResult()] = source;
    return success();
  }
  SmallVector<int64_t> strides = denseStrides(from.getShape());
  // Elements that lie side by side are read where they are.
  if (int64_t begin = 0; isContiguous(op, begin) && !source.rowStride && begin * width % plan::kAlignment == 0) {
    source.offset += begin * width;
    l.places[op.getResult()] = source;
    return success();
  }
  const Operand result = l.places.place(op.getResult());
  int64_t offset = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    offset += op.getStarts()[d] * strides[d];
    strides[d] *= op.getSteps()[d];
  }
  l.builder.copy(labelOf(op), l.places.operand(op.getOperand(), kRead), result,
                 {width, to.getShape(), strides, denseStrides(to.getShape()), offset});
  return success();
}

LogicalResult lower(Lowering& l, train::ConcatOp op) {
  auto to = tensor(op.getResult());
  int64_t axis = op.getAxis(), width = widthOf(to.getElementType()), begin = 0;
  if (!l.places.contains(op.getResult())) l.places.place(op.getResult());
  SmallVector<int64_t> strides = denseStrides(to.getShape());
  Operand whole = l.places.operand(op.getResult(), kWrite);
  for (Value piece : op.getOperands()) {
    auto type = tensor(piece);
    Location at = l.places.of(piece);
    // A piece that was written in place needs no copy.
    const bool inPlace =
        at.buffer == whole.buffer && (at.rowStride || at.offset == whole.offset + begin * strides[axis] * width);
    if (!inPlace) {
      Operand part = whole;
      part.offset += begin * strides[axis] * width;
      part.bytes -= begin * strides[axis] * width;
      l.builder.copy(labelOf(op), l.places.operand(piece, kRead), part,
                     {width, type.getShape(), denseStrides(type.getShape()), strides});
    }
    begin += type.getDimSize(axis);
  }
  return success();
}

LogicalResult lower(Lowering& l, train::ReshapeOp op) {
  l.places[op.getResult()] = l.places.of(op.getOperand());
  return success();
}

LogicalResult lower(Lowering& l, train::TransposeOp op) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  SmallVector<int64_t> strides, natural = denseStrides(from.getShape());
  for (int64_t p : op.getPermutation()) strides.push_back(natural[p]);
  const Operand result = l.places.place(op.getResult());
  l.builder.copy(labelOf(op), l.places.operand(op.getOperand(), kRead), result,
                 {widthOf(from.getElementType()), to.getShape(), strides, denseStrides(to.getShape())});
  return success();
}

LogicalResult lower(Lowering& l, train::ReverseOp op) {
  auto type = tensor(op.getResult());
  SmallVector<int64_t> natural = denseStrides(type.getShape()), strides = natural;
  int64_t offset = 0;
  for (int64_t axis : op.getAxes()) {
    offset += natural[axis] * (type.getDimSize(axis) - 1);
    strides[axis] = -natural[axis];
  }
  const Operand result = l.places.place(op.getResult());
  l.builder.copy(labelOf(op), l.places.operand(op.getOperand(), kRead), result,
                 {widthOf(type.getElementType()), type.getShape(), strides, natural, offset});
  return success();
}

LogicalResult lower(Lowering& l, train::PadOp op) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  int64_t width = widthOf(from.getElementType());
  SmallVector<int64_t> strides = denseStrides(to.getShape());
  int64_t offset = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    offset += op.getLow()[d] * strides[d];
    strides[d] *= op.getInterior()[d] + 1;
  }
  const Operand whole = l.places.place(op.getResult());
  l.builder.call(labelOf(op), plan::ZeroCall(), {whole});
  Operand inner = whole;
  inner.offset += offset * width;
  inner.bytes -= offset * width;
  l.builder.copy(labelOf(op), l.places.operand(op.getOperand(), kRead), inner,
                 {width, from.getShape(), denseStrides(from.getShape()), strides});
  return success();
}

}  // namespace sheaf::plan_ir
