#include "passes/train/RowLeaves.h"

#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "passes/train/AddAccuracy.h"
#include "passes/train/RowMask.h"

using namespace mlir;

namespace sheaf::train {
namespace {

class RowLeaves {
 public:
  RowLeaves(func::FuncOp step, int64_t rows) : step(step), rows(rows), mask(step), builder(step.getContext()) {}

  LogicalResult run() {
    if (mask) addAccuracy(step);
    findRows();
    for (Operation& op : llvm::make_early_inc_range(step.getBody().front())) {
      builder.setInsertionPoint(&op);
      TensorBuilder t{builder, op.getLoc()};
      if (auto output = dyn_cast<OutputOp>(op)) {
        if (failed(visitOutput(output, t))) return failure();
      } else if (isa<LossOp>(op) && mask) {
        weigh(&op, t);
      } else if (isa<LossOp, UpdateOp>(op)) {
        op.setOperand(0, t.mul(op.getOperand(0), 1.0 / double(rows)));
      }
    }
    return success();
  }

 private:
  func::FuncOp step;
  const int64_t rows;
  RowMask mask;
  OpBuilder builder;
  DenseSet<Value> ofRow;  // values that depend on the row's data

  void findRows() {
    for (BlockArgument argument : step.getArguments())
      if (!step.getArgAttr(argument.getArgNumber(), "train.whole")) ofRow.insert(argument);
    for (Operation& op : step.getBody().front())
      if (llvm::any_of(op.getOperands(), [&](Value v) { return ofRow.contains(v); }))
        ofRow.insert(op.result_begin(), op.result_end());
  }

  // The mean over the rows that count, of which the batch's loss weighs as many in the mean over all batches.
  void weigh(Operation* loss, TensorBuilder t) {
    const RankedTensorType type = TensorBuilder::typeOf(loss->getOperand(0));
    Value count = mask.count();
    loss->setOperand(0, t.div(masked(loss->getOperand(0), t), t.cast(count, type.getElementType())));
    OutputOp::create(builder, loss->getLoc(), "loss_weight", "loss weight", count);
  }

  // A scalar, or 0 if the row does not count.
  Value masked(Value scalar, TensorBuilder t) {
    Value own = t.reshape(mask.own(), {});
    return t.select(t.compare(ComparePredicate::gt, own, t.splatLike(own, 0)), scalar, t.splatLike(scalar, 0));
  }

  LogicalResult visitOutput(OutputOp output, TensorBuilder t) {
    Value value = output.getValue();
    if (!ofRow.contains(value)) return success();
    if (output.getKind() != "tensor") {
      Value term = masked(value, t);
      output->setOperand(0, GlobalSumOp::create(builder, output.getLoc(), term.getType(), term));
      return success();
    }
    const ArrayRef<int64_t> shape = TensorBuilder::typeOf(value).getShape();
    if (shape.empty() || shape.front() != 1)
      return output.emitOpError() << "'" << output.getName()
                                  << "' has no dimension for the rows of the batch, in a graph that is fixed to one of "
                                     "them: export the model with a dynamic batch";
    output.setBlocks(1);
    return success();
  }
};

}  // namespace

LogicalResult makeRowLeaves(func::FuncOp step, int64_t rows) {
  return RowLeaves(step, rows).run();
}

}  // namespace sheaf::train
