// Gradient rules of shape ops, reductions, products and indexing.
#include "ir/Train/TrainGradients.h"
#include "ir/Train/ValueRange.h"

using namespace mlir;
using namespace sheaf::train;

static ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}

// --- shape ---

SHEAF_GRADIENT(ReshapeOp, { gradients[0] = t.reshape(g, shapeOf(getOperand())); })
SHEAF_GRADIENT(BroadcastOp, { gradients[0] = t.sumTo(g, shapeOf(getOperand())); })
SHEAF_GRADIENT(ReverseOp, { gradients[0] = t.make<ReverseOp>(g.getType(), g, getAxes()); })

SHEAF_GRADIENT(TransposeOp, {
  SmallVector<int64_t> inverse(getPermutation().size());
  for (auto [i, p] : llvm::enumerate(getPermutation())) inverse[p] = i;
  gradients[0] = t.make<TransposeOp>(g, inverse);
})

// The elements that were read get the gradient, the others zero. A negative step is a reversed positive one.
SHEAF_GRADIENT(SliceOp, {
  SmallVector<int64_t> low, high, interior, reversed;
  for (auto [d, n] : llvm::enumerate(shapeOf(getOperand()))) {
    int64_t start = getStarts()[d], size = getSizes()[d], step = getSteps()[d];
    if (step < 0) {
      start += (size - 1) * step;
      step = -step;
      if (size > 1) reversed.push_back(d);
    }
    // The step means nothing to fewer than two elements; as 1 the pad stays one without interior zeros.
    if (size < 2) step = 1;
    low.push_back(size ? start : 0);
    interior.push_back(step - 1);
    high.push_back(n - (size ? start + (size - 1) * step + 1 : 0));
  }
  if (!reversed.empty()) g = t.make<ReverseOp>(g.getType(), g, reversed);
  gradients[0] = t.make<PadOp>(g, low, high, interior);
})

SHEAF_GRADIENT(PadOp, {
  SmallVector<int64_t> steps;
  for (int64_t i : getInterior()) steps.push_back(i + 1);
  gradients[0] = t.make<SliceOp>(g, getLow(), shapeOf(getOperand()), steps);
})

SHEAF_GRADIENT(ConcatOp, {
  SmallVector<int64_t> starts(shapeOf(g).size(), 0), steps(shapeOf(g).size(), 1);
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    gradients[i] = t.make<SliceOp>(g, starts, shapeOf(operand), steps);
    starts[getAxis()] += shapeOf(operand)[getAxis()];
  }
})

// --- reductions ---

SHEAF_GRADIENT(ReduceOp, {
  Value x = getOperand();
  ArrayRef<int64_t> shape = shapeOf(x);
  auto spread = [&](Value v) { return t.broadcast(v, shape); };
  switch (getKind()) {
    case ReduceKind::sum:
      gradients[0] = spread(g);
      return;
    case ReduceKind::mean: {
      double count = double(t.typeOf(x).getNumElements()) / t.typeOf(g).getNumElements();
      gradients[0] = spread(t.mul(g, 1 / count));
      return;
    }
    case ReduceKind::max:
    case ReduceKind::min: {
      Value ties = t.compare(ComparePredicate::eq, x, spread(r));
      if (getFirst()) {
        int64_t axis = getAxes().front();
        auto positions = RankedTensorType::get(shape, t.builder.getI32Type());
        Value position = t.make<IotaOp>(positions, uint64_t(axis));
        Value candidates = t.select(ties, position, t.splat(positions, double(shape[axis])));
        Value isFirst =
            t.compare(ComparePredicate::eq, position, spread(t.reduce(ReduceKind::min, candidates, getAxes())));
        gradients[0] = t.select(isFirst, spread(g), t.splatLike(x, 0));
        return;
      }
      Value count = t.reduce(ReduceKind::sum, t.cast(ties, t.typeOf(x).getElementType()), getAxes());
      gradients[0] = t.select(ties, spread(t.div(g, count)), t.splatLike(x, 0));
      return;
    }
    case ReduceKind::prod: {
      // The product of the other elements: r / x but for zeros. With one zero only it has a gradient, the product of
      // the rest; with two, none.
      Value zero = t.splatLike(x, 0), isZero = t.compare(ComparePredicate::eq, x, zero);
      Value zeros = t.reduce(ReduceKind::sum, t.cast(isZero, t.typeOf(x).getElementType()), getAxes());
      Value rest = t.select(isZero, t.splatLike(x, 1), x);
      Value product = spread(t.mul(g, t.reduce(ReduceKind::prod, rest, getAxes())));
      Value allowed = t.cast(isZero, t.typeOf(x).getElementType());
      Value others = guardUnless(t, !mayBeInfinite(x), spread(g), x, t.div(product, rest));
      gradients[0] = t.select(t.compare(ComparePredicate::eq, spread(zeros), allowed), others, zero);
      return;
    }
  }
})

SHEAF_GRADIENT(CumSumOp, {
  auto op = CumSumOp::create(builder, getLoc(), g.getType(), g, getAxis(), getExclusive(), !getReverse());
  gradients[0] = op;
})

