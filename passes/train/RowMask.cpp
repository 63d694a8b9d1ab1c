#include "passes/train/RowMask.h"

#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;

namespace sheaf::train {
namespace {

Value skipViews(Value v) {
  while (Operation* op = v.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp, CastOp, NegOp>(op)) break;
    v = op->getOperand(0);
  }
  return v;
}

}  // namespace

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

Value RowMask::count() {
  if (counted) return counted;
  OpBuilder builder = OpBuilder::atBlockBegin(&step.getBody().front());
  TensorBuilder t{builder, step.getLoc()};
  Value own = t.reshape(t.reduce(ReduceKind::sum, mask, {0}), {});
  counted = GlobalSumOp::create(builder, step.getLoc(), own.getType(), own);
  return counted;
}

void RowMask::weigh(LossOp loss) {
  Value value = skipViews(loss.getValue()), weight;
  while (auto product = value.getDefiningOp<MulOp>()) {
    auto isConstant = [](Value v) { return matchPattern(v, m_Constant()); };
    if (!isConstant(product.getLhs()) && !isConstant(product.getRhs())) break;
    value = skipViews(isConstant(product.getLhs()) ? product.getRhs() : product.getLhs());
  }
  if (auto quotient = value.getDefiningOp<DivOp>())
    if (Value divisor = skipViews(quotient.getRhs()); divisor.getDefiningOp<GlobalSumOp>()) weight = divisor;
  if (!weight || TensorBuilder::typeOf(weight).getNumElements() != 1) weight = count();
  OpBuilder builder(loss->getContext());
  builder.setInsertionPointAfter(loss);
  TensorBuilder t{builder, loss.getLoc()};
  weight = t.cast(t.reshape(weight, {}), builder.getF32Type());
  OutputOp::create(builder, loss.getLoc(), "loss_weight", "loss weight", weight);
}

}  // namespace sheaf::train
