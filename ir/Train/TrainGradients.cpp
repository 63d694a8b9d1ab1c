// Gradient rules of elementwise ops that are more than an expression per operand; the others stand in
// ElementwiseOps.td. Rules of other ops: TrainGradientsShape.cpp, TrainGradientsComposite.cpp.
#include <limits>

#include "ir/Train/TrainGradients.h"
#include "ir/Train/ValueRange.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace sheaf::train;

// `r <= 0` and not `r > 0`, so that a NaN passes its gradient on as it passes itself.
SHEAF_GRADIENT(ReluOp, {
  Value zero = t.splatLike(r, 0);
  gradients[0] = t.select(t.compare(ComparePredicate::le, r, zero), zero, g);
})

SHEAF_GRADIENT(GeluOp, {
  Value x = getOperand();
  gradients[0] = guardUnless(t, !mayBeInfinite(x), g, x, t.make<GeluGradOp>(x.getType(), x, g, getApproximate()));
})

// Casts back; integers stop the gradient.
SHEAF_GRADIENT(CastOp, {
  Type from = t.typeOf(getOperand()).getElementType();
  if (isa<FloatType>(from)) gradients[0] = t.cast(g, from);
})

// True if a root of `x` is a norm, or the root of a magnitude: its gradient at 0 is 0, not infinite.
static bool isNorm(Value x) {
  return isSumOfPowers(x) || x.getDefiningOp<AbsOp>();
}

// `x`, but infinity where it is 0: the gradient that divides by it is then 0.
static Value infiniteAtZero(TensorBuilder& t, Value x) {
  Value infinity = t.splatLike(x, std::numeric_limits<double>::infinity());
  return t.select(t.compare(ComparePredicate::eq, x, t.splatLike(x, 0)), infinity, x);
}

SHEAF_GRADIENT(SqrtOp, {
  Value x = getOperand(), half = t.mul(g, 0.5);
  if (isPositive(x))
    gradients[0] = t.div(half, r);
  else if (isNorm(x))
    gradients[0] = t.div(half, infiniteAtZero(t, r));
  else
    gradients[0] = guardUnless(t, false, g, x, t.div(half, r));
})

SHEAF_GRADIENT(PowOp, {
  Value x = getLhs(), y = getRhs(), zero = t.splatLike(x, 0);
  DenseElementsAttr constant;
  if (matchPattern(y, m_Constant(&constant)) && constant.isSplat() && isa<FloatType>(constant.getElementType())) {
    double c = constant.getSplatValue<APFloat>().convertToDouble();
    const bool norm = 0 < c && c < 1 && !isPositive(x) && isNorm(x);
    Value power = c == 1   ? Value()
                  : c == 2 ? x
                  : c == 3 ? t.mul(x, x)
                           : t.make<PowOp>(x.getType(), norm ? infiniteAtZero(t, x) : x, t.splatLike(x, c - 1));
    if (c == 0)
      gradients[0] = zero;
    else if (c == 1)
      gradients[0] = g;
    else
      gradients[0] = guardUnless(t, c > 1 ? !mayBeInfinite(x) : norm || isPositive(x), g, x, t.mul(g, t.mul(power, c)));
    return;
  }
  // x^0 is the constant 1 even at x = 0, where y x^(y-1) would be 0 * inf; and 0^y for y >= 0 does not depend on y.
  Value power = t.make<PowOp>(x.getType(), x, t.sub(y, t.splatLike(y, 1)));
  Value product = guardUnless(t, false, g, x, t.mul(g, t.mul(y, power)));
  gradients[0] = t.select(t.compare(ComparePredicate::eq, y, zero), zero, product);
  Value flat = t.make<AndOp>(t.compare(ComparePredicate::eq, x, zero), t.compare(ComparePredicate::ge, y, zero));
  product = guardUnless(t, false, g, y, t.mul(g, t.mul(r, t.make<LogOp>(x.getType(), x))));
  gradients[1] = t.select(flat, zero, product);
})

// An operand that loses (is greater, for a minimum) gets nothing, ties share, and the rest take all; so a NaN on either
// side passes the gradient to both. Of a bound, x takes all where it is inside, strictly, and the bound elsewhere.
static void extremumGradient(TensorBuilder& t, Value g, Value x, Value y, bool bound, ComparePredicate wins,
                             ComparePredicate loses, MutableArrayRef<Value> gradients) {
  Value zero = t.splatLike(g, 0);
  if (bound) {
    Value inside = t.compare(wins, x, y);
    gradients[0] = t.select(inside, g, zero);
    gradients[1] = t.select(inside, zero, g);
    return;
  }
  Value shared = t.select(t.compare(ComparePredicate::eq, x, y), t.mul(g, 0.5), g);
  gradients[0] = t.select(t.compare(loses, x, y), zero, shared);
  gradients[1] = t.select(t.compare(loses, y, x), zero, shared);
}
SHEAF_GRADIENT(MinOp, {
  extremumGradient(t, g, getLhs(), getRhs(), getBound(), ComparePredicate::lt, ComparePredicate::gt, gradients);
})
SHEAF_GRADIENT(MaxOp, {
  extremumGradient(t, g, getLhs(), getRhs(), getBound(), ComparePredicate::gt, ComparePredicate::lt, gradients);
})

// The gradient of the angle of the point (y, x): it does without the ratio, which is infinite at y = 0.
SHEAF_GRADIENT(AtanRatioOp, {
  Value x = getLhs(), y = getRhs();
  Value square = infiniteAtZero(t, t.add(t.mul(x, x), t.mul(y, y)));
  gradients[0] = guardUnless(t, false, g, y, t.div(t.mul(g, y), square));
  gradients[1] = guardUnless(t, false, g, x, t.neg(t.div(t.mul(g, x), square)));
})

SHEAF_GRADIENT(SelectOp, {
  Value zero = t.splatLike(g, 0);
  gradients[1] = t.select(getCondition(), g, zero);
  gradients[2] = t.select(getCondition(), zero, g);
})
