#include "frontend/onnx/importer/Labels.h"

#include "ir/Train/Matchers.h"
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

// A scalar that is the sum of `terms`, each of them times `mask` if there is one, times `factor`, and divided by
// `divisor` if there is one.
struct ScaledSum {
  Value terms, mask, divisor;
  double factor = 1;
};

// Skips reshapes, and broadcasts of a single element.
Value skipRepeats(Value v) {
  for (Operation* op = v.getDefiningOp(); op; op = v.getDefiningOp()) {
    const bool single = isa<train::BroadcastOp>(op) && train::typeOf(op->getOperand(0)).getNumElements() == 1;
    if (!single && !isa<train::ReshapeOp>(op)) break;
    v = op->getOperand(0);
  }
  return v;
}

// Returns the booleans that `v` was cast from; null if it is not a cast of booleans.
Value maskOf(Value v) {
  v = train::skipReshapesAndCasts(v);
  auto cast = v.getDefiningOp<train::CastOp>();
  return cast && train::typeOf(cast.getOperand()).getElementType().isInteger(1) ? train::skipReshapes(cast.getOperand())
                                                                                : Value();
}

// Reads a scalar as a scaled sum, through factors, means, sums, one division and one mask.
ScaledSum asScaledSum(Value v) {
  ScaledSum result;
  while (true) {
    v = train::skipReshapesAndCasts(v);
    if (auto scaled = train::matchMulBySplat(v)) {
      result.factor *= scaled->splat;
      v = scaled->other;
    } else if (auto reduce = v.getDefiningOp<train::ReduceOp>()) {
      const Value operand = reduce.getOperand();
      if (reduce.getKind() == train::ReduceKind::mean)
        result.factor *= double(train::typeOf(v).getNumElements()) / double(train::typeOf(operand).getNumElements());
      else if (reduce.getKind() != train::ReduceKind::sum)
        break;
      v = operand;
    } else if (auto cast = v.getDefiningOp<train::CastOp>(); cast && isInteger(cast.getOperand())) {
      auto count = train::skipReshapes(cast.getOperand()).getDefiningOp<train::ReduceOp>();
      if (!count || count.getKind() != train::ReduceKind::sum) break;
      v = count.getOperand();
    } else if (auto div = v.getDefiningOp<train::DivOp>(); div && !result.divisor) {
      result.divisor = skipRepeats(div.getRhs());
      if (train::typeOf(result.divisor).getNumElements() != 1) break;
      v = div.getLhs();
    } else if (auto mul = v.getDefiningOp<train::MulOp>(); mul && !result.mask) {
      const int masked = maskOf(mul.getRhs()) ? 1 : 0;
      result.mask = maskOf(mul->getOperand(masked));
      if (!result.mask) break;
      v = mul->getOperand(1 - masked);
    } else {
      break;
    }
  }
  result.terms = v;
  return result;
}

// True if `mask` is true for the labels that an entropy does not ignore.
bool selectsCountedLabels(Value mask, train::CrossEntropyOp entropy) {
  auto inverted = mask.getDefiningOp<train::NotOp>();
  auto compare = (inverted ? train::skipReshapes(inverted->getOperand(0)) : mask).getDefiningOp<train::CompareOp>();
  const auto predicate = inverted ? train::ComparePredicate::eq : train::ComparePredicate::ne;
  return compare && entropy.getIgnoreIndex() && compare.getPredicate() == predicate &&
         train::skipReshapes(compare.getLhs()) == train::skipReshapes(entropy.getLabels()) &&
         train::splatValue(compare.getRhs()) == double(int64_t(*entropy.getIgnoreIndex()));
}

// True if a sum of an entropy's losses is their mean over the labels that count.
bool isMeanOfCountedLabels(const ScaledSum& sum, train::CrossEntropyOp entropy) {
  const int64_t rows = train::typeOf(entropy.getLoss()).getNumElements();
  auto isOne = [](double factor) { return std::abs(factor - 1) < 1e-6; };
  if (!sum.divisor) return !sum.mask && !entropy.getIgnoreIndex() && isOne(sum.factor * double(rows));
  const ScaledSum count = asScaledSum(sum.divisor);
  const Value counted = maskOf(count.terms);
  if (!counted || count.mask || count.divisor || !isOne(sum.factor / count.factor) ||
      train::typeOf(counted).getNumElements() != rows)
    return false;
  if (sum.mask && sum.mask != counted) return false;
  return selectsCountedLabels(counted, entropy) || (sum.mask && !entropy.getIgnoreIndex());
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
  if (!loss || !loss.value()) return;
  const ScaledSum mean = asScaledSum(loss.value());
  auto entropy = mean.terms.getDefiningOp<train::CrossEntropyOp>();
  if (!entropy || mean.terms != entropy.getLoss() || !isMeanOfCountedLabels(mean, entropy)) return;
  bool all = false;
  int64_t shift = 0;
  BlockArgument argument = inputOf(entropy.getLabels(), all, shift);
  if (func::FuncOp function = argument && isOfTokens(argument) ? functionOf(argument) : func::FuncOp())
    function.setArgAttr(argument.getArgNumber(), "train.perplexity", Builder(function.getContext()).getUnitAttr());
}

}  // namespace sheaf::frontend
