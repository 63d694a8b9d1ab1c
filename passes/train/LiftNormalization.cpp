#include "ir/Train/Matchers.h"
#include "ir/Train/TensorBuilder.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTNORMALIZATION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

struct Normalization {
  Value operand;    // Before reshapes and casts.
  int64_t columns;  // Elements of a row.
  double epsilon;
  bool centered;      // Layer norm; else RMS norm.
  Value scale, bias;  // Column vectors in any shape, or null.
};

// sqrt(z): z, or null.
Value matchSqrt(Value value) {
  value = skipReshapesAndCasts(value);
  if (auto sqrt = value.getDefiningOp<SqrtOp>()) return sqrt.getOperand();
  if (auto pow = value.getDefiningOp<PowOp>())
    if (splatValue(pow.getRhs()) == 0.5) return pow.getLhs();
  return {};
}

// 1 / sqrt(z): z, or null.
Value matchInverseSqrt(Value value) {
  value = skipReshapesAndCasts(value);
  if (auto rsqrt = value.getDefiningOp<RsqrtOp>()) return rsqrt.getOperand();
  if (auto reciprocal = value.getDefiningOp<ReciprocalOp>()) return matchSqrt(reciprocal.getOperand());
  if (auto div = value.getDefiningOp<DivOp>())
    if (splatValue(div.getLhs()) == 1.0) return matchSqrt(div.getRhs());
  if (auto pow = value.getDefiningOp<PowOp>())
    if (splatValue(pow.getRhs()) == -0.5) return pow.getLhs();
  return {};
}

// What `value` is the row-wise mean of, or null.
Value matchRowMean(Value value, int64_t columns) {
  if (Value operand = matchRowReduction(value, ReduceKind::mean, columns)) return operand;
  value = skipReshapesAndCasts(value);
  if (auto scaled = matchMulBySplat(value))
    if (isApproximately(scaled->splat * columns, 1, typeOf(value).getElementType()))
      return matchRowReduction(scaled->other, ReduceKind::sum, columns);
  return {};
}

// d of d * d or d ^ 2, or null.
Value matchSquare(Value value) {
  value = skipReshapesAndCasts(value);
  if (auto mul = value.getDefiningOp<MulOp>())
    if (mul.getLhs() == mul.getRhs()) return skipReshapesAndCasts(mul.getLhs());
  if (auto pow = value.getDefiningOp<PowOp>())
    if (splatValue(pow.getRhs()) == 2.0) return skipReshapesAndCasts(pow.getLhs());
  return {};
}

// x of x - mean(x), or null.
Value matchCentered(Value value, int64_t columns) {
  auto sub = value.getDefiningOp<SubOp>();
  if (!sub) return {};
  Value operand = skipReshapesAndCasts(sub.getLhs());
  auto mean = matchRowStatistic(sub.getRhs());
  return mean && mean->columns == columns && matchRowMean(mean->value, columns) == operand ? operand : Value();
}

// x / sqrt(mean(x^2) + epsilon), or the same of x - mean(x).
std::optional<Normalization> matchNormalized(Value value) {
  value = skipReshapesAndCasts(value);
  Operation* op = value.getDefiningOp();
  if (!op || !isa<MulOp, DivOp>(op)) return std::nullopt;
  for (int side = isa<MulOp>(op) ? 0 : 1; side < 2; ++side) {
    auto deviation = matchRowStatistic(op->getOperand(side));
    if (!deviation) continue;
    Value shifted = isa<MulOp>(op) ? matchInverseSqrt(deviation->value) : matchSqrt(deviation->value);
    if (!shifted) continue;
    auto variance = matchAddOfSplat(skipReshapesAndCasts(shifted));
    if (!variance || variance->splat < 0) continue;
    int64_t columns = deviation->columns;
    Value square = matchRowMean(variance->other, columns);
    Value inner = square ? matchSquare(square) : Value();
    if (!inner) continue;
    Value outer = skipReshapesAndCasts(op->getOperand(1 - side));
    if (Value operand = matchCentered(inner, columns)) {
      if (outer == inner || matchCentered(outer, columns) == operand)
        return Normalization{operand, columns, variance->splat, true, {}, {}};
    } else if (outer == inner) {
      return Normalization{inner, columns, variance->splat, false, {}, {}};
    }
  }
  return std::nullopt;
}

std::optional<Normalization> matchScaled(Value value) {
  if (auto normalization = matchNormalized(value)) return normalization;
  auto mul = skipReshapesAndCasts(value).getDefiningOp<MulOp>();
  if (!mul) return std::nullopt;
  for (int side : {0, 1}) {
    auto normalization = matchNormalized(mul->getOperand(side));
    if (!normalization) continue;
    normalization->scale = matchColumnVector(mul->getOperand(1 - side), normalization->columns);
    if (normalization->scale) return normalization;
  }
  return std::nullopt;
}

std::optional<Normalization> matchBiased(Value value) {
  auto add = value.getDefiningOp<AddOp>();
  if (!add) return matchScaled(value);
  for (int side : {0, 1}) {
    auto normalization = matchScaled(add->getOperand(side));
    if (!normalization || !normalization->centered) continue;
    normalization->bias = matchColumnVector(add->getOperand(1 - side), normalization->columns);
    if (normalization->bias) return normalization;
  }
  return std::nullopt;
}

Value build(OpBuilder& builder, Operation* root, const Normalization& normalization) {
  TensorBuilder b{builder, root->getLoc()};
  auto type = typeOf(root->getResult(0));
  // In the wider of the operand's and the result's types: what the graph computed between its casts is at least as
  // precise.
  auto from = typeOf(normalization.operand).getElementType();
  bool widen = from.getIntOrFloatBitWidth() > type.getElementTypeBitWidth();
  Type element = widen ? from : type.getElementType();
  auto vector = [&](Value v) { return b.reshape(b.cast(v, element), {normalization.columns}); };

  SmallVector<int64_t> shape(type.getShape());
  if (type.getRank() == 0 || type.getShape().back() != normalization.columns)
    shape = {type.getNumElements() / normalization.columns, normalization.columns};
  Value operand = b.reshape(b.cast(normalization.operand, element), shape);
  Value scale = normalization.scale ? vector(normalization.scale)
                                    : b.splat(RankedTensorType::get({normalization.columns}, element), 1);
  Value bias = normalization.bias ? vector(normalization.bias) : Value();
  auto epsilon = builder.getF64FloatAttr(normalization.epsilon);
  Value result = normalization.centered ? b.make<LayerNormOp>(operand.getType(), operand, scale, bias, epsilon)
                                        : b.make<RmsNormOp>(operand.getType(), operand, scale, epsilon);
  return b.cast(b.reshape(result, type.getShape()), type.getElementType());
}

struct LiftNormalization : sheaf::train::impl::LiftNormalizationBase<LiftNormalization> {
  using Base::Base;

  void runOnOperation() override {
    int64_t layerNorms = 0, rmsNorms = 0;
    // Backwards, so that the bias is seen before the scale and the scale before the bare normalization.
    visitBackwards(getOperation(), [&](Operation* op) {
      if (!isa<AddOp, MulOp, DivOp>(op)) return;
      auto normalization = matchBiased(op->getResult(0));
      if (!normalization) return;
      OpBuilder builder(op);
      op->getResult(0).replaceAllUsesWith(build(builder, op, *normalization));
      ++(normalization->centered ? layerNorms : rmsNorms);
    });
    recordLifted(getOperation(), layerNorms, "layer norm");
    recordLifted(getOperation(), rmsNorms, "RMS norm");
  }
};

}  // namespace
