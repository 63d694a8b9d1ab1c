#include "frontend/onnx/training/OptimizerRules.h"

using namespace mlir;

namespace sheaf::frontend {

int optimizerStates(StringRef op) {
  return op == "Adam" ? 2 : op == "Adagrad" || op == "Momentum" ? 1 : 0;
}

int optimizerVariables(const onnx::NodeProto& node) {
  int states = optimizerStates(node.op_type()), variables = states ? (node.input_size() - 2) / (2 + states) : 0;
  bool fits = variables > 0 && node.input_size() == 2 + variables * (2 + states) &&
              node.output_size() == variables * (1 + states);
  return fits ? variables : 0;
}

SmallVector<Tensor> optimizerStep(Emitter& emit, const onnx::NodeProto& node, const OptimizerInputs& inputs,
                                  const Counter& counter) {
  StringRef op = node.op_type();
  auto number = [&](StringRef name, double otherwise) {
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (attribute.name() == name) return double(attribute.f());
    return otherwise;
  };
  auto constant = [&](double v) { return emit.splat(emit.ops().getF32Type(), {}, v); };
  auto mul = [&](const Tensor& x, const Tensor& y) { return emit.binary<train::MulOp>(x, y); };
  auto add = [&](const Tensor& x, const Tensor& y) { return emit.binary<train::AddOp>(x, y); };
  auto sub = [&](const Tensor& x, const Tensor& y) { return emit.binary<train::SubOp>(x, y); };
  auto div = [&](const Tensor& x, const Tensor& y) { return emit.binary<train::DivOp>(x, y); };
  auto rootPlus = [&](const Tensor& x, double epsilon) { return add(emit.unary<train::SqrtOp>(x), constant(epsilon)); };
  Tensor x = inputs.x, g = inputs.gradient, rate = inputs.rate, first = inputs.states.front();
  double decay = number("norm_coefficient", 0);
  if (decay != 0) g = add(mul(constant(decay), x), g);

  SmallVector<Tensor> result;
  if (op == "Momentum") {
    double alpha = number("alpha", 0), beta = number("beta", 0);
    Tensor v = add(mul(constant(alpha), first), mul(counter.whenPositive(constant(beta), constant(1)), g));
    auto isNesterov = [](const onnx::AttributeProto& a) { return a.name() == "mode" && a.s() == "nesterov"; };
    Tensor step = llvm::any_of(node.attribute(), isNesterov) ? add(g, mul(constant(alpha), v)) : v;
    result = {sub(x, mul(rate, step)), v};
  } else if (op == "Adagrad") {
    double epsilon = number("epsilon", 1e-6f), decayFactor = number("decay_factor", 0);
    Tensor h = add(first, mul(g, g));
    if (decayFactor != 0) rate = div(rate, add(constant(1), mul(counter.value(), constant(decayFactor))));
    result = {sub(x, div(mul(rate, g), rootPlus(h, epsilon))), h};
  } else {
    double alpha = number("alpha", 0.9f), beta = number("beta", 0.999f), epsilon = number("epsilon", 1e-6f);
    double post = number("norm_coefficient_post", 0);
    Tensor v = add(mul(constant(alpha), first), mul(constant(1 - alpha), g));
    Tensor h = add(mul(constant(beta), inputs.states[1]), mul(constant(1 - beta), mul(g, g)));
    Tensor corrected =
        counter.whenPositive(div(mul(rate, counter.correction(beta, true)), counter.correction(alpha, false)), rate);
    Tensor updated = sub(x, div(mul(corrected, v), rootPlus(h, epsilon)));
    if (post != 0) updated = mul(constant(1 - post), updated);
    result = {updated, v, h};
  }
  return llvm::all_of(result, [](const Tensor& t) { return bool(t); }) ? result : SmallVector<Tensor>();
}

namespace {

// A node in a graph: R, T, then all variables, all gradients, all states.
LogicalResult optimizer(Node& n) {
  Emitter& e = n.emit;
  int variables = optimizerVariables(n.proto), states = optimizerStates(n.proto.op_type());
  if (!variables) return n.error() << "has the wrong number of inputs or outputs";
  if (n.input(0).count() != 1 || n.input(1).count() != 1) return n.error() << "takes a scalar R and a scalar T";
  Type f32 = e.ops().getF32Type();
  Tensor t = e.cast(e.reshape(n.input(1), {}), f32);
  Tensor positive = e.compare(train::ComparePredicate::gt, t, e.splatLike(t, 0));
  Counter counter;
  counter.value = [&] { return t; };
  counter.whenPositive = [&](const Tensor& then, const Tensor& otherwise) {
    return e.select(positive, then, otherwise);
  };
  counter.correction = [&](double rate, bool root) {
    Tensor correction = e.binary<train::SubOp>(e.splatLike(t, 1), e.binary<train::PowOp>(e.splatLike(t, rate), t));
    return root ? e.unary<train::SqrtOp>(correction) : correction;
  };
  for (int i = 0; i < variables; ++i) {
    OptimizerInputs inputs{e.cast(e.reshape(n.input(0), {}), f32), n.input(2 + i), n.input(2 + variables + i), {}};
    for (int s = 0; s < states; ++s) inputs.states.push_back(n.input(2 + (2 + s) * variables + i));
    for (const Tensor& value : {inputs.x, inputs.gradient})
      if (!value || value.elementType() != f32) return n.error() << "only variables of type FLOAT are supported";
    SmallVector<Tensor> results = optimizerStep(e, n.proto, inputs, counter);
    if (results.empty()) return failure();
    for (int k = 0; k <= states; ++k)
      if (failed(n.set(k * variables + i, results[k]))) return failure();
  }
  return success();
}

constexpr Operator kOperators[] = {
    {"Adagrad", 1, 0, 5, optimizer, {.domain = kTrainingDomain, .lowering = "train.optimizer, an elementwise rule"}},
    {"Adam", 1, 0, 6, optimizer, {.domain = kTrainingDomain, .lowering = "train.optimizer, an elementwise rule"}},
    {"Momentum", 1, 0, 5, optimizer, {.domain = kTrainingDomain, .lowering = "train.optimizer, an elementwise rule"}},
};

}  // namespace

ArrayRef<Operator> optimizerOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
