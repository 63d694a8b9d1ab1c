// Operators of ONNX Runtime's domain com.microsoft, and ATen's embedding, as its training tools write them into graphs:
// fused operators, and the gradients of operators. Their definitions: onnxruntime, docs/ContribOperators.md and
// orttraining/orttraining/core/graph/training_op_defs.cc.
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Embedding.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Kind = train::ReduceKind;
using Predicate = train::ComparePredicate;

Tensor add(Emitter& e, const Tensor& x, const Tensor& y) {
  return e.binary<train::AddOp>(x, y);
}
Tensor sub(Emitter& e, const Tensor& x, const Tensor& y) {
  return e.binary<train::SubOp>(x, y);
}
Tensor mul(Emitter& e, const Tensor& x, const Tensor& y) {
  return e.binary<train::MulOp>(x, y);
}

// The leading dimensions summed, so that the result has this shape.
Tensor sumTo(Emitter& e, const Tensor& x, ArrayRef<int64_t> shape) {
  if (!x) return {};
  Shape axes;
  for (int64_t d = 0; d < x.rank() - int64_t(shape.size()); ++d) axes.push_back(d);
  return e.reshape(axes.empty() ? x : e.reduce(Kind::sum, x, axes), shape);
}

LogicalResult biasGelu(Node& n) {
  return n.set(0, n.emit.gelu(add(n.emit, n.input(0), n.input(1)), false));
}

LogicalResult gelu(Node& n) {
  return n.set(0, n.emit.gelu(n.input(0), false));
}

LogicalResult fastGelu(Node& n) {
  Tensor x = n.input(1) ? add(n.emit, n.input(0), n.input(1)) : n.input(0);
  return n.set(0, n.emit.gelu(x, true));
}

LogicalResult quickGelu(Node& n) {
  Emitter& e = n.emit;
  return n.set(
      0, mul(e, n.input(0), e.unary<train::SigmoidOp>(e.scalar<train::MulOp>(n.input(0), n.number("alpha", 1.702)))));
}

// (dY, X) or (dY, X, bias).
template <bool approximate>
LogicalResult geluGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(2) ? add(e, n.input(1), n.input(2)) : n.input(1);
  if (!x || !x.isFloat() || x.type() != n.input(0).type()) return n.error() << "takes tensors of one type and shape";
  Value operand = e.materialize(x), gradient = e.materialize(n.input(0));
  return n.set(
      0, Value(train::GeluGradOp::create(e.ops(), e.location(), operand.getType(), operand, gradient, approximate)));
}

// d(x s(ax)) = s(ax) (1 + ax (1 - s(ax))).
LogicalResult quickGeluGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor scaled = e.scalar<train::MulOp>(n.input(1), n.number("alpha", 1.702)), s = e.unary<train::SigmoidOp>(scaled);
  Tensor slope = mul(e, s, add(e, e.splatLike(s, 1), mul(e, scaled, sub(e, e.splatLike(s, 1), s))));
  return n.set(0, mul(e, n.input(0), slope));
}

// (dY, X or Y): both are positive together.
LogicalResult reluGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(1);
  return n.set(0, e.select(e.compare(Predicate::gt, x, e.splatLike(x, 0)), n.input(0), e.splatLike(n.input(0), 0)));
}

// (dY, Y).
LogicalResult sigmoidGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor y = n.input(1);
  return n.set(0, mul(e, n.input(0), mul(e, y, sub(e, e.splatLike(y, 1), y))));
}

LogicalResult tanhGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor y = n.input(1);
  return n.set(0, mul(e, n.input(0), sub(e, e.splatLike(y, 1), mul(e, y, y))));
}

// (dY, Y). `rows`: before opset 13 all dimensions from the axis on are one.
template <bool logarithm, bool rows>
LogicalResult softmaxGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor gradient = n.input(0), y = n.input(1);
  int64_t axis = n.integer("axis", rows ? 1 : -1);
  if (!e.checkAxis(axis, y.rank())) return failure();
  if (gradient.shape() != y.shape()) return n.error() << "takes a gradient of the result's shape";
  Shape axes{axis};
  for (int64_t d = axis + 1; rows && d < y.rank(); ++d) axes.push_back(d);
  Tensor sum = e.reduce(Kind::sum, logarithm ? gradient : mul(e, gradient, y), axes);
  if (logarithm) return n.set(0, sub(e, gradient, mul(e, e.unary<train::ExpOp>(y), sum)));
  return n.set(0, mul(e, y, sub(e, gradient, sum)));
}

