// Elementwise operators. Activations without an op of their own are written in those that have one.
#include <cmath>

#include "frontend/onnx/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

// An op with one operand or two.
template <class Op>
LogicalResult elementwise(Node& n) {
  if constexpr (Op::template hasTrait<OpTrait::OneOperand>())
    return n.set(0, n.emit.unary<Op>(n.input(0)));
  else
    return n.set(0, n.emit.binary<Op>(n.input(0), n.input(1)));
}

// The same on booleans alone, and on integers alone, where ONNX has two operators for one op.
template <class Op>
LogicalResult logical(Node& n) {
  if (!n.input(0).isBool()) return n.error() << "takes booleans";
  return elementwise<Op>(n);
}
template <class Op>
LogicalResult bitwise(Node& n) {
  if (n.input(0).isBool()) return n.error() << "takes integers";
  return elementwise<Op>(n);
}

LogicalResult bitShift(Node& n) {
  StringRef direction = n.string("direction", "");
  if (direction == "LEFT") return bitwise<train::ShiftLeftOp>(n);
  if (direction == "RIGHT") return bitwise<train::ShiftRightOp>(n);
  return n.error() << "the attribute direction is '" << direction << "'; it takes LEFT or RIGHT";
}

template <Predicate predicate>
LogicalResult compare(Node& n) {
  return n.set(0, n.emit.compare(predicate, n.input(0), n.input(1)));
}

// Any number of operands, one after the other.
template <class Op>
Tensor chain(Node& n) {
  Tensor result = n.input(0);
  for (int64_t i = 1; i < n.inputs(); ++i) {
    if (!n.input(i)) return n.error() << "input " << i << " is missing", Tensor();
    result = n.emit.binary<Op>(result, n.input(i));
  }
  return result;
}

template <class Op>
LogicalResult variadic(Node& n) {
  return n.set(0, chain<Op>(n));
}

LogicalResult mean(Node& n) {
  return n.set(0, n.emit.scalar<train::DivOp>(chain<train::AddOp>(n), double(n.inputs())));
}

LogicalResult power(Node& n) {
  Tensor x = n.input(0), y = n.input(1);
  if (!x || !y) return failure();
  // The result has the base's type, whatever the exponent's.
  return n.set(0, n.emit.binary<train::PowOp>(x, n.emit.cast(y, x.elementType())));
}

LogicalResult modulo(Node& n) {
  bool fmod = n.integer("fmod", 0);
  if (n.input(0).isFloat() && !fmod && n.opset < 28)
    return n.error() << "floating-point operands take fmod = 1 before opset 28";
  return n.set(0, n.emit.mod(n.input(0), n.input(1), fmod));
}

LogicalResult where(Node& n) {
  return n.set(0, n.emit.select(n.input(0), n.input(1), n.input(2)));
}

LogicalResult clip(Node& n) {
  Tensor x = n.input(0), low, high;
  if (n.opset < 11) {
    if (n.has("min")) low = n.emit.splat(x.elementType(), {}, n.number("min", 0));
    if (n.has("max")) high = n.emit.splat(x.elementType(), {}, n.number("max", 0));
  } else {
    low = n.input(1);
    high = n.input(2);
  }
  if (low) x = n.emit.binary<train::MaxOp>(x, low);
  if (high) x = n.emit.binary<train::MinOp>(x, high);
  return n.set(0, x);
}

LogicalResult gelu(Node& n) {
  StringRef approximate = n.string("approximate", "none");
  if (approximate != "none" && approximate != "tanh")
    return n.error() << "the attribute approximate is '" << approximate << "'; it takes none or tanh";
  return n.set(0, n.emit.gelu(n.input(0), approximate == "tanh"));
}

LogicalResult floatOperand(Node& n) {
  if (n.input(0).isFloat()) return success();
  return n.error() << "takes floating-point numbers";
}

// x * sigmoid(alpha * x)
Tensor swish(Node& n, const Tensor& x) {
  Tensor scaled = x;
  if (double alpha = n.number("alpha", 1); alpha != 1) scaled = n.emit.scalar<train::MulOp>(x, alpha);
  return n.emit.binary<train::MulOp>(x, n.emit.unary<train::SigmoidOp>(scaled));
}
LogicalResult swishOp(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, swish(n, n.input(0)));
}
LogicalResult swiGlu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  if (n.input(0).type() != n.input(1).type()) return n.error() << "takes two tensors of one type and shape";
  return n.set(0, n.emit.binary<train::MulOp>(swish(n, n.input(0)), n.input(1)));
}

