// Hands the partitioner's claims of the leaves' values to the check.
#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/IR/Matchers.h"
#include "passes/train/Partitioner.h"

using namespace mlir;

namespace sheaf::train {

void Partitioner::remember() {
  before = step.clone();
  Block &now = step.getBody().front(), &then = before->getBody().front();
  auto add = [&](auto values, auto were) {
    for (auto [v, was] : llvm::zip(values, were)) batchValues[v] = was;
  };
  add(now.getArguments(), then.getArguments());
  for (auto [op, was] : llvm::zip(now, then)) add(op.getResults(), was.getResults());
}

std::optional<Value> Partitioner::batchValueOf(Value v) const {
  auto found = batchValues.find(v);
  return found == batchValues.end() ? std::nullopt : std::optional(found->second);
}

Claim Partitioner::claimOf(Value v) const {
  const State state = stateOf(v);
  if (state.kind == State::Split) return {Claim::Split, {state.place.dimension, runOf(state.place)}};
  return {state.kind == State::Partial ? Claim::Partial : Claim::Whole, {}};
}

// `v` is of the same value of the batch as `like`.
Value Partitioner::claim(Value v, Value like) {
  if (before && v != like)
    if (auto of = batchValueOf(like)) batchValues[v] = *of;
  return v;
}

Value Partitioner::reshard(Value v, Value from) {
  if (before && v != from) reshards.insert(v);
  return claim(v, from);
}

LogicalResult Partitioner::checkClaims(OpCheck& check) {
  for (Operation& op : step.getBody().front())
    if (failed(checkOp(check, &op))) return failure();
  return success();
}

LogicalResult Partitioner::checkOp(OpCheck& check, Operation* op) {
  if (isa<LossOp, UpdateOp>(op)) return check.checkEffect(op, claimOf(op->getOperand(0)));
  if (op->getNumOperands() == 0 || op->getNumResults() == 0) return success();
  Value first = op->getResult(0);
  auto scale = scaled.find(first);
  Value term = scale == scaled.end() ? first : scale->second.second;
  const auto of = batchValueOf(term);
  if (!of) return success();
  if (reshards.contains(first)) return success();
  if (auto norm = dyn_cast<BatchNormOp>(op); norm && norm.getLocal() && isSplit(norm.getOperand()))
    return check.skip(op, "normalizes by the moments of a leaf's own rows, which the batch's op does not"), success();
  if (auto share = dyn_cast<MulOp>(op); share && batchValueOf(share.getLhs()) == of) {
    DenseElementsAttr number;
    if (matchPattern(share.getRhs(), m_Constant(&number)) && number.isSplat() &&
        claimOf(share.getLhs()).kind == Claim::Whole)
      return check.checkTerm(op, number.getSplatValue<APFloat>().convertToDouble());
  }
  Operation* batch = of->getDefiningOp();
  if (!batch || batch->getName() != op->getName() || batch->getNumOperands() != op->getNumOperands())
    return check.skip(op, "the batch has another op there"), success();
  OpPair pair{batch, op, {}, {}, 1};
  for (auto [own, whole] : llvm::zip(op->getOperands(), batch->getOperands())) {
    if (batchValueOf(own) != whole) return check.skip(op, "it reads another value than the batch's op does"), success();
    pair.operands.push_back(claimOf(own));
  }
  for (auto [own, whole] : llvm::zip(op->getResults(), batch->getResults())) {
    Value result = own == first ? term : own;
    if (batchValueOf(result) != whole) return check.skip(op, "one of its results is not used"), success();
    pair.results.push_back(claimOf(result));
  }
  if (term != first) pair.factor = scale->second.first;
  return check.check(pair);
}

}  // namespace sheaf::train