// (dY, log probabilities [N, C, ...], labels [N, ...], class weights?, ignored label?). dY is a number, or one for each
// label. The mean divides by the weights of all labels that count. The Internal one adds a sixth input, a bias.
LogicalResult crossEntropyGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor gradient = n.input(0), scores = n.input(1), labels = n.input(2), weights = n.input(3);
  if (scores.rank() < 2 || !scores.isFloat() || labels.isFloat() || labels.rank() + 1 != scores.rank())
    return n.error() << "takes log probabilities [N, C, ...] and integer labels [N, ...]";
  Tensor ignored = n.input(4);
  if (ignored && (!ignored.constant() || ignored.count() != 1))
    return n.error() << "ignore_index must be a known scalar";
  const double ignore = ignored ? ignored.constant()->splatValue() : double(n.integer("ignore_index", -100));
  StringRef reduction = n.string("reduction", "mean");
  if (reduction != "mean" && reduction != "sum" && reduction != "none")
    return n.error() << "the attribute reduction is '" << reduction << "'; it takes none, sum or mean";

  // [N, 1, ...], as scores broadcast.
  Shape column(scores.shape());
  column[1] = 1;
  Tensor wide = e.cast(e.reshape(labels, column), e.ops().getI64Type());
  Tensor counts = e.compare(Predicate::ne, wide, e.splatLike(wide, ignore));
  Tensor weight = e.cast(counts, scores.elementType());
  if (weights) {
    // A label that is ignored need not be a class.
    Tensor safe = e.reshape(e.select(counts, wide, e.splatLike(wide, 0)), {labels.count()});
    weight = mul(e, weight, e.reshape(e.gather(weights, safe, 0), column));
  }
  Shape all;
  for (int64_t d = 0; d < scores.rank(); ++d) all.push_back(d);
  Tensor factor =
      gradient && gradient.count() == 1 ? e.reshape(gradient, Shape(scores.rank(), 1)) : e.reshape(gradient, column);
  factor = mul(e, factor, weight);
  // ONNX Runtime divides by no sum that is 0.
  if (reduction == "mean") {
    Tensor sum = e.reduce(Kind::sum, weight, all);
    Tensor isZero = e.compare(Predicate::eq, sum, e.splatLike(sum, 0));
    factor = e.binary<train::DivOp>(factor, e.select(isZero, e.splatLike(sum, 1), sum));
  }
  Tensor hot =
      e.compare(Predicate::eq, e.iota(e.ops().getI64Type(), scores.shape(), 1), e.expand(wide, scores.shape()));
  Tensor difference = sub(e, e.unary<train::ExpOp>(scores), e.cast(hot, scores.elementType()));
  Tensor result = mul(e, difference, factor);
  Tensor bias = n.input(5);
  if (!bias) return n.set(0, result);
  // ONNX Runtime fuses a reshape and a sum: the bias may have another shape, but no fewer elements.
  if (bias.count() != scores.count() || bias.elementType() != scores.elementType())
    return n.error() << "takes a bias of as many elements as the log probabilities, and of their type";
  return n.set(0, add(e, result, e.reshape(bias, scores.shape())));
}

// (dY, X, scale, mean, inverse deviation) -> dX, d scale, d bias.
LogicalResult layerNormalizationGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor gradient = n.input(0), x = n.input(1), scale = n.input(2), mean = n.input(3), inverse = n.input(4);
  int64_t axis = n.integer("axis", -1);
  if (!e.checkAxis(axis, x.rank())) return failure();
  if (gradient.shape() != x.shape() || scale.rank() > x.rank() - axis)
    return n.error() << "takes a gradient of the input's shape, and a scale of the normalized dimensions";
  Shape axes;
  for (int64_t d = axis; d < x.rank(); ++d) axes.push_back(d);
  mean = e.cast(mean, x.elementType());
  inverse = e.cast(inverse, x.elementType());
  Tensor normal = mul(e, sub(e, x, mean), inverse), g = mul(e, gradient, scale);
  if (!normal || !g) return failure();
  Tensor centered = sub(e, g, e.reduce(Kind::mean, g, axes));
  Tensor along = mul(e, normal, e.reduce(Kind::mean, mul(e, g, normal), axes));
  if (failed(n.set(0, mul(e, inverse, sub(e, centered, along))))) return failure();
  if (n.uses(1) && failed(n.set(1, sumTo(e, mul(e, gradient, normal), scale.shape())))) return failure();
  return n.uses(2) ? n.set(2, sumTo(e, gradient, scale.shape())) : success();
}

