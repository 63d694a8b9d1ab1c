// At kinks and bounds these have PyTorch's gradients: the slope of the negative side at 0, and 0 at a bound.
#include "frontend/onnx/ops/Activations.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

Tensor isAbove(Emitter& e, const Tensor& x, double limit) {
  return e.compare(Predicate::gt, x, e.splatLike(x, limit));
}

template <class Op>
Tensor function(Emitter& e, const Tensor& x, double, double) {
  return e.unary<Op>(x);
}

Tensor affine(Emitter& e, const Tensor& x, double alpha, double beta) {
  return e.scalar<train::AddOp>(e.scalar<train::MulOp>(x, alpha), beta);
}

Tensor scaledTanh(Emitter& e, const Tensor& x, double alpha, double beta) {
  return e.scalar<train::MulOp>(e.unary<train::TanhOp>(e.scalar<train::MulOp>(x, beta)), alpha);
}

Tensor hardSigmoid(Emitter& e, const Tensor& x, double alpha, double beta) {
  Tensor line = affine(e, x, alpha, beta);
  return e.bounded<train::MinOp>(e.bounded<train::MaxOp>(line, e.splatLike(line, 0)), e.splatLike(line, 1));
}

Tensor leakyRelu(Emitter& e, const Tensor& x, double alpha, double) {
  return e.select(isAbove(e, x, 0), x, e.scalar<train::MulOp>(x, alpha));
}

Tensor thresholdedRelu(Emitter& e, const Tensor& x, double alpha, double) {
  return e.select(isAbove(e, x, alpha), x, e.splatLike(x, 0));
}
Tensor recurrentThresholdedRelu(Emitter& e, const Tensor& x, double alpha, double) {
  return e.select(e.compare(Predicate::ge, x, e.splatLike(x, alpha)), x, e.splatLike(x, 0));
}

// scale * (x where positive, else alpha * (e^(x / stretch) - 1)); the exponential sees no positive x, which it might
// overflow on.
Tensor exponentialUnit(Emitter& e, const Tensor& x, double alpha, double scale, double stretch) {
  Tensor positive = isAbove(e, x, 0), below = e.select(positive, e.splatLike(x, 0), x);
  if (stretch != 1) below = e.scalar<train::DivOp>(below, stretch);
  Tensor negative = e.scalar<train::MulOp>(e.unary<train::Expm1Op>(below), alpha * scale);
  return e.select(positive, scale == 1 ? x : e.scalar<train::MulOp>(x, scale), negative);
}
Tensor elu(Emitter& e, const Tensor& x, double alpha, double) {
  return exponentialUnit(e, x, alpha, 1, 1);
}
Tensor celu(Emitter& e, const Tensor& x, double alpha, double) {
  return exponentialUnit(e, x, alpha, 1, alpha);
}
Tensor selu(Emitter& e, const Tensor& x, double alpha, double gamma) {
  return exponentialUnit(e, x, alpha, gamma, 1);
}

Tensor softsign(Emitter& e, const Tensor& x, double, double) {
  return e.binary<train::DivOp>(x, e.scalar<train::AddOp>(e.unary<train::AbsOp>(x), 1));
}

Tensor mish(Emitter& e, const Tensor& x, double, double) {
  return e.binary<train::MulOp>(x, e.unary<train::TanhOp>(softplus(e, x)));
}

constexpr ActivationKind kKinds[] = {
    {"affine", 1.0, 0.0, true, affine},
    {"celu", 1.0, {}, false, celu},
    {"elu", 1.0, {}, true, elu},
    {"hardsigmoid", 0.2, 0.5, true, hardSigmoid},
    {"leakyrelu", 0.01, {}, true, leakyRelu},
    {"mish", {}, {}, false, mish},
    {"relu", {}, {}, true, function<train::ReluOp>},
    {"scaledtanh", 1.0, 1.0, true, scaledTanh},
    {"selu", 1.67326319217681884765625, 1.05070102214813232421875, false, selu},
    {"sigmoid", {}, {}, true, function<train::SigmoidOp>},
    {"softplus", {}, {}, true, function<train::SoftplusOp>},
    {"softsign", {}, {}, true, softsign},
    {"tanh", {}, {}, true, function<train::TanhOp>},
    {"thresholdedrelu", 1.0, {}, false, thresholdedRelu},
    {"thresholdedrelu", 1.0, {}, true, recurrentThresholdedRelu},
};

}  // namespace

const ActivationKind* findActivation(StringRef lowerCaseName) {
  const auto* kind = llvm::find_if(kKinds, [&](const ActivationKind& k) { return k.name == lowerCaseName; });
  return kind == std::end(kKinds) ? nullptr : kind;
}

const ActivationKind* findRecurrentActivation(StringRef lowerCaseName) {
  const auto* kind =
      llvm::find_if(kKinds, [&](const ActivationKind& k) { return k.recurrent && k.name == lowerCaseName; });
  return kind == std::end(kKinds) ? nullptr : kind;
}

Tensor softplus(Emitter& e, const Tensor& x) {
  return e.unary<train::SoftplusOp>(x);
}

}  // namespace sheaf::frontend
