// Elementwise operators. Activations without an op of their own are written in those that have one.
#include <cmath>

#include "frontend/onnx/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

template <Unary op>
LogicalResult unary(Node& n) {
  return n.set(0, n.emit.unary(op, n.input(0)));
}

template <Binary op>
LogicalResult binary(Node& n) {
  return n.set(0, n.emit.binary(op, n.input(0), n.input(1)));
}

template <Predicate predicate>
LogicalResult compare(Node& n) {
  return n.set(0, n.emit.compare(predicate, n.input(0), n.input(1)));
}

// Any number of operands, one after the other.
Tensor chain(Node& n, Binary op) {
  Tensor result = n.input(0);
  for (int64_t i = 1; i < n.inputs(); ++i) {
    if (!n.input(i)) return n.error() << "input " << i << " is missing", Tensor();
    result = n.emit.binary(op, result, n.input(i));
  }
  return result;
}

template <Binary op>
LogicalResult variadic(Node& n) {
  return n.set(0, chain(n, op));
}

LogicalResult mean(Node& n) {
  return n.set(0, n.emit.scalar(Binary::Div, chain(n, Binary::Add), double(n.inputs())));
}

LogicalResult power(Node& n) {
  Tensor x = n.input(0), y = n.input(1);
  if (!x || !y) return failure();
  // The result has the base's type, whatever the exponent's.
  return n.set(0, n.emit.binary(Binary::Pow, x, n.emit.cast(y, x.elementType())));
}

LogicalResult modulo(Node& n) {
  bool fmod = n.integer("fmod", 0);
  if (n.input(0).isFloat() && !fmod) return n.error() << "floating-point operands take fmod = 1";
  return n.set(0, n.emit.binary(fmod ? Binary::Fmod : Binary::Mod, n.input(0), n.input(1)));
}

LogicalResult logicalNot(Node& n) {
  return n.set(0, n.emit.logicalNot(n.input(0)));
}

LogicalResult isNan(Node& n) {
  return n.set(0, n.emit.isNan(n.input(0)));
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
  if (low) x = n.emit.binary(Binary::Max, x, low);
  if (high) x = n.emit.binary(Binary::Min, x, high);
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
LogicalResult swish(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0), scaled = x;
  if (double alpha = n.number("alpha", 1); alpha != 1) scaled = n.emit.scalar(Binary::Mul, x, alpha);
  return n.set(0, n.emit.binary(Binary::Mul, x, n.emit.unary(Unary::Sigmoid, scaled)));
}

Tensor hardSigmoid(Node& n, double alpha, double beta) {
  Emitter& e = n.emit;
  Tensor line = e.scalar(Binary::Add, e.scalar(Binary::Mul, n.input(0), alpha), beta);
  return e.scalar(Binary::Min, e.scalar(Binary::Max, line, 0), 1);
}

LogicalResult hardSigmoid(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, hardSigmoid(n, n.number("alpha", 0.2), n.number("beta", 0.5)));
}

LogicalResult hardSwish(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, n.emit.binary(Binary::Mul, n.input(0), hardSigmoid(n, 1.0 / 6, 0.5)));
}

// `positive` where x > 0, else `negative`.
LogicalResult piecewise(Node& n, Tensor positive, Tensor negative) {
  Tensor x = n.input(0);
  Tensor above = n.emit.compare(Predicate::gt, x, n.emit.splatLike(x, 0));
  return n.set(0, n.emit.select(above, positive, negative));
}

LogicalResult leakyRelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return piecewise(n, n.input(0), n.emit.scalar(Binary::Mul, n.input(0), n.number("alpha", 0.01)));
}

LogicalResult prelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return piecewise(n, n.input(0), n.emit.binary(Binary::Mul, n.input(0), n.input(1)));
}

