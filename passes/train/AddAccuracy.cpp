#include "passes/train/AddAccuracy.h"

#include <limits>

#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::train {
namespace {

bool dependsOn(Operation* user, Operation* wanted) {
  SmallVector<Operation*> pending{user};
  DenseSet<Operation*> seen;
  while (!pending.empty()) {
    Operation* op = pending.pop_back_val();
    if (op == wanted) return true;
    if (!seen.insert(op).second) continue;
    for (Value operand : op->getOperands())
      if (Operation* producer = operand.getDefiningOp()) pending.push_back(producer);
  }
  return false;
}

}  // namespace

void addAccuracy(func::FuncOp step) {
  Block& body = step.getBody().front();
  // Of several cross entropies none is known to be the one that counts.
  auto losses = llvm::to_vector(body.getOps<LossOp>());
  auto entropies = llvm::to_vector(body.getOps<CrossEntropyOp>());
  if (losses.size() != 1 || entropies.size() != 1) return;
  CrossEntropyOp entropy = entropies.front();
  if (!dependsOn(losses.front(), entropy)) return;

  OpBuilder builder(losses.front());
  TensorBuilder t{builder, entropy.getLoc()};
  Value logits = entropy.getLogits(), labels = entropy.getLabels();
  auto shape = TensorBuilder::typeOf(logits).getShape();
  auto labelType = TensorBuilder::typeOf(labels).getElementType();
  Value column = t.make<IotaOp>(RankedTensorType::get(shape, labelType), 1);
  Value isLabel = t.compare(ComparePredicate::eq, column, t.broadcast(labels, shape));
  // The label's own logit, exactly: a sum of it and zeros.
  Value labelLogit = t.reduceRows(ReduceKind::sum, t.select(isLabel, logits, t.splatLike(logits, 0)));
  Value largest = t.reduceRows(ReduceKind::max, logits);
  Value counts = t.compare(ComparePredicate::ge, labels, t.splatLike(labels, 0));
  if (auto ignored = entropy.getIgnoreIndex())
    counts = t.make<AndOp>(counts.getType(), counts,
                           t.compare(ComparePredicate::ne, labels, t.splatLike(labels, double(int64_t(*ignored)))));
  // Equal logits predict the first class among them, as by PyTorch's and numpy's argmax: a model whose logits are all
  // equal predicts one class. So the largest logit before the label's must be smaller.
  Value isBefore = t.compare(ComparePredicate::lt, column, t.broadcast(labels, shape));
  Value lowest = t.splatLike(logits, -std::numeric_limits<double>::infinity());
  Value before = t.reduceRows(ReduceKind::max, t.select(isBefore, logits, lowest));
  Value predicted = t.make<AndOp>(counts.getType(), t.compare(ComparePredicate::ge, labelLogit, largest),
                                  t.compare(ComparePredicate::gt, labelLogit, before));
  Value right = t.make<AndOp>(counts.getType(), counts, predicted);
  auto output = [&](StringRef kind, StringRef name, Value rows) {
    Value sum = t.reduce(ReduceKind::sum, t.cast(rows, builder.getF32Type()), {0});
    OutputOp::create(builder, entropy.getLoc(), kind, name, t.reshape(sum, {}));
  };
  output("correct", "correct labels", right);
  output("labels", "labels", counts);
}

}  // namespace sheaf::train