// --- products and indexing ---

// Of C = op(A) op(B), written with the flags of matmul alone: never a transpose of its own.
SHEAF_GRADIENT(MatMulOp, {
  Value a = getLhs(), b = getRhs();
  bool ta = getTransposeA(), tb = getTransposeB();
  auto product = [&](Value x, Value y, bool transposeX, bool transposeY) {
    return t.make<MatMulOp>(x, y, transposeX, transposeY);
  };
  gradients[0] = ta ? product(b, g, tb, true) : product(g, b, false, !tb);
  gradients[1] = tb ? product(g, a, true, ta) : product(a, g, !ta, false);
})

SHEAF_GRADIENT(GatherOp, { gradients[0] = t.make<ScatterAddOp>(getData().getType(), g, getIndices(), getAxis()); })
SHEAF_GRADIENT(ScatterAddOp, { gradients[0] = t.make<GatherOp>(g, getIndices(), getAxis()); })

SHEAF_GRADIENT(GatherElementsOp, {
  gradients[0] = t.make<ScatterOp>(getData().getType(), ScatterKind::add, getIndices(), g, /*data=*/Value(), getAxis());
})

// For each update, whether it is the last one for its element: its number along the axis is the one that is left where
// all numbers are scattered. Shaped like the indices, then repeated like the update.
static Value isLast(TensorBuilder& t, ScatterOp op) {
  Value indices = op.getIndices();
  auto numbers = RankedTensorType::get(shapeOf(indices), t.builder.getI64Type());
  SmallVector<int64_t> shape(shapeOf(indices));
  shape[op.getAxis()] = shapeOf(op.getResult())[op.getAxis()];
  Value number = t.make<IotaOp>(numbers, op.getAxis());
  Value left =
      t.make<ScatterOp>(numbers.clone(shape), ScatterKind::replace, indices, number, /*data=*/Value(), op.getAxis());
  Value last = t.compare(ComparePredicate::eq, t.make<GatherElementsOp>(left, indices, op.getAxis()), number);
  return t.broadcast(last, shapeOf(op.getUpdate()));
}

SHEAF_GRADIENT(ScatterOp, {
  Value indices = getIndices(), update = getUpdate(), data = getData();
  const int64_t axis = getAxis();
  Type element = t.typeOf(r).getElementType();
  auto found = [&](Value v) -> Value { return t.make<GatherElementsOp>(v, indices, axis); };
  auto scattered = [&](ScatterKind kind, Value v, Value into) -> Value {
    return t.make<ScatterOp>(getType(), kind, indices, v, into, axis);
  };
  auto set = [&](Value ofUpdate, Value ofData) {
    gradients[1] = ofUpdate;
    if (data) gradients[2] = ofData;
  };
  switch (getKind()) {
    case ScatterKind::replace:
      return set(t.select(isLast(t, *this), found(g), t.splatLike(update, 0)),
                 data ? scattered(ScatterKind::replace, t.splatLike(update, 0), g) : Value());
    case ScatterKind::add:
      return set(found(g), g);
    case ScatterKind::mul: {
      // The product of the other factors: that of all but the zeros, over the own one. With one zero only it has a
      // gradient; with two, none.
      Value one = t.splatLike(update, 1);
      Value isZero = t.compare(ComparePredicate::eq, update, t.splatLike(update, 0));
      Value rest = t.select(isZero, one, update);
      Value zeros = scattered(ScatterKind::add, t.cast(isZero, element), Value());
      Value none = t.compare(ComparePredicate::eq, zeros, t.splatLike(zeros, 0));
      Value updates = scattered(ScatterKind::mul, rest, t.splatLike(r, 1));
      Value allowed = t.compare(ComparePredicate::eq, found(zeros), t.cast(isZero, element));
      Value others = t.div(found(t.mul(g, t.mul(data, updates))), rest);
      return set(t.select(allowed, others, t.splatLike(update, 0)),
                 t.select(none, t.mul(g, updates), t.splatLike(r, 0)));
    }
    case ScatterKind::min:
    case ScatterKind::max: {
      Value isUpdate = t.compare(ComparePredicate::eq, update, found(r));
      Value isData = t.compare(ComparePredicate::eq, data, r);
      Value ties = scattered(ScatterKind::add, t.cast(isUpdate, element), t.cast(isData, element));
      Value share = t.div(g, ties);
      return set(t.select(isUpdate, found(share), t.splatLike(update, 0)), t.select(isData, share, t.splatLike(r, 0)));
    }
  }
})

// Every rank's share of the loss depends on every rank's operand.
SHEAF_GRADIENT(GlobalSumOp, { gradients[0] = t.make<GlobalSumOp>(g.getType(), g); })
SHEAF_GRADIENT(GatherRowsOp, {
  const SmallVector<int64_t> own(shapeOf(getOperand()));
  SmallVector<int64_t> apart{shapeOf(g)[0] / own[0]};
  llvm::append_range(apart, own);
  Value all = t.make<GlobalSumOp>(g.getType(), g);
  gradients[0] = t.reshape(t.make<GatherOp>(t.reshape(all, apart), getLeaf(), int64_t{0}), own);
})
