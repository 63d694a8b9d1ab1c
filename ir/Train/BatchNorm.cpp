// What train.batch_norm is: result types, gradient, evaluation; and the rule that updates running statistics.
#include "ir/Train/BatchNorm.h"

#include <cmath>

#include "ir/Train/EvaluatorDetail.h"
#include "ir/Train/TrainGradients.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace sheaf::train;

#define GET_OP_CLASSES
#include "ir/Train/BatchNorm.cpp.inc"

LogicalResult BatchNormOp::inferReturnTypes(MLIRContext* context, std::optional<Location> location, ValueRange operands,
                                            DictionaryAttr attributes, OpaqueProperties properties, RegionRange regions,
                                            SmallVectorImpl<Type>& types) {
  Adaptor op(operands, attributes, properties, regions);
  auto x = TensorBuilder::typeOf(op.getOperand());
  if (x.getRank() < 2) return emitOptionalError(location, "takes [N, C, ...]");
  const int64_t channel = op.getChannelsLast() ? x.getRank() - 1 : 1;
  for (Value v : {op.getScale(), op.getBias()})
    if (TensorBuilder::typeOf(v).getShape() != x.getShape().slice(channel, 1))
      return emitOptionalError(location, "takes one scale and bias a channel");
  Type wide = x.getElementType().isF64() ? x.getElementType() : Float32Type::get(context);
  auto moment = RankedTensorType::get({x.getDimSize(channel)}, wide);
  types.assign({x, moment, moment});
  return success();
}

// --- Channels -----------------------------------------------------------------------------------------------------

int64_t Channels::dimension() {
  return op.getChannelsLast() ? TensorBuilder::typeOf(op.getOperand()).getRank() - 1 : 1;
}

int64_t Channels::count() {
  return TensorBuilder::typeOf(op.getOperand()).getDimSize(dimension());
}

double Channels::elements() {
  auto type = TensorBuilder::typeOf(op.getOperand());
  return double(type.getNumElements()) / double(std::max<int64_t>(count(), 1)) * double(op.getRanks());
}

SmallVector<int64_t> Channels::axes() {
  SmallVector<int64_t> all = llvm::to_vector(llvm::seq<int64_t>(0, TensorBuilder::typeOf(op.getOperand()).getRank()));
  llvm::erase(all, dimension());
  return all;
}

Value Channels::spread(Value numbers) {
  auto type = TensorBuilder::typeOf(op.getOperand());
  SmallVector<int64_t> shape(type.getRank(), 1);
  shape[dimension()] = count();
  return t.broadcast(t.reshape(numbers, shape), type.getShape());
}

Value Channels::inverseDeviation(Value variance) {
  Value shifted = t.add(variance, t.splatLike(variance, op.getEpsilon().convertToDouble()));
  return t.make<RsqrtOp>(shifted.getType(), shifted);
}

// --- Gradient -----------------------------------------------------------------------------------------------------

