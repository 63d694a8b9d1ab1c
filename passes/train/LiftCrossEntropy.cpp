#include "ir/Train/Matchers.h"
#include "ir/Train/TensorBuilder.h"
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

// Rows, or columns, whose positions are looked at one by one.
constexpr int64_t maxKnown = int64_t(1) << 22;

// factor * log_softmax(logits)[label] for each row of `columns` logits.
struct Picked {
  Value logits, labels;  // In any shape.
  int64_t columns;
  double factor = 1;
  std::optional<int64_t> ignored;  // The label that gives 0.
  bool outsideGivesZero = false;   // Labels outside the columns give 0, too, as in a one-hot encoding.
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

// The integers of a value made of constants, in row-major order.
std::optional<std::vector<int64_t>> knownIntegers(Value value) {
  auto type = typeOf(value);
  Operation* op = value.getDefiningOp();
  if (!op || !type.getElementType().isSignlessInteger() || type.getNumElements() > maxKnown) return std::nullopt;
  if (auto constant = dyn_cast<ConstantOp>(op)) {
    auto elements = dyn_cast<DenseIntElementsAttr>(constant.getValue());
    if (!elements) return std::nullopt;
    std::vector<int64_t> values;
    for (const APInt& element : elements.getValues<APInt>()) values.push_back(element.getSExtValue());
    return values;
  }
  std::vector<int64_t> values(type.getNumElements());
  auto index = [&](size_t i, int64_t dim) {
    for (int64_t d = type.getRank() - 1; d > dim; --d) i /= type.getDimSize(d);
    return i % type.getDimSize(dim);
  };
  if (auto iota = dyn_cast<IotaOp>(op)) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = index(i, iota.getAxis());
    return values;
  }
  if (!isa<ReshapeOp, BroadcastOp, MulOp, AddOp>(op)) return std::nullopt;
  auto a = knownIntegers(op->getOperand(0));
  if (!a || isa<ReshapeOp>(op)) return a;
  if (isa<BroadcastOp>(op)) {
    auto from = typeOf(op->getOperand(0));
    for (size_t i = 0; i < values.size(); ++i) {
      int64_t source = 0;
      for (int64_t d = 0; d < from.getRank(); ++d)
        source = source * from.getDimSize(d) + (from.getDimSize(d) == 1 ? 0 : index(i, d));
      values[i] = (*a)[source];
    }
    return values;
  }
  auto b = knownIntegers(op->getOperand(1));
  if (!b) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) values[i] = isa<MulOp>(op) ? (*a)[i] * (*b)[i] : (*a)[i] + (*b)[i];
  return values;
}

bool isColumnIndex(Value value, int64_t columns) {
  if (auto iota = value.getDefiningOp<IotaOp>())
    return int64_t(iota.getAxis()) == typeOf(iota).getRank() - 1 && typeOf(iota).getShape().back() == columns;
  Value indices = matchColumnVector(value, columns);
  auto known = indices ? knownIntegers(indices) : std::nullopt;
  for (int64_t i = 0; known && i < columns; ++i)
    if ((*known)[i] != i) return false;
  return known.has_value();
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

// The `ignored` of labels != ignored.
std::optional<int64_t> matchKeep(Value value, Value labels) {
  auto compare = skipReshapes(value).getDefiningOp<CompareOp>();
  if (!compare || compare.getPredicate() != ComparePredicate::ne) return std::nullopt;
  auto ignored = splatValue(compare.getRhs());
  if (!labels || !ignored || skipReshapes(compare.getLhs()) != skipReshapes(labels)) return std::nullopt;
  return int64_t(*ignored);
}

void peelFactors(Value& value, double& factor) {
  while (auto scaled = matchMulBySplat(skipReshapesAndCasts(value))) {
    value = scaled->other;
    factor *= scaled->splat;
  }
}

std::optional<Picked> finish(Value logProbabilities, Value labels, int64_t columns, std::optional<int64_t> ignored) {
  Picked picked{{}, labels, columns, 1, ignored, /*outsideGivesZero=*/ignored.has_value()};
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
  if (auto select = masked.getDefiningOp<SelectOp>(); select && splatValue(select.getOnFalse()) == 0.0) {
    Value hot = skipReshapes(select.getCondition()), labels = matchOneHot(hot, columns);
    if (labels) return finish(select.getOnTrue(), labels, columns, usualIgnoreIndex);
    auto both = hot.getDefiningOp<AndOp>();
    for (int side = 0; both && side < 2; ++side) {
      labels = matchOneHot(both->getOperand(side), columns);
      auto keep = matchRowStatistic(both->getOperand(1 - side));
      auto ignored = keep && keep->columns == columns ? matchKeep(keep->value, labels) : std::nullopt;
      if (ignored) return finish(select.getOnTrue(), labels, columns, *ignored);
    }
  }
  if (auto mul = masked.getDefiningOp<MulOp>())
    for (int side : {0, 1})
      if (Value labels = matchOneHot(mul->getOperand(side), columns))
        return finish(mul->getOperand(1 - side), labels, columns, usualIgnoreIndex);
  return std::nullopt;
}

// The labels of which `position` is row * columns + label, and null if it is not.
Value matchPosition(Value position, int64_t columns) {
  std::vector<int64_t> offsets(typeOf(position).getNumElements(), 0);
  position = skipReshapes(position);
  while (Operation* op = position.getDefiningOp()) {
    if (auto scaled = isa<MulOp>(op) ? matchMulBySplat(position) : std::nullopt; scaled && scaled->splat == 1) {
      position = skipReshapes(scaled->other);
      continue;
    }
    if (!isa<AddOp>(op)) break;
    auto left = knownIntegers(op->getOperand(0)), right = left ? std::nullopt : knownIntegers(op->getOperand(1));
    if (!left && !right) break;
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] += (left ? *left : *right)[i];
    position = skipReshapes(op->getOperand(left ? 1 : 0));
  }
  for (size_t i = 0; i < offsets.size(); ++i)
    if (offsets[i] != int64_t(i) * columns) return {};
  // Negative indices count from the end for a gather, but no label is negative.
  if (auto select = position.getDefiningOp<SelectOp>()) {
    auto shifted = matchAddOfSplat(skipReshapes(select.getOnTrue()));
    auto compare = skipReshapes(select.getCondition()).getDefiningOp<CompareOp>();
    Value labels = skipReshapes(select.getOnFalse());
    if (shifted && shifted->splat == columns && skipReshapes(shifted->other) == labels && compare &&
        compare.getPredicate() == ComparePredicate::lt && skipReshapes(compare.getLhs()) == labels &&
        splatValue(compare.getRhs()) == 0.0)
      return labels;
  }
  return position;
}

