#include "passes/train/RowMask.h"

#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"

using namespace mlir;

namespace sheaf::train {

RowMask::RowMask(func::FuncOp step) : step(step) {
  for (BlockArgument argument : step.getArguments())
    if (step.getArgAttr(argument.getArgNumber(), "train.row_mask")) mask = argument;
}

Value RowMask::apply(Operation* user, Value value, int64_t axis, int64_t rows, int64_t minor) const {
  const ArrayRef<int64_t> shape = TensorBuilder::typeOf(value).getShape();
  const int64_t size = shape[axis];
  OpBuilder builder(user);
  TensorBuilder t{builder, user->getLoc()};
  Value own = t.broadcast(t.reshape(mask, {1, rows, 1}), {size / (rows * minor), rows, minor});
  SmallVector<int64_t> along(shape.size(), 1);
  along[axis] = size;
  own = t.broadcast(t.reshape(own, along), shape);
  Value counts = t.compare(ComparePredicate::gt, own, t.splatLike(own, 0));
  return t.select(counts, value, t.splatLike(value, 0));
}

int64_t RowMask::rows() const {
  return TensorBuilder::typeOf(mask).getDimSize(0);
}

Value RowMask::count() {
  if (counted) return counted;
  OpBuilder builder = OpBuilder::atBlockBegin(&step.getBody().front());
  TensorBuilder t{builder, step.getLoc()};
  Value own = t.reshape(t.reduce(ReduceKind::sum, mask, {0}), {});
  counted = GlobalSumOp::create(builder, step.getLoc(), own.getType(), own);
  return counted;
}

void markOutputRows(func::FuncOp step, int64_t rows) {
  for (OutputOp output : step.getOps<OutputOp>()) {
    const ArrayRef<int64_t> shape = TensorBuilder::typeOf(output.getValue()).getShape();
    if (output.getKind() == "tensor" && !shape.empty() && shape.front() % rows == 0) output.setBlocks(1);
  }
}

}  // namespace sheaf::train