// With xhat = (x - mean) rstd, n elements a channel, and sums over all of a channel's elements on all ranks:
//   dx = scale rstd (g - sum(g) / n - xhat sum(g xhat) / n).
// The gradients of scale and bias are this rank's parts of these sums. xhat is computed again from x, as in layer norm.
SHEAF_GRADIENT(BatchNormOp, {
  Channels c{t, *this};
  Type wide = elementTypeOf(getMean()), narrow = elementTypeOf(getOperand());
  Value x = t.cast(getOperand(), wide);
  g = t.cast(g, wide);
  Value rstd = c.inverseDeviation(c.column(getVariance()));
  Value normal = t.mul(t.sub(x, c.spread(getMean())), c.spread(rstd));
  Value sum = c.column(t.reduce(ReduceKind::sum, g, c.axes()));
  Value correlation = c.column(t.reduce(ReduceKind::sum, t.mul(g, normal), c.axes()));
  auto parameter = [&](Value total) {
    return t.cast(t.reshape(total, TensorBuilder::typeOf(getScale()).getShape()), elementTypeOf(getScale()));
  };
  gradients[1] = parameter(correlation);
  gradients[2] = parameter(sum);

  // One exchange for both.
  if (getRanks() > 1) {
    Value both = t.make<ConcatOp>(ValueRange{sum, correlation}, uint64_t(0));
    both = t.make<GlobalSumOp>(both.getType(), both);
    auto half = [&](int64_t start) {
      return t.make<SliceOp>(both, ArrayRef<int64_t>{start, 0}, ArrayRef<int64_t>{c.count(), 1},
                             ArrayRef<int64_t>{1, 1});
    };
    sum = half(0);
    correlation = half(c.count());
  }
  Value scale = t.mul(c.column(t.cast(getScale(), wide)), rstd);
  Value centred = t.sub(g, c.spread(t.mul(sum, 1 / c.elements())));
  Value projected = t.sub(centred, t.mul(normal, c.spread(t.mul(correlation, 1 / c.elements()))));
  gradients[0] = t.cast(t.mul(projected, c.spread(scale)), narrow);
})

// --- Evaluation ---------------------------------------------------------------------------------------------------

evaluator::Outcome evaluator::evaluateBatchNorm(Operation* operation, Operands in, Results out,
                                                const EvaluatorOptions& options) {
  auto op = dyn_cast<BatchNormOp>(operation);
  if (!op) return std::nullopt;
  const Tensor &x = *in[0], &scale = *in[1], &bias = *in[2];
  ArrayRef<int64_t> shape = x.type.getShape();
  const size_t channel = op.getChannelsLast() ? shape.size() - 1 : 1;
  const int64_t channels = shape[channel], inner = extent(shape, channel + 1, shape.size());
  const double epsilon = op.getEpsilon().convertToDouble();
  auto channelOf = [&](int64_t e) { return e / inner % channels; };
  auto average = [&](Tensor& sums) {
    if (op.getRanks() > 1 && options.globalSum) options.globalSum(sums);
    for (double& sum : sums.f) sum /= double(x.size() / channels) * double(op.getRanks());
  };
  Tensor &mean = out[1], &variance = out[2];
  for (int64_t e = 0; e < x.size(); ++e) mean.f[channelOf(e)] += x.f[e];
  average(mean);
  for (int64_t e = 0; e < x.size(); ++e) {
    const double centred = x.f[e] - mean.f[channelOf(e)];
    variance.f[channelOf(e)] += centred * centred;
  }
  average(variance);
  for (int64_t e = 0; e < x.size(); ++e) {
    const int64_t c = channelOf(e);
    out[0].f[e] = (x.f[e] - mean.f[c]) / std::sqrt(variance.f[c] + epsilon) * scale.f[c] + bias.f[c];
  }
  return success();
}

// --- Running statistics -------------------------------------------------------------------------------------------

OptimizerOp sheaf::train::declareStatisticsRule(OpBuilder& builder, Location location, StringRef name,
                                                double momentum) {
  OpBuilder::InsertionGuard guard(builder);
  auto rate = ScalarAttr::get(builder.getContext(), ScalarKind::constant, 1 - momentum);
  auto rule = OptimizerOp::create(builder, location, name, builder.getArrayAttr({}), builder.getArrayAttr({rate}));
  rule->setDiscardableAttr(kStatisticsAttr, builder.getUnitAttr());
  Block& body = rule.getBody().emplaceBlock();
  auto scalar = RankedTensorType::get({}, builder.getF32Type());
  Value old = body.addArgument(scalar, location), moment = body.addArgument(scalar, location);
  Value weight = body.addArgument(scalar, location);
  builder.setInsertionPointToEnd(&body);
  TensorBuilder t{builder, location};
  Value updated = t.fma(weight, t.sub(moment, old), old);
  YieldOp::create(builder, location, ValueRange{updated});
  return rule;
}