LogicalResult fusedMatMul(Node& n) {
  Emitter& e = n.emit;
  if (n.integer("transBatchA", 0) || n.integer("transBatchB", 0))
    return n.error() << "transBatchA and transBatchB are not supported";
  Tensor product = e.matmul(n.input(0), n.input(1), n.integer("transA", 0), n.integer("transB", 0));
  double alpha = n.number("alpha", 1);
  return n.set(0, alpha == 1 ? product : e.scalar<train::MulOp>(product, alpha));
}

// (shape, indices, dY): the adjoint of Gather.
LogicalResult gatherGrad(Node& n) {
  Emitter& e = n.emit;
  auto shape = n.knownIntegers(0, "the shape");
  if (!shape) return failure();
  int64_t axis = n.integer("axis", 0);
  if (!e.checkShape(*shape) || !e.checkAxis(axis, shape->size())) return failure();
  Tensor indices = n.input(1), update = n.input(2);
  if (indices.isFloat() || !update.isFloat()) return n.error() << "takes integer indices and floating-point gradients";
  Shape expected(ArrayRef<int64_t>(*shape).take_front(axis));
  llvm::append_range(expected, indices.shape());
  llvm::append_range(expected, ArrayRef<int64_t>(*shape).drop_front(axis + 1));
  if (update.shape() != ArrayRef<int64_t>(expected))
    return n.error() << "the gradient does not have the shape of the gather";
  auto type = RankedTensorType::get(*shape, update.elementType());
  return n.set(0, Value(train::ScatterAddOp::create(e.ops(), e.location(), type, e.materialize(update),
                                                    e.materialize(indices), axis)));
}

// (dY, shape, starts, ends, axes?, steps?): the gradient at the slice's place, zeros around it.
LogicalResult sliceGrad(Node& n) {
  Emitter& e = n.emit;
  auto shape = n.knownIntegers(1, "the shape"), starts = n.knownIntegers(2, "starts");
  if (!shape || !starts) return failure();
  Tensor gradient = n.input(0);
  if (!e.checkShape(*shape)) return failure();
  std::vector<int64_t> axes, steps(starts->size(), 1);
  for (size_t i = 0; i < starts->size(); ++i) axes.push_back(int64_t(i));
  if (n.input(4)) {
    auto given = n.knownIntegers(4, "axes");
    if (!given) return failure();
    axes = *given;
  }
  if (n.input(5)) {
    auto given = n.knownIntegers(5, "steps");
    if (!given) return failure();
    steps = *given;
  }
  if (axes.size() != starts->size() || steps.size() != starts->size() || int64_t(shape->size()) != gradient.rank())
    return n.error() << "starts, axes and steps must have one entry each";
  Shape low(shape->size(), 0), high(shape->size(), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (!e.checkAxis(axes[i], shape->size())) return failure();
    const int64_t size = (*shape)[axes[i]];
    if (steps[i] != 1) return n.error() << "a step of " << steps[i] << " is not supported";
    int64_t start = (*starts)[i] < 0 ? (*starts)[i] + size : (*starts)[i];
    low[axes[i]] = std::clamp<int64_t>(start, 0, size);
    high[axes[i]] = size - low[axes[i]] - gradient.dim(axes[i]);
  }
  if (llvm::any_of(high, [](int64_t v) { return v < 0; })) return n.error() << "the gradient is larger than its slice";
  return n.set(0, e.pad(gradient, low, high));
}

// Results: the concatenation, and the length of each operand along the axis.
LogicalResult concatTraining(Node& n) {
  Emitter& e = n.emit;
  int64_t axis = n.integer("axis", 0);
  std::vector<Tensor> operands = n.tensors();
  for (const Tensor& operand : operands)
    if (!operand) return n.error() << "an input is missing";
  if (!e.checkAxis(axis, operands[0].rank())) return failure();
  std::vector<int64_t> lengths;
  for (const Tensor& operand : operands) lengths.push_back(operand.rank() > axis ? operand.dim(axis) : 0);
  if (failed(n.set(0, e.concat(operands, axis)))) return failure();
  return n.uses(1) ? n.set(1, e.integers(lengths)) : success();
}

// (shape of a, shape of b): the axes along which each is broadcast.
LogicalResult broadcastGradientArgs(Node& n) {
  auto a = n.knownIntegers(0, "the first shape"), b = n.knownIntegers(1, "the second shape");
  if (!a || !b) return failure();
  const int64_t rank = std::max(a->size(), b->size());
  auto axes = [&](const std::vector<int64_t>& mine, const std::vector<int64_t>& other) {
    std::vector<int64_t> result;
    auto size = [&](const std::vector<int64_t>& shape, int64_t d) {
      int64_t at = d - (rank - int64_t(shape.size()));
      return at < 0 ? int64_t(1) : shape[at];
    };
    for (int64_t d = rank - 1; d >= 0; --d)
      if (d < rank - int64_t(mine.size()) || (size(mine, d) == 1 && size(other, d) != 1)) result.push_back(d);
    return result;
  };
  if (n.uses(0) && failed(n.set(0, n.emit.integers(axes(*a, *b))))) return failure();
  return n.uses(1) ? n.set(1, n.emit.integers(axes(*b, *a))) : success();
}