// log_probabilities[row * columns + label] of the flattened log-probabilities.
std::optional<Picked> matchFlatGather(GatherOp gather) {
  auto data = gather.getData().getDefiningOp<ReshapeOp>();
  if (!data || typeOf(data).getRank() != 1) return std::nullopt;
  auto matrix = typeOf(skipReshapes(data));
  int64_t rows = typeOf(gather.getIndices()).getNumElements();
  if (matrix.getRank() == 0 || rows * matrix.getShape().back() != matrix.getNumElements()) return std::nullopt;
  int64_t columns = matrix.getShape().back();
  return finish(data, matchPosition(gather.getIndices(), columns), columns, std::nullopt);
}

// Whether all that is done with `value` is to take 0 instead where `keep` does not hold.
bool isOnlyKept(Value root, Value keep) {
  SmallVector<Value> pending{root};
  while (!pending.empty()) {
    const Value value = pending.pop_back_val();
    if (value.use_empty()) return false;
    for (Operation* user : value.getUsers()) {
      auto select = dyn_cast<SelectOp>(user);
      if (select ? skipReshapes(select.getCondition()) != keep || splatValue(select.getOnFalse()) != 0.0
                 : !isa<ReshapeOp, NegOp>(user))
        return false;
      if (!select) pending.push_back(user->getResult(0));
    }
  }
  return true;
}

// True for an input of which the runtime refuses labels that are neither a column nor the label to ignore.
bool runtimeChecksLabels(Value labels, int64_t columns, int64_t ignored) {
  auto argument = dyn_cast<BlockArgument>(skipReshapes(labels));
  auto function = argument ? dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp()) : func::FuncOp();
  if (!function) return false;
  auto stated = [&](StringRef name) {
    auto attribute = function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), name);
    return attribute ? std::optional<int64_t>(attribute.getInt()) : std::nullopt;
  };
  const std::optional<int64_t> classes = stated("train.classes"), other = stated("train.ignored_label");
  return classes == columns && (!other || other == ignored);
}

// The labels, with `ignored` in place of those outside the columns.
Value ignoreOutside(TensorBuilder& b, Value labels, int64_t columns, int64_t ignored) {
  Value first = b.compare(ComparePredicate::ge, labels, b.splatLike(labels, 0));
  Value last = b.compare(ComparePredicate::lt, labels, b.splatLike(labels, double(columns)));
  return b.select(b.make<AndOp>(first.getType(), first, last), labels, b.splatLike(labels, double(ignored)));
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
      if (picked->ignored) ignoreIndex = builder.getI64IntegerAttr(*picked->ignored);
      // labels != ignored ? labels : a safe column, where the rows that are ignored then do not count.
      if (auto safe = labels.getDefiningOp<SelectOp>(); safe && splatValue(safe.getOnFalse())) {
        auto ignored = matchKeep(safe.getCondition(), safe.getOnTrue());
        if (ignored && isOnlyKept(root, skipReshapes(safe.getCondition()))) {
          labels = skipReshapes(safe.getOnTrue());
          ignoreIndex = builder.getI64IntegerAttr(*ignored);
        }
      }
      if (picked->outsideGivesZero && !runtimeChecksLabels(labels, picked->columns, ignoreIndex.getInt()))
        labels = ignoreOutside(b, labels, picked->columns, ignoreIndex.getInt());
      Value logits = b.cast(b.reshape(picked->logits, {rows, picked->columns}), typeOf(root).getElementType());
      auto crossEntropy =
          CrossEntropyOp::create(builder, op->getLoc(), logits, b.reshape(labels, {rows, 1}), ignoreIndex);
      Value loss = b.reshape(crossEntropy.getLoss(), typeOf(root).getShape());
      if (picked->factor == 1) {
        // Most graphs negate right after it.
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
