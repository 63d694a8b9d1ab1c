// Elementwise operators; Activations.cpp has the activation functions.
#include <cmath>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Activations.h"

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

// True if the PyTorch function that a node was exported from is a clamp, which has no gradient at its limits, and false
// if it shares the gradient there; nothing if the node does not name one. A scalar limit of clamp arrives as a tensor
// that the exporter calls scalar_tensor; between tensors, clamp shares the gradient.
std::optional<bool> statedClamp(const Node& n) {
  StringRef target = n.torchExpression().split("target=torch.ops.aten.").second;
  auto [name, arguments] = target.split(']');
  for (StringRef shares : {"maximum", "minimum", "fmax", "fmin", "max.other", "min.other"})
    if (name.starts_with(shares)) return false;
  if (name.starts_with("clamp") && name.ends_with(".Tensor")) return arguments.contains("scalar_tensor");
  for (StringRef clamps : {"clamp", "clip", "relu6", "hardtanh", "hardsigmoid", "hardswish"})
    if (name.starts_with(clamps)) return true;
  return std::nullopt;
}

// The larger or the smaller of operands. One that is a constant without dimensions is the limit of a clamp.
template <class Op>
LogicalResult extremum(Node& n) {
  auto isLimit = [](const Tensor& x) { return x && x.constant() && x.rank() == 0; };
  if (n.inputs() == 2 && n.input(1)) {
    const bool swapped = isLimit(n.input(0)) && !isLimit(n.input(1));
    Tensor x = n.input(swapped ? 1 : 0), limit = n.input(swapped ? 0 : 1);
    if (statedClamp(n).value_or(isLimit(limit))) return n.set(0, n.emit.bounded<Op>(x, limit));
  }
  return n.set(0, chain<Op>(n));
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
  // The result has the base's type, whatever the exponent's. An exponent of an integer may have a fraction: then the
  // power is of floating-point numbers, and loses its own fraction.
  Emitter& e = n.emit;
  auto isWhole = [](double v) { return v == std::trunc(v); };
  if (!x.isFloat() && y.isFloat() && !(y.constant() && llvm::all_of(y.constant()->elements().f, isWhole))) {
    const Type element = x.constant() && y.constant() ? Type(e.ops().getF64Type()) : Type(e.ops().getF32Type());
    return n.set(0, e.cast(e.binary<train::PowOp>(e.cast(x, element), e.cast(y, element)), x.elementType()));
  }
  return n.set(0, e.binary<train::PowOp>(x, e.cast(y, x.elementType())));
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

Tensor isInfinite(Emitter& e, const Tensor& x) {
  return e.compare(Predicate::eq, e.unary<train::AbsOp>(x), e.splatLike(x, INFINITY));
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
  const bool clamps = statedClamp(n).value_or(true);
  if (low) x = clamps ? n.emit.bounded<train::MaxOp>(x, low) : n.emit.binary<train::MaxOp>(x, low);
  if (high) x = clamps ? n.emit.bounded<train::MinOp>(x, high) : n.emit.binary<train::MinOp>(x, high);
  return n.set(0, x);
}

// The operand of the sigmoid that `x` is, or absent.
Tensor sigmoidOperand(const Tensor& x) {
  auto sigmoid = x && x.value() ? x.value().getDefiningOp<train::SigmoidOp>() : train::SigmoidOp();
  return sigmoid ? Tensor(sigmoid.getOperand()) : Tensor();
}

// The value of a constant whose elements are equal.
std::optional<double> splatOf(Value v) {
  auto constant = v.getDefiningOp<train::ConstantOp>();
  auto splat = constant ? dyn_cast<SplatElementsAttr>(constant.getValue()) : SplatElementsAttr();
  if (!splat || !isa<FloatType>(splat.getElementType())) return std::nullopt;
  return splat.getSplatValue<APFloat>().convertToDouble();
}

// log(exp(x) + exp(y)) = max(x, y) + log(1 + exp(-|x - y|)), which does not overflow.
Tensor logAddExp(Emitter& e, const Tensor& x, const Tensor& y) {
  Tensor distance = e.unary<train::AbsOp>(e.binary<train::SubOp>(x, y));
  // Equal infinities have the distance 0, not NaN.
  Tensor equal = e.compare(Predicate::eq, x, y), infinite = isInfinite(e, x);
  distance = e.select(e.binary<train::AndOp>(equal, infinite), e.splatLike(distance, 0), distance);
  return e.binary<train::AddOp>(e.binary<train::MaxOp>(x, y), softplus(e, e.unary<train::NegOp>(distance)));
}

// Exporters write log_sigmoid, log1p and expm1 as compositions, which lose what is small or far from 0.
LogicalResult logarithm(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  const StringRef call = n.torchExpression();
  if (call.empty() || call.contains("aten.log_sigmoid")) {
    auto logSigmoid = [&](const Tensor& v, bool negated) {
      return n.set(0, e.unary<train::NegOp>(softplus(e, negated ? v : e.unary<train::NegOp>(v))));
    };
    if (Tensor v = sigmoidOperand(x)) return logSigmoid(v, false);
    auto complement = x.value() ? x.value().getDefiningOp<train::SubOp>() : train::SubOp();
    if (complement && splatOf(complement.getLhs()) == 1.0)
      if (Tensor v = sigmoidOperand(complement.getRhs())) return logSigmoid(v, true);
  }
  // TorchScript's exporter has the 1 of log1p first, and that of log(x + 1) last.
  auto sum = x.value() ? x.value().getDefiningOp<train::AddOp>() : train::AddOp();
  for (int side : {0, 1})
    if (sum && (call.empty() ? side == 0 : call.contains("aten.log1p")) && splatOf(sum->getOperand(side)) == 1.0)
      return n.set(0, e.unary<train::Log1pOp>(sum->getOperand(1 - side)));
  if (sum && call.contains("aten.logaddexp.")) {
    auto left = sum.getLhs().getDefiningOp<train::ExpOp>(), right = sum.getRhs().getDefiningOp<train::ExpOp>();
    if (left && right) return n.set(0, logAddExp(e, left.getOperand(), right.getOperand()));
  }
  if (sum && call.contains("aten.logaddexp2.")) {
    auto left = sum.getLhs().getDefiningOp<train::PowOp>(), right = sum.getRhs().getDefiningOp<train::PowOp>();
    if (left && right && splatOf(left.getLhs()) == 2.0 && splatOf(right.getLhs()) == 2.0) {
      auto scaled = [&](Value v) { return e.scalar<train::MulOp>(v, M_LN2); };
      return n.set(0, logAddExp(e, scaled(left.getRhs()), scaled(right.getRhs())));
    }
  }
  return n.set(0, e.unary<train::LogOp>(x));
}

LogicalResult difference(Node& n) {
  Tensor x = n.input(0), y = n.input(1);
  auto power = x && x.value() ? x.value().getDefiningOp<train::ExpOp>() : train::ExpOp();
  if (power && n.torchExpression().contains("aten.expm1") && y && y.constant() && y.rank() == 0)
    return n.set(0, n.emit.unary<train::Expm1Op>(power.getOperand()));
  return n.set(0, n.emit.binary<train::SubOp>(x, y));
}

// atan2(x, y) is written with atan(x / y), whose ratio is infinite at y = 0.
LogicalResult arcTangent(Node& n) {
  Tensor x = n.input(0);
  const StringRef call = n.torchExpression();
  auto ratio = x.value() ? x.value().getDefiningOp<train::DivOp>() : train::DivOp();
  if (ratio && x.isFloat() && (call.empty() || call.contains("aten.atan2")))
    return n.set(0, n.emit.binary<train::AtanRatioOp>(ratio.getLhs(), ratio.getRhs()));
  return n.set(0, n.emit.unary<train::AtanOp>(x));
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

// An operator of the name of an activation. Its second parameter is called gamma where it is a scale.
LogicalResult activation(Node& n) {
  if (failed(floatOperand(n))) return failure();
  const ActivationKind& kind = *findActivation(StringRef(n.proto.op_type()).lower());
  const double alpha = kind.alpha ? n.number("alpha", *kind.alpha) : 0;
  const double beta = kind.beta ? n.number(n.proto.op_type() == "Selu" ? "gamma" : "beta", *kind.beta) : 0;
  return n.set(0, kind.build(n.emit, n.input(0), alpha, beta));
}

LogicalResult celu(Node& n) {
  if (n.number("alpha", 1) == 0) return n.error() << "the attribute alpha must not be 0";
  return activation(n);
}

LogicalResult hardSwish(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor gate = findActivation("hardsigmoid")->build(n.emit, n.input(0), 1.0 / 6, 0.5);
  return n.set(0, n.emit.binary<train::MulOp>(n.input(0), gate));
}

LogicalResult prelu(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Tensor x = n.input(0), above = n.emit.compare(Predicate::gt, x, n.emit.splatLike(x, 0));
  Tensor scaled = n.emit.binary<train::MulOp>(x, n.input(1));
  if (scaled && scaled.shape() != x.shape())
    return n.error() << "the slope, input 1, does not broadcast to the shape of input 0";
  return n.set(0, n.emit.select(above, x, scaled));
}

// x + bias below -lambd, x - bias above lambd, else 0.
LogicalResult shrink(Node& n) {
  if (failed(floatOperand(n))) return failure();
  Emitter& e = n.emit;
  const double lambda = n.number("lambd", 0.5), bias = n.number("bias", 0);
  Tensor x = n.input(0), zero = e.splatLike(x, 0);
  Tensor below = e.compare(Predicate::lt, x, e.splatLike(x, -lambda));
  Tensor above = e.compare(Predicate::gt, x, e.splatLike(x, lambda));
  // Both hold where lambd is negative: then x + bias.
  Tensor shrunk = e.select(above, e.scalar<train::SubOp>(x, bias), zero);
  return n.set(0, e.select(below, e.scalar<train::AddOp>(x, bias), shrunk));
}

constexpr Operator kOperators[] = {
    {"And", 7, 0, 2, logical<train::AndOp>, {.sample = "b[2,3], b[2,3]"}},
    {"BitwiseAnd", 18, 0, 2, bitwise<train::AndOp>, {.sample = "i[2,3], i[2,3]"}},
    {"Or", 7, 0, 2, logical<train::OrOp>, {.sample = "b[2,3], b[2,3]"}},
    {"BitwiseOr", 18, 0, 2, bitwise<train::OrOp>, {.sample = "i[2,3], i[2,3]"}},
    {"Xor", 7, 0, 2, logical<train::XorOp>, {.sample = "b[2,3], b[2,3]"}},
    {"BitwiseXor", 18, 0, 2, bitwise<train::XorOp>, {.sample = "i[2,3], i[2,3]"}},
    {"Pow", 7, 0, 2, power},
    {"Sub", 7, 0, 2, difference},
    {"Log", 6, 0, 1, logarithm},
    {"Atan", 7, 0, 1, arcTangent},
    {"Mod",
     10,
     0,
     2,
     modulo,
     {.sample = "f[2,3], 0.4; fmod=1", .noGradient = {"test_mod_.*", "a remainder has no gradient for its divisor"}}},
    {"Sum", 6, 0, 1, variadic<train::AddOp>, {.sample = "f[2,3], f[2,3]"}},
    {"Min", 6, 0, 1, extremum<train::MinOp>, {.sample = "f[2,3], f[2,3]"}},
    {"Max", 6, 0, 1, extremum<train::MaxOp>, {.sample = "f[2,3], f[2,3]"}},
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
    {"HardSigmoid", 6, 0, 1, activation},
    {"HardSwish", 14, 0, 1, hardSwish},
    {"LeakyRelu", 6, 0, 1, activation},
    {"PRelu", 7, 0, 2, prelu},
    {"Elu", 6, 0, 1, activation},
    {"Celu", 12, 0, 1, celu},
    {"Selu", 6, 0, 1, activation},
    {"Softplus", 1, 0, 1, activation},
    {"Softsign", 1, 0, 1, activation},
    {"Mish", 18, 0, 1, activation},
    {"ThresholdedRelu", 10, 0, 1, activation},
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