LogicalResult scale(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), by = n.input(1);
  if (by.count() != 1) return n.error() << "takes one number as the scale";
  by = e.reshape(e.cast(by, x.elementType()), {});
  return n.set(0, n.integer("scale_down", 0) ? e.binary<train::DivOp>(x, by) : mul(e, x, by));
}

// (dY, mask, ratio?, training mode?).
LogicalResult dropoutGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor ratio = n.input(2);
  if (ratio && (!ratio.constant() || ratio.count() != 1)) return n.error() << "the ratio must be a known scalar";
  const double p = ratio ? ratio.constant()->splatValue() : 0.5;
  if (p == 0) return n.set(0, n.input(0));
  Tensor kept = e.scalar<train::MulOp>(n.input(0), 1 / (1 - p));
  return n.set(0, e.select(n.input(1), kept, e.splatLike(kept, 0)));
}

// Where the graph gives its outputs away and gets their gradients back. The only one is the loss.
LogicalResult yield(Node& n) {
  if (n.inputs() != 1 || n.input(0).count() != 1) return n.error() << "takes one scalar, the loss";
  return n.set(0, n.emit.splatLike(n.input(0), 1));
}

LogicalResult passThrough(Node& n) {
  return n.set(0, n.input(0));
}

// Input i: scale_grad_by_freq, a known boolean.
LogicalResult warnOfScaling(Node& n, int64_t i) {
  Tensor scales = n.input(i);
  if (!scales) return success();
  if (!scales.constant() || scales.count() != 1) return n.error() << "scale_grad_by_freq must be a known scalar";
  if (scales.constant()->splatValue() != 0) warnOfFrequency(n.importer);
  return success();
}

// (table, indices, padding index, scale_grad_by_freq, sparse).
LogicalResult atenEmbedding(Node& n) {
  Emitter& e = n.emit;
  Tensor table = n.input(0), indices = n.input(1);
  if (table.rank() != 2 || indices.isFloat()) return n.error() << "takes a table of rows and integer indices";
  Tensor rows = e.gather(table, indices, 0);
  // A graph that comes with gradients has an embedding_backward, which leaves the padding index out.
  if (!rows || !rows.isFloat() || n.importer.evaluates() || n.importer.model.artifacts()) return n.set(0, rows);
  if (failed(warnOfScaling(n, 3))) return failure();
  if (!n.input(2)) return n.set(0, rows);
  auto padding = n.knownIntegers(2, "the padding index");
  if (!padding) return failure();
  if (padding->size() != 1) return n.error() << "takes one padding index";
  return n.set(0, stopPaddingGradient(e, rows, indices, padding->front()));
}

// embedding, and embedding_backward (dY, indices, rows of the table, padding index, scale_grad_by_freq, sparse). What
// is looked up at the padding index gives no gradient.
LogicalResult aten(Node& n) {
  Emitter& e = n.emit;
  StringRef op = n.string("operator", "");
  if (op == "embedding") return atenEmbedding(n);
  if (op != "embedding_backward") return n.error() << "the operator '" << op << "' of ATen is not supported";
  Tensor update = n.input(0), indices = n.input(1);
  auto rows = n.knownIntegers(2, "the rows of the table"), padding = n.knownIntegers(3, "the padding index");
  if (!rows || !padding || failed(warnOfScaling(n, 4))) return failure();
  if (rows->size() != 1 || padding->size() != 1 || update.rank() < 1 || !update.isFloat() || indices.isFloat() ||
      update.shape().drop_back() != indices.shape())
    return n.error() << "takes a row of gradients for each of the integer indices, and two numbers";
  if (padding->front() >= 0)
    update = e.select(isPadding(e, indices, padding->front(), update.shape()), e.splatLike(update, 0), update);
  auto type = RankedTensorType::get({(*rows)[0], update.dim(update.rank() - 1)}, update.elementType());
  if (!e.checkShape(type.getShape())) return failure();
  return n.set(0, Value(train::ScatterAddOp::create(e.ops(), e.location(), type, e.materialize(update),
                                                    e.materialize(indices), 0)));
}

constexpr StringRef kMicrosoft = "com.microsoft";
// Operators of a backward pass that become ops without a gradient.
constexpr CasesLeftOut kBackward{"", "it is of a backward pass"};

