// Gradient rules of composite ops: elementwise ops and row reductions over the last dimension, which fuse, or an op
// that has a kernel of its own.
//
// Statistics of half-precision operands are computed in f32, as the forward ops do.
#include "ir/Train/CrossEntropy.h"
#include "ir/Train/TrainGradients.h"

using namespace mlir;
using namespace sheaf::train;

static ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}

static Type elementOf(Value v) {
  return TensorBuilder::typeOf(v).getElementType();
}

// At least f32.
static Value widen(TensorBuilder& t, Value v) {
  return elementOf(v).getIntOrFloatBitWidth() < 32 ? t.cast(v, t.builder.getF32Type()) : v;
}

// A row statistic [.., 1] repeated along the rows of `like`.
static Value alongRow(TensorBuilder& t, Value statistic, Value like) {
  return t.broadcast(statistic, shapeOf(like));
}

// A vector of one element a column repeated for all rows of `like`.
static Value allRows(TensorBuilder& t, Value vector, Value like) {
  SmallVector<int64_t> shape(shapeOf(like).size(), 1);
  shape.back() = shapeOf(like).back();
  return t.broadcast(t.reshape(vector, shape), shapeOf(like));
}

// The sum of all rows, in the type of `vector`.
static Value sumRows(TensorBuilder& t, Value v, Value vector) {
  int64_t columns = shapeOf(v).back();
  int64_t rows = columns ? t.typeOf(v).getNumElements() / columns : 0;
  Value sum = t.reduce(ReduceKind::sum, t.reshape(v, {rows, columns}), {0});
  return t.cast(t.reshape(sum, shapeOf(vector)), elementOf(vector));
}

// The backward pass of xhat -> xhat * scale: g * scale.
static Value scaled(TensorBuilder& t, Value g, Value scale) {
  return t.mul(g, allRows(t, widen(t, scale), g));
}

SHEAF_GRADIENT(SoftmaxOp, {
  g = widen(t, g);
  r = widen(t, r);
  Value dot = t.reduceRows(ReduceKind::sum, t.mul(g, r));
  gradients[0] = t.cast(t.mul(t.sub(g, alongRow(t, dot, g)), r), elementOf(getOperand()));
})

SHEAF_GRADIENT(LogSoftmaxOp, {
  g = widen(t, g);
  Value sum = t.reduceRows(ReduceKind::sum, g);
  gradients[0] = t.cast(t.sub(g, t.mul(t.exp(widen(t, r)), alongRow(t, sum, g))), elementOf(getOperand()));
})

// With xhat = (x - mean) rstd and h = g scale: dx = rstd (h - mean(h) - xhat mean(h xhat)). Mean and rstd are computed
// again from x, which costs a read that the kernel has to do anyway; nothing but x is kept.
SHEAF_GRADIENT(LayerNormOp, {
  Value x = widen(t, getOperand());
  g = widen(t, g);
  Value centred = t.sub(x, alongRow(t, t.reduceRows(ReduceKind::mean, x), x));
  Value variance = t.reduceRows(ReduceKind::mean, t.mul(centred, centred));
  double epsilon = getEpsilon().convertToDouble();
  Value rstd = t.make<RsqrtOp>(variance.getType(), t.add(variance, t.splatLike(variance, epsilon)));
  Value normal = t.mul(centred, alongRow(t, rstd, x));

  Value h = scaled(t, g, getScale());
  Value mean = t.reduceRows(ReduceKind::mean, h);
  Value correlation = t.reduceRows(ReduceKind::mean, t.mul(h, normal));
  Value projected = t.sub(t.sub(h, alongRow(t, mean, x)), t.mul(normal, alongRow(t, correlation, x)));
  gradients[0] = t.cast(t.mul(projected, alongRow(t, rstd, x)), elementOf(getOperand()));
  gradients[1] = sumRows(t, t.mul(g, normal), getScale());
  if (getBias()) gradients[2] = sumRows(t, g, getBias());
})