LogicalResult isInf(Node& n) {
  Emitter& e = n.emit;
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0), no = e.splat(e.ops().getI1Type(), x.shape(), 0);
  auto equals = [&](double v) { return e.compare(Predicate::eq, x, e.splatLike(x, v)); };
  Tensor positive = n.integer("detect_positive", 1) ? equals(INFINITY) : no;
  return n.set(0, n.integer("detect_negative", 1) ? e.binary<train::OrOp>(positive, equals(-INFINITY)) : positive);
}

Tensor hardSigmoid(Node& n, double alpha, double beta) {
  Emitter& e = n.emit;
  Tensor line = e.scalar<train::AddOp>(e.scalar<train::MulOp>(n.input(0), alpha), beta);
  return e.scalar<train::MinOp>(e.scalar<train::MaxOp>(line, 0), 1);
}

LogicalResult hardSigmoid(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, hardSigmoid(n, n.number("alpha", 0.2), n.number("beta", 0.5)));
}

LogicalResult hardSwish(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, n.emit.binary<train::MulOp>(n.input(0), hardSigmoid(n, 1.0 / 6, 0.5)));
}

// `positive` where x > 0, else `negative`.
LogicalResult piecewise(Node& n, Tensor positive, Tensor negative) {
  Tensor x = n.input(0);
  Tensor above = n.emit.compare(Predicate::gt, x, n.emit.splatLike(x, 0));
  return n.set(0, n.emit.select(above, positive, negative));
}

LogicalResult leakyRelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return piecewise(n, n.input(0), n.emit.scalar<train::MulOp>(n.input(0), n.number("alpha", 0.01)));
}

LogicalResult prelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return piecewise(n, n.input(0), n.emit.binary<train::MulOp>(n.input(0), n.input(1)));
}

// scale * (x where positive, else alpha * (e^x - 1)); the exponential sees no positive x, which it might overflow on.
LogicalResult exponentialUnit(Node& n, double alpha, double scale, bool stretched) {
  if (failed(floatOperand(n))) return failure();
  Emitter& e = n.emit;
  Tensor x = n.input(0), below = e.scalar<train::MinOp>(x, 0);
  if (stretched) below = e.scalar<train::DivOp>(below, alpha);
  Tensor negative = e.scalar<train::MulOp>(e.scalar<train::SubOp>(e.unary<train::ExpOp>(below), 1), alpha * scale);
  return piecewise(n, scale == 1 ? x : e.scalar<train::MulOp>(x, scale), negative);
}

LogicalResult elu(Node& n) {
  return exponentialUnit(n, n.number("alpha", 1), 1, false);
}
LogicalResult celu(Node& n) {
  double alpha = n.number("alpha", 1);
  if (alpha == 0) return n.error() << "the attribute alpha must not be 0";
  return exponentialUnit(n, alpha, 1, true);
}
LogicalResult selu(Node& n) {
  return exponentialUnit(n, n.number("alpha", 1.67326319217681884765625), n.number("gamma", 1.05070102214813232421875),
                         false);
}

// log(1 + e^x) as max(x, 0) + log(1 + e^-|x|), which does not overflow.
Tensor softplus(Node& n) {
  Emitter& e = n.emit;
  Tensor small = e.unary<train::ExpOp>(e.unary<train::NegOp>(e.unary<train::AbsOp>(n.input(0))));
  Tensor log = e.unary<train::LogOp>(e.scalar<train::AddOp>(small, 1));
  return e.binary<train::AddOp>(e.unary<train::ReluOp>(n.input(0)), log);
}

LogicalResult softplusOp(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, softplus(n));
}

LogicalResult mish(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, n.emit.binary<train::MulOp>(n.input(0), n.emit.unary<train::TanhOp>(softplus(n))));
}

LogicalResult softsign(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0);
  return n.set(0, n.emit.binary<train::DivOp>(x, n.emit.scalar<train::AddOp>(n.emit.unary<train::AbsOp>(x), 1)));
}

LogicalResult thresholdedRelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0);
  Tensor above = n.emit.compare(Predicate::gt, x, n.emit.splatLike(x, n.number("alpha", 1)));
  return n.set(0, n.emit.select(above, x, n.emit.splatLike(x, 0)));
}

// x + bias below -lambd, x - bias above lambd, else 0.
LogicalResult shrink(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Emitter& e = n.emit;
  const double lambda = n.number("lambd", 0.5), bias = n.number("bias", 0);
  Tensor x = n.input(0), zero = e.splatLike(x, 0);
  Tensor below = e.compare(Predicate::lt, x, e.splatLike(x, -lambda));
  Tensor above = e.compare(Predicate::gt, x, e.splatLike(x, lambda));
  Tensor negative = e.select(below, e.scalar<train::AddOp>(x, bias), zero);
  return n.set(0, e.select(above, e.scalar<train::SubOp>(x, bias), negative));
}