constexpr Operator kOperators[] = {
    {"BiasGelu", 1, 0, 2, biasGelu, {.domain = kMicrosoft, .sample = "f[2,3], f[3]"}},
    {"Gelu", 1, 0, 1, gelu, {.domain = kMicrosoft}},
    {"FastGelu", 1, 0, 1, fastGelu, {.domain = kMicrosoft}},
    {"QuickGelu", 1, 0, 1, quickGelu, {.domain = kMicrosoft}},
    {"FusedMatMul",
     1,
     0,
     2,
     fusedMatMul,
     {.domain = kMicrosoft, .sample = "f[2,3], f[3,4]", .limits = "no transBatchA, transBatchB"}},
    {"GeluGrad", 1, 0, 2, geluGrad<false>, {.domain = kMicrosoft, .noGradient = kBackward}},
    {"BiasGeluGrad_dX",
     1,
     0,
     3,
     geluGrad<false>,
     {.domain = kMicrosoft, .sample = "f[2,3], f[2,3], f[3]", .noGradient = kBackward}},
    {"FastGeluGrad", 1, 0, 2, geluGrad<true>, {.domain = kMicrosoft, .noGradient = kBackward}},
    {"BiasFastGeluGrad_dX",
     1,
     0,
     3,
     geluGrad<true>,
     {.domain = kMicrosoft, .sample = "f[2,3], f[2,3], f[3]", .noGradient = kBackward}},
    {"QuickGeluGrad", 1, 0, 2, quickGeluGrad, {.domain = kMicrosoft}},
    {"ReluGrad", 1, 0, 2, reluGrad, {.domain = kMicrosoft}},
    {"SigmoidGrad", 1, 0, 2, sigmoidGrad, {.domain = kMicrosoft}},
    {"TanhGrad", 1, 0, 2, tanhGrad, {.domain = kMicrosoft}},
    {"SoftmaxGrad", 1, 0, 2, softmaxGrad<false, true>, {.domain = kMicrosoft}},
    {"SoftmaxGrad_13", 1, 0, 2, softmaxGrad<false, false>, {.domain = kMicrosoft}},
    {"LogSoftmaxGrad", 1, 0, 2, softmaxGrad<true, true>, {.domain = kMicrosoft}},
    {"LogSoftmaxGrad_13", 1, 0, 2, softmaxGrad<true, false>, {.domain = kMicrosoft}},
    {"SoftmaxCrossEntropyLossGrad", 1, 0, 3, crossEntropyGrad, {.domain = kMicrosoft, .sample = "f[], f[2,3], i[2]"}},
    {"SoftmaxCrossEntropyLossInternalGrad",
     1,
     0,
     3,
     crossEntropyGrad,
     {.domain = kMicrosoft, .sample = "f[], f[2,3], i[2]"}},
    {"LayerNormalizationGrad",
     1,
     0,
     5,
     layerNormalizationGrad,
     {.domain = kMicrosoft, .sample = "f[2,3], f[2,3], f[3], f[2,1], f[2,1]; outputs=3"}},
    {"GatherGrad", 1, 0, 3, gatherGrad, {.domain = kMicrosoft, .sample = "{4,3}, i[2], f[2,3]"}},
    {"SliceGrad",
     1,
     0,
     4,
     sliceGrad,
     {.domain = kMicrosoft, .sample = "f[2,3], {4,3}, {1,0}, {3,3}", .limits = "steps of 1"}},
    {"ConcatTraining", 1, 0, 1, concatTraining, {.domain = kMicrosoft, .sample = "f[2,3], f[2,3]; axis=0"}},
    {"BroadcastGradientArgs",
     1,
     0,
     2,
     broadcastGradientArgs,
     {.domain = kMicrosoft, .sample = "{2,3}, {3}; outputs=2"}},
    {"Scale", 1, 0, 2, scale, {.domain = kMicrosoft, .sample = "f[2,3], 2.0"}},
    {"DropoutGrad", 1, 0, 2, dropoutGrad, {.domain = kMicrosoft, .sample = "f[2,3], b[2,3]"}},
    {"YieldOp", 1, 0, 1, yield, {.domain = kMicrosoft, .sample = "f[]"}},
    {"PassThrough", 1, 0, 1, passThrough, {.domain = kMicrosoft}},
    {"ATen",
     1,
     0,
     2,
     aten,
     {.domain = "org.pytorch.aten",
      .sample = "f[4,3], i[2]; operator=embedding",
      .limits = "embedding and embedding_backward"}},
};

}  // namespace

ArrayRef<Operator> microsoftOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
