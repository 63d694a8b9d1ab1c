// Normalizations that are the same in training and evaluation.
#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Kind = train::ReduceKind;

// The dimensions from `axis` on as one, as the composites take them.
Tensor asRows(Emitter& e, const Tensor& x, int64_t axis) {
  if (axis == x.rank() - 1) return x;
  Shape shape(x.shape().take_front(axis));
  int64_t size = 1;
  for (int64_t d = axis; d < x.rank(); ++d) size *= x.dim(d);
  shape.push_back(size);
  return e.reshape(x, shape);
}

// Scale or bias: broadcast to the normalized dimensions, then one vector.
Tensor asVector(Emitter& e, const Tensor& v, ArrayRef<int64_t> normalized) {
  Tensor full = e.expand(v, normalized);
  return full ? e.reshape(full, {full.count()}) : Tensor();
}

LogicalResult checkNormalization(Node& n) {
  if (!n.input(0).isFloat() || !n.input(1).isFloat()) return n.error() << "takes floating-point numbers";
  for (int64_t i = 1; i < n.inputs(); ++i)
    if (n.input(i) && n.input(i).elementType() != n.input(0).elementType())
      return n.error() << (i == 1 ? "scale" : "bias") << " and input differ in element type";
  return success();
}

LogicalResult layerNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", -1);
  if (failed(checkNormalization(n)) || !e.checkAxis(axis, x.rank())) return failure();
  auto normalized = x.shape().drop_front(axis);
  Tensor scale = asVector(e, n.input(1), normalized),
         bias = n.input(2) ? asVector(e, n.input(2), normalized) : Tensor();
  if (!scale || (n.input(2) && !bias)) return failure();
  Value rows = e.materialize(asRows(e, x, axis));
  Value scaleValue = e.materialize(scale), biasValue = bias ? e.materialize(bias) : Value();
  Value result = train::LayerNormOp::create(e.ops(), e.location(), rows.getType(), rows, scaleValue, biasValue,
                                            e.ops().getF64FloatAttr(n.number("epsilon", 1e-5)));
  if (failed(n.set(0, e.reshape(result, x.shape())))) return failure();
  if (!n.uses(1) && !n.uses(2)) return success();
  // Mean and inverse deviation, with the normalized dimensions as 1.
  Shape shape(x.shape().take_front(axis));
  shape.append(x.rank() - axis, 1);
  const int64_t stash = n.integer("stash_type", onnx::TensorProto::FLOAT);
  const Type stashed = elementType(e.context(), int32_t(stash));
  if (!isa_and_nonnull<FloatType>(stashed))
    return n.error() << "the attribute stash_type is " << stash
                     << "; it takes the number of a floating-point type, as 1 (FLOAT)";
  Tensor wide = e.atLeastF32(rows);
  Tensor mean = e.reduce(Kind::mean, wide, {axis}), centered = e.binary<train::SubOp>(wide, mean);
  Tensor variance = e.reduce(Kind::mean, e.binary<train::MulOp>(centered, centered), {axis});
  Tensor inverse = e.unary<train::RsqrtOp>(e.scalar<train::AddOp>(variance, n.number("epsilon", 1e-5)));
  if (n.uses(1) && failed(n.set(1, e.cast(e.reshape(mean, shape), stashed)))) return failure();
  return n.uses(2) ? n.set(2, e.cast(e.reshape(inverse, shape), stashed)) : success();
}

LogicalResult rmsNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", -1);
  if (failed(checkNormalization(n)) || !e.checkAxis(axis, x.rank())) return failure();
  Tensor scale = asVector(e, n.input(1), x.shape().drop_front(axis));
  if (!scale) return failure();
  Value rows = e.materialize(asRows(e, x, axis)), scaleValue = e.materialize(scale);
  Value result = train::RmsNormOp::create(e.ops(), e.location(), rows.getType(), rows, scaleValue,
                                          e.ops().getF64FloatAttr(n.number("epsilon", 1e-5)));
  return n.set(0, e.reshape(result, x.shape()));
}

// (x - mean) / sqrt(variance + epsilon) over the last dimension of [.., .., L], in f32 at least: an epsilon may be 0 in
// f16.
Tensor standardized(Emitter& e, const Tensor& narrow, double epsilon) {
  if (!narrow) return {};
  const Tensor x = e.atLeastF32(narrow);
  int64_t last = x.rank() - 1;
  Tensor centered = e.binary<train::SubOp>(x, e.reduce(Kind::mean, x, {last}));
  Tensor variance = e.reduce(Kind::mean, e.binary<train::MulOp>(centered, centered), {last});
  Tensor scale = e.unary<train::RsqrtOp>(e.scalar<train::AddOp>(variance, epsilon));
  return e.cast(e.binary<train::MulOp>(centered, scale), narrow.elementType());
}

// Per-channel scale and bias [C] on [N, C, ...].
Tensor perChannel(Node& n, const Tensor& x, const Tensor& scale, const Tensor& bias) {
  Shape shape(x.rank(), 1);
  shape[1] = x.dim(1);
  Tensor scaled = n.emit.binary<train::MulOp>(x, n.emit.reshape(scale, shape));
  return n.emit.binary<train::AddOp>(scaled, n.emit.reshape(bias, shape));
}

LogicalResult instanceNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  if (x.rank() < 3 || !x.isFloat()) return n.error() << "takes floating-point numbers [N, C, ...]";
  if (x.dim(0) * x.dim(1) == 0) return n.error() << "takes at least one channel";
  Tensor rows = e.reshape(x, {x.dim(0), x.dim(1), x.count() / (x.dim(0) * x.dim(1))});
  Tensor result = e.reshape(standardized(e, rows, n.number("epsilon", 1e-5)), x.shape());
  return result ? n.set(0, perChannel(n, result, n.input(1), n.input(2))) : failure();
}

LogicalResult groupNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), scale = n.input(1), bias = n.input(2);
  int64_t groups = n.integer("num_groups", 0);
  if (x.rank() < 3 || !x.isFloat()) return n.error() << "takes floating-point numbers [N, C, ...]";
  if (groups < 1 || x.dim(1) % groups || x.dim(0) == 0)
    return n.error() << "num_groups " << groups << " does not divide the " << x.dim(1) << " channels";
  Tensor rows = e.reshape(x, {x.dim(0), groups, x.count() / (x.dim(0) * groups)});
  Tensor result = e.reshape(standardized(e, rows, n.number("epsilon", 1e-5)), x.shape());
  // Before opset 21 scale and bias are per group.
  auto channels = [&](const Tensor& v) {
    if (v.count() == x.dim(1)) return v;
    return e.reshape(e.expand(e.reshape(v, {groups, 1}), {groups, x.dim(1) / groups}), {x.dim(1)});
  };
  return result ? n.set(0, perChannel(n, result, channels(scale), channels(bias))) : failure();
}

constexpr Operator kOperators[] = {
    // ONNX's own is from opset 17; ONNX Runtime fuses to it in graphs of any opset.
    {"LayerNormalization", 1, 0, 2, layerNormalization, {.sample = "f[2,3], f[3], f[3]"}},
    {"RMSNormalization", 23, 0, 2, rmsNormalization, {.sample = "f[2,3], f[3]"}},
    {"InstanceNormalization", 6, 0, 3, instanceNormalization, {.sample = "f[1,2,3,3], f[2], f[2]"}},
    {"GroupNormalization", 18, 0, 3, groupNormalization, {.sample = "f[1,4,3], f[4], f[4]; num_groups=2"}},
};

}  // namespace

ArrayRef<Operator> normalizationOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
