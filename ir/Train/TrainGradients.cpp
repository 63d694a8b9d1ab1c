// Gradient rules of elementwise ops. Rules of other ops: TrainGradientsShape.cpp, TrainGradientsComposite.cpp.
//
// Where r serves as well as x, r is used: it is what the next op reads anyway, so x need not be kept for the backward
// pass.
#include <cmath>
#include <numbers>

#include "ir/Train/TrainGradients.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace sheaf::train;

SHEAF_NO_GRADIENT(SignOp)
SHEAF_NO_GRADIENT(FloorOp)
SHEAF_NO_GRADIENT(CeilOp)
SHEAF_NO_GRADIENT(RoundOp)

SHEAF_GRADIENT(NegOp, { gradients[0] = t.neg(g); })
SHEAF_GRADIENT(AbsOp, { gradients[0] = t.mul(g, t.make<SignOp>(g.getType(), getOperand())); })
SHEAF_GRADIENT(ExpOp, { gradients[0] = t.mul(g, r); })
SHEAF_GRADIENT(LogOp, { gradients[0] = t.div(g, getOperand()); })
SHEAF_GRADIENT(SqrtOp, { gradients[0] = t.div(t.mul(g, 0.5), r); })
SHEAF_GRADIENT(RsqrtOp, { gradients[0] = t.mul(t.mul(g, -0.5), t.mul(t.mul(r, r), r)); })
SHEAF_GRADIENT(ReciprocalOp, { gradients[0] = t.neg(t.mul(g, t.mul(r, r))); })
SHEAF_GRADIENT(TanhOp, { gradients[0] = t.mul(g, t.sub(t.splatLike(r, 1), t.mul(r, r))); })
SHEAF_GRADIENT(SigmoidOp, { gradients[0] = t.mul(g, t.mul(r, t.sub(t.splatLike(r, 1), r))); })
SHEAF_GRADIENT(SinOp, { gradients[0] = t.mul(g, t.make<CosOp>(g.getType(), getOperand())); })
SHEAF_GRADIENT(CosOp, { gradients[0] = t.neg(t.mul(g, t.make<SinOp>(g.getType(), getOperand()))); })

SHEAF_GRADIENT(ErfOp, {
  Value x = getOperand();
  gradients[0] = t.mul(g, t.mul(t.exp(t.neg(t.mul(x, x))), 2 * std::numbers::inv_sqrtpi));
})

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

SHEAF_GRADIENT(AddOp, {
  gradients[0] = g;
  gradients[1] = g;
})
SHEAF_GRADIENT(SubOp, {
  gradients[0] = g;
  gradients[1] = t.neg(g);
})
SHEAF_GRADIENT(MulOp, {
  gradients[0] = t.mul(g, getRhs());
  gradients[1] = t.mul(g, getLhs());
})
SHEAF_GRADIENT(DivOp, {
  gradients[0] = t.div(g, getRhs());
  gradients[1] = t.neg(t.mul(gradients[0], r));
})
SHEAF_GRADIENT(FmaOp, {
  gradients[0] = t.mul(g, getB());
  gradients[1] = t.mul(g, getA());
  gradients[2] = g;
})
SHEAF_GRADIENT(ModOp, { gradients[0] = g; })

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
