// Gradient rules of elementwise ops that are more than an expression per operand; the others stand in
// ElementwiseOps.td. Rules of other ops: TrainGradientsShape.cpp, TrainGradientsComposite.cpp.
#include "ir/Train/TrainGradients.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace sheaf::train;

// `r <= 0` and not `r > 0`, so that a NaN passes its gradient on as it passes itself.
SHEAF_GRADIENT(ReluOp, {
  Value zero = t.splatLike(r, 0);
  gradients[0] = t.select(t.compare(ComparePredicate::le, r, zero), zero, g);
})

SHEAF_GRADIENT(GeluOp,
               { gradients[0] = t.make<GeluGradOp>(getOperand().getType(), getOperand(), g, getApproximate()); })

// Casts back; integers stop the gradient.
SHEAF_GRADIENT(CastOp, {
  Type from = t.typeOf(getOperand()).getElementType();
  if (isa<FloatType>(from)) gradients[0] = t.cast(g, from);
})

SHEAF_GRADIENT(PowOp, {
  Value x = getLhs(), y = getRhs(), zero = t.splatLike(x, 0);
  DenseElementsAttr constant;
  if (matchPattern(y, m_Constant(&constant)) && constant.isSplat() && isa<FloatType>(constant.getElementType())) {
    double c = constant.getSplatValue<APFloat>().convertToDouble();
    Value power = c == 1   ? Value()
                  : c == 2 ? x
                  : c == 3 ? t.mul(x, x)
                           : t.make<PowOp>(x.getType(), x, t.splatLike(x, c - 1));
    if (c == 0)
      gradients[0] = zero;
    else
      gradients[0] = power ? t.mul(g, t.mul(power, c)) : g;
    return;
  }
  // x^0 is the constant 1 even at x = 0, where y x^(y-1) would be 0 * inf; and 0^y for y >= 0 does not depend on y.
  Value power = t.make<PowOp>(x.getType(), x, t.sub(y, t.splatLike(y, 1)));
  gradients[0] = t.select(t.compare(ComparePredicate::eq, y, zero), zero, t.mul(g, t.mul(y, power)));
  Value flat = t.make<AndOp>(t.compare(ComparePredicate::eq, x, zero), t.compare(ComparePredicate::ge, y, zero));
  gradients[1] = t.select(flat, zero, t.mul(g, t.mul(r, t.make<LogOp>(x.getType(), x))));
})

// An operand that loses (is greater, for a minimum) gets nothing, ties share, and the rest take all; so a NaN on either
// side passes the gradient to both.
static void extremumGradient(TensorBuilder& t, Value g, Value x, Value y, ComparePredicate loses,
                             MutableArrayRef<Value> gradients) {
  Value zero = t.splatLike(g, 0);
  Value shared = t.select(t.compare(ComparePredicate::eq, x, y), t.mul(g, 0.5), g);
  gradients[0] = t.select(t.compare(loses, x, y), zero, shared);
  gradients[1] = t.select(t.compare(loses, y, x), zero, shared);
}
SHEAF_GRADIENT(MinOp, { extremumGradient(t, g, getLhs(), getRhs(), ComparePredicate::gt, gradients); })
SHEAF_GRADIENT(MaxOp, { extremumGradient(t, g, getLhs(), getRhs(), ComparePredicate::lt, gradients); })

SHEAF_GRADIENT(SelectOp, {
  Value zero = t.splatLike(g, 0);
  gradients[1] = t.select(getCondition(), g, zero);
  gradients[2] = t.select(getCondition(), zero, g);
})