constexpr Operator kOperators[] = {
    {"And", 7, 0, 2, logical<train::AndOp>, {.sample = "b[2,3], b[2,3]"}},
    {"BitwiseAnd", 18, 0, 2, bitwise<train::AndOp>, {.sample = "i[2,3], i[2,3]"}},
    {"Or", 7, 0, 2, logical<train::OrOp>, {.sample = "b[2,3], b[2,3]"}},
    {"BitwiseOr", 18, 0, 2, bitwise<train::OrOp>, {.sample = "i[2,3], i[2,3]"}},
    {"Xor", 7, 0, 2, logical<train::XorOp>, {.sample = "b[2,3], b[2,3]"}},
    {"BitwiseXor", 18, 0, 2, bitwise<train::XorOp>, {.sample = "i[2,3], i[2,3]"}},
    {"Pow", 7, 0, 2, power},
    {"Mod",
     10,
     0,
     2,
     modulo,
     {.sample = "f[2,3], 0.4; fmod=1", .noGradient = {"test_mod_.*", "a remainder has no gradient for its divisor"}}},
    {"Sum", 6, 0, 1, variadic<train::AddOp>, {.sample = "f[2,3], f[2,3]"}},
    {"Min", 6, 0, 1, variadic<train::MinOp>, {.sample = "f[2,3], f[2,3]"}},
    {"Max", 6, 0, 1, variadic<train::MaxOp>, {.sample = "f[2,3], f[2,3]"}},
    {"Mean", 6, 0, 1, mean, {.sample = "f[2,3], f[2,3]"}},
    {"Equal", 7, 0, 2, compare<Predicate::eq>},
    {"Less", 7, 0, 2, compare<Predicate::lt>},
    {"LessOrEqual", 12, 0, 2, compare<Predicate::le>},
    {"Greater", 7, 0, 2, compare<Predicate::gt>},
    {"GreaterOrEqual", 12, 0, 2, compare<Predicate::ge>},
    {"Not", 1, 0, 1, logical<train::NotOp>, {.sample = "b[2,3]"}},
    {"BitwiseNot", 18, 0, 1, bitwise<train::NotOp>, {.sample = "i[2,3]"}},
    {"BitShift", 11, 0, 2, bitShift, {.sample = "i[2,3], i[2,3]; direction=LEFT"}},
    {"Where", 9, 0, 3, where, {.sample = "b[2,3], f[2,3], f[2,3]"}},
    {"Clip", 6, 0, 1, clip, {.sample = "f[2,3], 0.0, 0.5"}},
    {"Gelu", 20, 0, 1, gelu},
    {"Swish", 24, 0, 1, swishOp},
    {"SwiGLU", 28, 0, 2, swiGlu},
    {"IsInf", 10, 0, 1, isInf},
    {"HardSigmoid", 6, 0, 1, hardSigmoid},
    {"HardSwish", 14, 0, 1, hardSwish},
    {"LeakyRelu", 6, 0, 1, leakyRelu},
    {"PRelu", 7, 0, 2, prelu},
    {"Elu", 6, 0, 1, elu},
    {"Celu", 12, 0, 1, celu},
    {"Selu", 6, 0, 1, selu},
    {"Softplus", 1, 0, 1, softplusOp},
    {"Softsign", 1, 0, 1, softsign},
    {"Mish", 18, 0, 1, mish},
    {"ThresholdedRelu", 10, 0, 1, thresholdedRelu},
    {"Shrink", 9, 0, 1, shrink},
};

// Adds the operator that the op's row in ir/Train/ElementwiseOps.td names, if it names one.
template <class Op>
void addRow(std::vector<Operator>& operators) {
  if constexpr (requires { Op::kOnnxName; })
    operators.push_back(
        {Op::kOnnxName, Op::kOnnxSince, 0, Op::template hasTrait<OpTrait::OneOperand>() ? 1 : 2, elementwise<Op>});
}
template <class... Ops>
std::vector<Operator> withRows() {
  std::vector<Operator> operators(std::begin(kOperators), std::end(kOperators));
  (addRow<Ops>(operators), ...);
  return operators;
}

}  // namespace

ArrayRef<Operator> elementwiseOperators() {
  static const auto* operators = new std::vector<Operator>(withRows<
#define GET_OP_LIST
#include "ir/Train/TrainOpList.inc"
                                                           >());
  return *operators;
}

}  // namespace sheaf::frontend