// The same without the mean.
SHEAF_GRADIENT(RmsNormOp, {
  Value x = widen(t, getOperand());
  g = widen(t, g);
  Value square = t.reduceRows(ReduceKind::mean, t.mul(x, x));
  double epsilon = getEpsilon().convertToDouble();
  Value rstd = t.make<RsqrtOp>(square.getType(), t.add(square, t.splatLike(square, epsilon)));
  Value normal = t.mul(x, alongRow(t, rstd, x));

  Value h = scaled(t, g, getScale());
  Value correlation = t.reduceRows(ReduceKind::mean, t.mul(h, normal));
  Value projected = t.sub(h, t.mul(normal, alongRow(t, correlation, x)));
  gradients[0] = t.cast(t.mul(projected, alongRow(t, rstd, x)), elementOf(getOperand()));
  gradients[1] = sumRows(t, t.mul(g, normal), getScale());
})

// The mask is a constant of the model and the log-sum-exp a statistic: no gradient.
SHEAF_GRADIENT(AttentionOp, {
  auto backward = AttentionGradOp::create(builder, getLoc(), getQuery(), getKey(), getValue(), getResult(),
                                          getLogSumExp(), g, getMask(), getScale(), getCausal(), getWindowAttr());
  gradients[0] = backward.getQueryGradient();
  gradients[1] = backward.getKeyGradient();
  gradients[2] = backward.getValueGradient();
})

// softmax(logits) - onehot(label), times the gradient of the row's loss; nothing in ignored rows.
SHEAF_GRADIENT(CrossEntropyOp, {
  Value logits = widen(t, getLogits()), labels = getLabels();
  g = widen(t, g);
  LogSumExp sum = logSumExp(t, t.reduceRows(ReduceKind::max, logits), widen(t, getLogSum()));
  Value shifted = t.sub(t.sub(logits, alongRow(t, sum.first, logits)), alongRow(t, sum.second, logits));
  Value probability = t.exp(shifted);
  auto classes = RankedTensorType::get(shapeOf(logits), elementOf(labels));
  Value hit = t.compare(ComparePredicate::eq, t.make<IotaOp>(classes, uint64_t(1)), alongRow(t, labels, logits));
  if (auto ignored = getIgnoreIndex()) {
    Value invalid = t.compare(ComparePredicate::eq, labels, t.splatLike(labels, double(int64_t(*ignored))));
    g = t.select(invalid, t.splatLike(g, 0), g);
  }
  Value residual = t.sub(probability, t.cast(hit, elementOf(logits)));
  gradients[0] = t.cast(t.mul(residual, alongRow(t, g, logits)), elementOf(getLogits()));
})

// Linear in the operand, with the mask that (seed, step, node) give again.
SHEAF_GRADIENT(DropoutOp, { gradients[0] = t.make<DropoutOp>(g.getType(), g, getRatio(), getNode(), getBlocks()); })

SHEAF_GRADIENT(ConvOp, {
  gradients[0] = t.make<ConvGradInputOp>(getInput().getType(), g, getFilter(), getStrides(), getPads(), getDilations(),
                                         getGroups(), getChannelsLast());
  gradients[1] = t.make<ConvGradFilterOp>(getFilter().getType(), getInput(), g, getStrides(), getPads(), getDilations(),
                                          getGroups(), getChannelsLast());
})

// A transposed convolution: linear in both operands, the adjoint of train.conv.
SHEAF_GRADIENT(ConvGradInputOp, {
  gradients[0] =
      t.make<ConvOp>(g, getFilter(), getStrides(), getPads(), getDilations(), getGroups(), getChannelsLast());
  gradients[1] = t.make<ConvGradFilterOp>(getFilter().getType(), g, getGradient(), getStrides(), getPads(),
                                          getDilations(), getGroups(), getChannelsLast());
})

SHEAF_GRADIENT(MaxPoolOp, {
  gradients[0] = t.make<MaxPoolGradOp>(getInput().getType(), getInput(), g, getKernel(), getStrides(), getPads(),
                                       getDilations(), getCeilMode(), getChannelsLast());
})