// scale * (x where positive, else alpha * (e^x - 1)); the exponential sees no positive x, which it might overflow on.
LogicalResult exponentialUnit(Node& n, double alpha, double scale, bool stretched) {
  if (failed(floatOperand(n))) return failure();
  Emitter& e = n.emit;
  Tensor x = n.input(0), below = e.scalar(Binary::Min, x, 0);
  if (stretched) below = e.scalar(Binary::Div, below, alpha);
  Tensor negative = e.scalar(Binary::Mul, e.scalar(Binary::Sub, e.unary(Unary::Exp, below), 1), alpha * scale);
  return piecewise(n, scale == 1 ? x : e.scalar(Binary::Mul, x, scale), negative);
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
  Tensor small = e.unary(Unary::Exp, e.unary(Unary::Neg, e.unary(Unary::Abs, n.input(0))));
  Tensor log = e.unary(Unary::Log, e.scalar(Binary::Add, small, 1));
  return e.binary(Binary::Add, e.unary(Unary::Relu, n.input(0)), log);
}

LogicalResult softplusOp(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, softplus(n));
}

LogicalResult mish(Node& n) {
  if (failed(floatOperand(n))) return failure();
  return n.set(0, n.emit.binary(Binary::Mul, n.input(0), n.emit.unary(Unary::Tanh, softplus(n))));
}

LogicalResult softsign(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0);
  return n.set(0, n.emit.binary(Binary::Div, x, n.emit.scalar(Binary::Add, n.emit.unary(Unary::Abs, x), 1)));
}

LogicalResult thresholdedRelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0);
  Tensor above = n.emit.compare(Predicate::gt, x, n.emit.splatLike(x, n.number("alpha", 1)));
  return n.set(0, n.emit.select(above, x, n.emit.splatLike(x, 0)));
}

constexpr Operator kOperators[] = {
    {"Neg", 6, 0, 1, unary<Unary::Neg>},
    {"Abs", 6, 0, 1, unary<Unary::Abs>},
    {"Sign", 9, 0, 1, unary<Unary::Sign>},
    {"Exp", 6, 0, 1, unary<Unary::Exp>},
    {"Log", 6, 0, 1, unary<Unary::Log>},
    {"Sqrt", 6, 0, 1, unary<Unary::Sqrt>},
    {"Reciprocal", 6, 0, 1, unary<Unary::Reciprocal>},
    {"Tanh", 6, 0, 1, unary<Unary::Tanh>},
    {"Sigmoid", 6, 0, 1, unary<Unary::Sigmoid>},
    {"Erf", 9, 0, 1, unary<Unary::Erf>},
    {"Relu", 6, 0, 1, unary<Unary::Relu>},
    {"Sin", 7, 0, 1, unary<Unary::Sin>},
    {"Cos", 7, 0, 1, unary<Unary::Cos>},
    {"Floor", 6, 0, 1, unary<Unary::Floor>},
    {"Ceil", 6, 0, 1, unary<Unary::Ceil>},
    {"Round", 11, 0, 1, unary<Unary::Round>},
    {"Add", 7, 0, 2, binary<Binary::Add>},
    {"Sub", 7, 0, 2, binary<Binary::Sub>},
    {"Mul", 7, 0, 2, binary<Binary::Mul>},
    {"Div", 7, 0, 2, binary<Binary::Div>},
    {"And", 7, 0, 2, binary<Binary::And>},
    {"Or", 7, 0, 2, binary<Binary::Or>},
    {"Xor", 7, 0, 2, binary<Binary::Xor>},
    {"Pow", 7, 0, 2, power},
    {"Mod", 10, 0, 2, modulo},
    {"Sum", 6, 0, 1, variadic<Binary::Add>},
    {"Min", 6, 0, 1, variadic<Binary::Min>},
    {"Max", 6, 0, 1, variadic<Binary::Max>},
    {"Mean", 6, 0, 1, mean},
    {"Equal", 7, 0, 2, compare<Predicate::eq>},
    {"Less", 7, 0, 2, compare<Predicate::lt>},
    {"LessOrEqual", 12, 0, 2, compare<Predicate::le>},
    {"Greater", 7, 0, 2, compare<Predicate::gt>},
    {"GreaterOrEqual", 12, 0, 2, compare<Predicate::ge>},
    {"Not", 1, 0, 1, logicalNot},
    {"IsNaN", 9, 0, 1, isNan},
    {"Where", 9, 0, 3, where},
    {"Clip", 6, 0, 1, clip},
    {"Gelu", 20, 0, 1, gelu},
    {"Swish", 24, 0, 1, swish},
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
};

}  // namespace

ArrayRef<Operator> elementwiseOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
