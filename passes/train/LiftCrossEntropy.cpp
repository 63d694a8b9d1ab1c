#include "ir/Train/TensorBuilder.h"
#include "passes/train/Matchers.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTCROSSENTROPY
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// What PyTorch and ONNX exporters call a row without a label.
constexpr int64_t usualIgnoreIndex = -100;

// factor * log_softmax(logits)[label] for each row of `columns` logits.
struct Picked {
  Value logits, labels;  // In any shape.
  int64_t columns;
  double factor = 1;
  bool zeroOutside = false;  // Labels that are no column give 0; else they are an error.
};

// x of exp(x) / sum(exp(x)) and its logarithm, or null.
Value matchLogSoftmax(Value value, int64_t columns) {
  value = skipReshapesAndCasts(value);
  auto hasRows = [&](Value v) { return typeOf(v).getRank() > 0 && typeOf(v).getShape().back() == columns; };
  if (auto logSoftmax = value.getDefiningOp<LogSoftmaxOp>())
    return hasRows(logSoftmax) ? logSoftmax.getOperand() : Value();
  if (auto log = value.getDefiningOp<LogOp>()) {
    auto softmax = skipReshapesAndCasts(log.getOperand()).getDefiningOp<SoftmaxOp>();
    return softmax && hasRows(softmax) ? softmax.getOperand() : Value();
  }
  // x - log(sum(exp(x))), where x may have had its maximum, or anything else that is one number a row, taken off.
  auto sub = value.getDefiningOp<SubOp>();
  auto normalizer = sub ? matchRowStatistic(sub.getRhs()) : std::nullopt;
  if (!normalizer || normalizer->columns != columns) return {};
  auto log = normalizer->value.getDefiningOp<LogOp>();
  Value sum = log ? matchRowReduction(log.getOperand(), ReduceKind::sum, columns) : Value();
  auto exp = sum ? sum.getDefiningOp<ExpOp>() : ExpOp();
  Value shifted = skipReshapesAndCasts(sub.getLhs());
  if (!exp || skipReshapesAndCasts(exp.getOperand()) != shifted) return {};
  if (auto shift = shifted.getDefiningOp<SubOp>())
    if (auto offset = matchRowStatistic(shift.getRhs()); offset && offset->columns == columns) return shift.getLhs();
  return shifted;
}

// Whether every row of `value` is start, start + step, ...
bool isProgression(Value value, int64_t columns, int64_t start, int64_t step) {
  value = matchColumnVector(value, columns);
  auto constant = value ? value.getDefiningOp<ConstantOp>() : ConstantOp();
  auto elements = constant ? dyn_cast<DenseIntElementsAttr>(constant.getValue()) : DenseIntElementsAttr();
  if (!elements) return false;
  for (const APInt& element : elements.getValues<APInt>()) {
    if (element.getSExtValue() != start) return false;
    start += step;
  }
  return true;
}

bool isColumnIndex(Value value, int64_t columns) {
  if (auto iota = value.getDefiningOp<IotaOp>())
    return int64_t(iota.getAxis()) == typeOf(iota).getRank() - 1 && typeOf(iota).getShape().back() == columns;
  return isProgression(value, columns, 0, 1);
}

// The labels of which `value` is the one-hot encoding by booleans, or by 0 and 1, or null.
Value matchOneHot(Value value, int64_t columns) {
  value = skipReshapesAndCasts(value);
  if (auto cast = value.getDefiningOp<CastOp>()) value = skipReshapes(cast.getOperand());
  if (auto select = value.getDefiningOp<SelectOp>())
    if (splatValue(select.getOnTrue()) == 1.0 && splatValue(select.getOnFalse()) == 0.0)
      value = skipReshapes(select.getCondition());
  auto compare = value.getDefiningOp<CompareOp>();
  if (!compare || compare.getPredicate() != ComparePredicate::eq) return {};
  for (int side : {0, 1}) {
    auto labels = matchRowStatistic(compare->getOperand(side));
    if (labels && labels->columns == columns && isColumnIndex(compare->getOperand(1 - side), columns) &&
        typeOf(labels->value).getElementType().isSignlessInteger())
      return labels->value;
  }
  return {};
}

void peelFactors(Value& value, double& factor) {
  while (auto scaled = matchMulBySplat(skipReshapesAndCasts(value))) {
    value = scaled->other;
    factor *= scaled->splat;
  }
}

std::optional<Picked> finish(Value logProbabilities, Value labels, int64_t columns, bool zeroOutside) {
  Picked picked{{}, labels, columns, 1, zeroOutside};
  peelFactors(logProbabilities, picked.factor);
  picked.logits = matchLogSoftmax(logProbabilities, columns);
  if (!picked.logits || !labels) return std::nullopt;
  return picked;
}

// sum(one_hot * log_probabilities) over the last dimension, or a select for the product.
std::optional<Picked> matchOneHotSum(ReduceOp reduce) {
  auto type = typeOf(reduce.getOperand());
  if (type.getRank() == 0) return std::nullopt;
  int64_t columns = type.getShape().back();
  Value masked = matchRowReduction(reduce, ReduceKind::sum, columns);
  if (!masked) return std::nullopt;
  if (auto select = masked.getDefiningOp<SelectOp>())
    if (splatValue(select.getOnFalse()) == 0.0)
      return finish(select.getOnTrue(), matchOneHot(select.getCondition(), columns), columns, true);
  if (auto mul = masked.getDefiningOp<MulOp>())
    for (int side : {0, 1})
      if (Value labels = matchOneHot(mul->getOperand(side), columns))
        return finish(mul->getOperand(1 - side), labels, columns, true);
  return std::nullopt;
}

// log_probabilities[row * columns + label] of the flattened log-probabilities.
std::optional<Picked> matchFlatGather(GatherOp gather) {
  auto data = gather.getData().getDefiningOp<ReshapeOp>();
  if (!data || typeOf(data).getRank() != 1) return std::nullopt;
  auto matrix = typeOf(skipReshapes(data));
  int64_t rows = typeOf(gather.getIndices()).getNumElements();
  if (matrix.getRank() == 0 || rows * matrix.getShape().back() != matrix.getNumElements()) return std::nullopt;
  int64_t columns = matrix.getShape().back();
  auto add = skipReshapes(gather.getIndices()).getDefiningOp<AddOp>();
  if (!add) return std::nullopt;
  for (int side : {0, 1})
    if (isProgression(skipReshapes(add->getOperand(side)), rows, 0, columns))
      return finish(data, skipReshapes(add->getOperand(1 - side)), columns, false);
  return std::nullopt;
}

// labels != ignored ? labels : a safe column, with the condition and the ignored label.
struct SafeLabels {
  Value labels, keep;
  int64_t ignored;
};
std::optional<SafeLabels> matchSafeLabels(Value value) {
  auto select = skipReshapes(value).getDefiningOp<SelectOp>();
  auto compare = select ? skipReshapes(select.getCondition()).getDefiningOp<CompareOp>() : CompareOp();
  if (!compare || compare.getPredicate() != ComparePredicate::ne || !splatValue(select.getOnFalse()))
    return std::nullopt;
  auto ignored = splatValue(compare.getRhs());
  if (!ignored || skipReshapes(compare.getLhs()) != skipReshapes(select.getOnTrue())) return std::nullopt;
  return SafeLabels{skipReshapes(select.getOnTrue()), compare, int64_t(*ignored)};
}

// Whether all that is done with `value` is to take 0 instead where `keep` does not hold.
bool isOnlyKept(Value value, Value keep) {
  return !value.use_empty() && llvm::all_of(value.getUsers(), [&](Operation* user) {
    if (auto select = dyn_cast<SelectOp>(user))
      return skipReshapes(select.getCondition()) == keep && splatValue(select.getOnFalse()) == 0.0;
    return isa<ReshapeOp, NegOp>(user) && isOnlyKept(user->getResult(0), keep);
  });
}

struct LiftCrossEntropy : sheaf::train::impl::LiftCrossEntropyBase<LiftCrossEntropy> {
  using Base::Base;

  void runOnOperation() override {
    int64_t count = 0;
    visitBackwards(getOperation(), [&](Operation* op) {
      auto reduce = dyn_cast<ReduceOp>(op);
      auto gather = dyn_cast<GatherOp>(op);
      auto picked = reduce ? matchOneHotSum(reduce) : gather ? matchFlatGather(gather) : std::nullopt;
      if (!picked) return;
      Value root = op->getResult(0), labels = picked->labels;
      int64_t rows = typeOf(root).getNumElements();
      if (typeOf(labels).getNumElements() != rows || typeOf(picked->logits).getNumElements() != rows * picked->columns)
        return;
      Type labelType = typeOf(labels).getElementType();
      if (!labelType.isInteger(32) && !labelType.isInteger(64)) return;

      OpBuilder builder(op);
      TensorBuilder b{builder, op->getLoc()};
      IntegerAttr ignoreIndex;
      if (picked->zeroOutside) ignoreIndex = builder.getI64IntegerAttr(usualIgnoreIndex);
      if (auto safe = matchSafeLabels(labels); safe && isOnlyKept(root, safe->keep)) {
        labels = safe->labels;
        ignoreIndex = builder.getI64IntegerAttr(safe->ignored);
      }
      Value logits = b.cast(b.reshape(picked->logits, {rows, picked->columns}), typeOf(root).getElementType());
      auto crossEntropy =
          CrossEntropyOp::create(builder, op->getLoc(), logits, b.reshape(labels, {rows, 1}), ignoreIndex);
      Value loss = b.reshape(crossEntropy.getLoss(), typeOf(root).getShape());
      if (picked->factor == 1) {
        // The sign is most often put right behind.
        for (Operation* user : llvm::make_early_inc_range(root.getUsers()))
          if (auto neg = dyn_cast<NegOp>(user)) neg.replaceAllUsesWith(loss);
        root.replaceAllUsesWith(b.neg(loss));
      } else {
        root.replaceAllUsesWith(picked->factor == -1 ? loss : b.mul(loss, -picked->factor));
      }
      ++count;
    });
    visitBackwards(getOperation(), [](Operation*) {});
    recordLifted(getOperation(), count, "cross entropy", "cross entropies");
  }
};

}  // namespace
