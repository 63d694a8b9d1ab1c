#include "passes/train/Globalizer.h"

#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
#include "passes/train/LossWeight.h"

using namespace mlir;

namespace sheaf::train {
namespace {

ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}

int64_t product(ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

bool isFloat(Value v) {
  return isa<FloatType>(TensorBuilder::typeOf(v).getElementType());
}

}  // namespace

LogicalResult Globalizer::run() {
  Block& body = step.getBody().front();
  for (BlockArgument argument : body.getArguments())
    if (auto type = dyn_cast<RankedTensorType>(argument.getType());
        type && type.getRank() > 0 && type.getDimSize(0) > 0 &&
        !step.getArgAttr(argument.getArgNumber(), "train.whole"))
      states[argument] = BatchState::split({0}, rows = type.getDimSize(0));
  findLeading(body);
  for (Operation& op : llvm::make_early_inc_range(body)) {
    if (op.hasTrait<OpTrait::IsTerminator>()) continue;
    FailureOr<BatchState> state = op.getNumOperands() ? visit(&op) : BatchState();
    if (failed(state)) return failure();
    if (ranks > 1 && !rowsKnown && !fixedRows && failed(checkConstants(&op, states, !state->isSplit())))
      return failure();
    for (OpResult result : op.getResults()) {
      if (states.contains(result)) continue;
      FailureOr<BatchState> of = rowsKnown ? known(result, *state) : *state;
      if (failed(of)) return failure();
      states[result] = leading.contains(result) && of->mayBe(0) ? leadingOf(*of) : *of;
    }
  }
  if (mask) weighLoss(step, ranks, mask, [&](Value v) { return of(v).isPartial(); });
  // Where a rank has one row, its part of a sum over the batch is that row.
  for (auto reduce : llvm::make_early_inc_range(body.getOps<ReduceOp>()))
    if (reduce.getType() == reduce.getOperand().getType()) {
      reduce.replaceAllUsesWith(reduce.getOperand());
      reduce.erase();
    }
  return success();
}

bool Globalizer::anyPartial(Operation* op) const {
  return llvm::any_of(op->getOperands(), [&](Value v) { return of(v).isPartial(); });
}

bool Globalizer::anySplit(Operation* op) const {
  return llvm::any_of(op->getOperands(), [&](Value v) { return of(v).isSplit(); });
}

bool Globalizer::takesSamples(Operation* op) {
  return isa<AttentionOp, CrossEntropyOp, ConvOp, ConvGradInputOp, ConvGradFilterOp, MaxPoolOp, MaxPoolGradOp,
             MaxPoolIndicesOp, BatchNormOp>(op);
}

void Globalizer::findLeading(Block& body) {
  for (Operation& op : llvm::reverse(body))
    if (takesSamples(&op) || (op.hasTrait<OpTrait::Elementwise>() && leading.contains(op.getResult(0))))
      leading.insert(op.operand_begin(), op.operand_end());
}

LogicalResult Globalizer::sumPartialOperands(Operation* op, unsigned first) {
  for (OpOperand& operand : op->getOpOperands().drop_front(first)) {
    Value value = operand.get();
    if (!of(value).isPartial()) continue;
    Value& sum = sums[value];
    if (!sum) {
      builder.setInsertionPointAfterValue(value);
      TensorBuilder t{builder, value.getLoc()};
      // Integers are summed in f64, which holds them exactly up to 2^53.
      const Type element = TensorBuilder::typeOf(value).getElementType();
      Value term = isa<FloatType>(element) ? value : t.cast(value, builder.getF64Type());
      states[term] = of(value);
      Value whole = GlobalSumOp::create(builder, value.getLoc(), term.getType(), term);
      sum = t.cast(whole, element);
      BatchState state = of(value);
      state.kind = state.dimensions.empty() ? BatchState::Replicated : BatchState::Split;
      states[whole] = states[sum] = state;
    }
    operand.set(sum);
  }
  return success();
}

void Globalizer::shareOperand(OpOperand& operand) {
  builder.setInsertionPoint(operand.getOwner());
  TensorBuilder t{builder, operand.getOwner()->getLoc()};
  operand.set(t.mul(operand.get(), 1.0 / double(ranks)));
  states[operand.get()] = BatchState::partial();
}

FailureOr<bool> Globalizer::holdBatch(Operation* op, const BatchState& state, ArrayRef<int64_t> dimensions) {
  if (state.dimensions.empty()) return false;
  int64_t count = llvm::count_if(state.dimensions, [&](int64_t d) { return llvm::is_contained(dimensions, d); });
  if (count == 0 || count == int64_t(state.dimensions.size())) return count > 0;
  return unknownBatch(op);
}

FailureOr<BatchState> Globalizer::visitAlong(Operation* op, ArrayRef<int64_t> dimensions) {
  BatchState state = of(op->getOperand(0));
  FailureOr<bool> holds = holdBatch(op, state, dimensions);
  if (failed(holds)) return failure();
  if (*holds) return crossesRows(op);
  return state;
}

FailureOr<BatchState> Globalizer::visitLastDimension(Operation* op) {
  if (failed(sumPartialOperands(op))) return failure();
  for (Value other : op->getOperands().drop_front())
    if (of(other).isSplit()) return mixes(op);
  return visitAlong(op, {int64_t(shapeOf(op->getOperand(0)).size()) - 1});
}

FailureOr<BatchState> Globalizer::visitPerSample(Operation* op) {
  if (failed(sumPartialOperands(op))) return failure();
  BatchState state;
  for (Value operand : op->getOperands())
    if (BatchState s = of(operand); s.isSplit()) {
      if (!s.mayBe(0)) return crossesRows(op);
      BatchState leading = leadingOf(s);
      leading.uniform = s.uniform;
      auto met = state.isSplit() ? state.meet(leading) : leading;
      if (!met) return mixes(op);
      state = *met;
    }
  state.uniform = false;
  return state;
}

LogicalResult Globalizer::unsupported(Operation* op, const Twine& what) {
  return op->emitOpError() << what << ", which is not supported with more than one rank, leaf or micro-batch";
}

LogicalResult Globalizer::crossesRows(Operation* op) {
  auto one = [&](Value v) { return of(v).isSplit() && of(v).rows == 1; };
  if (llvm::any_of(op->getOperands(), one))
    return op->emitOpError(
        "mixes rows of the batch that lie on different ranks, or seems to, since the graph is fixed to one row of it "
        "for each leaf, or rank: "
        "export the model with a dynamic batch");
  return unsupported(op, "mixes rows of the batch that lie on different ranks");
}

LogicalResult Globalizer::unknownBatch(Operation* op) {
  return op->emitOpError(
      "acts on one of several dimensions, any of which may be the batch, since the graph is fixed to one row of it for "
      "each leaf, or rank: "
      "export the model with a dynamic batch");
}

LogicalResult Globalizer::mixes(Operation* op) {
  return unsupported(op, "combines values that carry the batch in different dimensions");
}

FailureOr<BatchState> Globalizer::visit(Operation* op) {
  return llvm::TypeSwitch<Operation*, FailureOr<BatchState>>(op)
      .Case<LossOp>([&](auto o) { return visitLoss(o); })
      .Case<OutputOp>([&](auto o) { return visitOutput(o); })
      .Case<UpdateOp>([&](auto o) { return visitUpdate(o); })
      .Case<BatchNormOp>([&](auto o) { return visitBatchNorm(o); })
      .Case<ReduceOp>([&](auto o) { return visitReduce(o); })
      .Case<ReshapeOp>([&](auto o) { return visitReshape(o); })
      .Case<ConcatOp>([&](auto o) { return visitConcat(o); })
      .Case<MatMulOp>([&](auto o) { return visitMatMul(o); })
      .Case<GatherOp>([&](auto o) { return visitGather(o); })
      .Case<ScatterAddOp>([&](auto o) { return visitScatterAdd(o); })
      .Case<GatherElementsOp>([&](auto o) { return visitGatherElements(o); })
      .Case<ScatterOp>([&](auto o) { return visitScatter(o); })
      .Case<TopKOp>([&](TopKOp o) -> FailureOr<BatchState> {
        if (failed(sumPartialOperands(op))) return failure();
        return visitAlong(op, {int64_t(o.getAxis())});
      })
      .Case<AddOp, SubOp>([&](auto) { return visitAdditive(op); })
      .Case<MulOp>([&](auto) { return visitScaling(op, false); })
      .Case<DivOp>([&](auto) { return visitScaling(op, true); })
      .Case<NegOp, CastOp>([&](auto) -> FailureOr<BatchState> {
        // A cast is linear where it goes to a float.
        if (of(op->getOperand(0)).isPartial() && isa<CastOp>(op) && !isFloat(op->getResult(0)))
          return visitElementwise(op);
        return of(op->getOperand(0));
      })
      .Case<BroadcastOp>([&](BroadcastOp o) -> FailureOr<BatchState> {
        // Only a dimension that is not the batch can be repeated.
        BatchState state = of(o.getOperand());
        for (auto [d, n] : llvm::enumerate(shapeOf(o.getResult())))
          if (n != shapeOf(o.getOperand())[d] && state.mayBe(d)) {
            if (state.is(d)) return crossesRows(op);
            llvm::erase(state.dimensions, int64_t(d));
          }
        return state;
      })
      .Case<TransposeOp>([&](TransposeOp o) {
        return of(o.getOperand()).moved([&](int64_t d) {
          return llvm::find(o.getPermutation(), d) - o.getPermutation().begin();
        });
      })
      .Case<SliceOp, PadOp>([&](auto o) {
        SmallVector<int64_t> changed;
        for (auto [d, n] : llvm::enumerate(shapeOf(o.getResult())))
          if (n != shapeOf(o.getOperand())[d]) changed.push_back(d);
        if (auto slice = dyn_cast<SliceOp>(op))
          for (auto [d, s] : llvm::enumerate(slice.getSteps()))
            if (s < 0 && slice.getSizes()[d] > 1) changed.push_back(d);
        return visitAlong(op, changed);
      })
      .Case<ReverseOp>([&](ReverseOp o) { return visitAlong(op, o.getAxes()); })
      .Case<CumSumOp>([&](CumSumOp o) { return visitAlong(op, {int64_t(o.getAxis())}); })
      .Case<SoftmaxOp, LogSoftmaxOp, LayerNormOp, RmsNormOp>([&](auto) { return visitLastDimension(op); })
      .Case<AttentionOp, CrossEntropyOp>([&](auto) { return visitPerSample(op); })
      .Case<ConvOp, ConvGradInputOp, MaxPoolOp, MaxPoolIndicesOp>([&](auto) -> FailureOr<BatchState> {
        for (Value other : op->getOperands().drop_front())
          if (of(other).isSplit()) return mixes(op);
        return visitPerSample(op);
      })
      .Case<MaxPoolGradOp>([&](auto) { return visitPerSample(op); })
      .Case<ConvGradFilterOp>([&](auto o) -> FailureOr<BatchState> {
        // A sum over the samples of both operands.
        if (failed(sumPartialOperands(op))) return failure();
        BatchState input = of(o.getInput()), gradient = of(o.getGradient());
        if (!input.isSplit() && !gradient.isSplit()) return BatchState();
        if (!input.mayBe(0) || !gradient.mayBe(0)) return mixes(op);
        maskOperand(o.getGradientMutable());
        return BatchState::partial();
      })
      .Case<DropoutOp, RandomUniformOp>([&](auto) -> FailureOr<BatchState> {
        // Numbers are drawn by the index in the global batch: its rows must be this tensor's leading dimension.
        BatchState state = of(op->getOperand(0));
        bool leading = state.isSplit() && state.mayBe(0);
        state.uniform = false;
        if (leading && shapeOf(op->getOperand(0))[0] == state.rows * state.minor) return state;
        return unsupported(op, Twine(isa<DropoutOp>(op) ? "drops elements of" : "draws random numbers for") +
                                   " a value whose leading dimension is not the batch");
      })
      .Default([&](auto) -> FailureOr<BatchState> {
        // Nothing depends on the batch: whatever it is, it is the same on all ranks.
        if (!anySplit(op) && !anyPartial(op)) return BatchState();
        bool sameShapes = llvm::all_of(op->getOperands(), [&](Value v) {
          return op->getNumResults() == 1 && shapeOf(v) == shapeOf(op->getResult(0));
        });
        if (op->getNumRegions() == 0 && sameShapes && isPure(op)) return visitElementwise(op);
        return unsupported(op, "depends on the batch in a way that is not known to be row by row");
      });
}

FailureOr<BatchState> Globalizer::known(OpResult result, const BatchState& found) {
  Operation* op = result.getOwner();
  auto marks = op->getAttrOfType<DenseI64ArrayAttr>(kRowsAttr);
  // The op was made after the imports were compared.
  if (!marks) return found;
  const int64_t dimension = marks[result.getResultNumber()];
  if (dimension < 0 && !found.isSplit()) return found.isPartial() ? BatchState::partial() : BatchState();
  if (dimension >= 0 && found.isSplit() && found.mayBe(dimension)) {
    BatchState state = found;
    state.dimensions = {dimension};
    // Equal rows of several elements are not equal elements.
    state.uniform &= shapeOf(result)[dimension] == state.rows;
    return state;
  }
  // The rows are equal, or will be where the ranks' terms are added.
  const int64_t size = dimension < 0 ? 0 : shapeOf(result)[dimension];
  auto iota = dyn_cast<IotaOp>(op);
  const bool repeats = isa<ConstantOp, BroadcastOp>(op) || (iota && int64_t(iota.getAxis()) != dimension);
  if (dimension >= 0 && (found.isPartial() || repeats) && !found.isSplit() && size % rows == 0) {
    BatchState state = BatchState::split({dimension}, rows, size / rows);
    state.kind = found.isPartial() ? BatchState::Partial : BatchState::Split;
    auto broadcast = dyn_cast<BroadcastOp>(op);
    auto constant = dyn_cast<ConstantOp>(op);
    state.uniform = size == rows || iota || (broadcast && shapeOf(broadcast.getOperand())[dimension] == 1) ||
                    (constant && hasEqualParts(constant, dimension, 1));
    return state;
  }
  return unsupported(op, "groups rows of the batch");
}

// The operands' shapes are one shape; rows meet their own rows.
FailureOr<BatchState> Globalizer::visitElementwise(Operation* op) {
  if (failed(sumPartialOperands(op))) return failure();
  BatchState state;
  for (Value operand : op->getOperands()) {
    BatchState s = of(operand);
    if (!s.isSplit()) continue;
    auto met = state.isSplit() ? state.meet(s) : s;
    if (!met) return mixes(op);
    state = *met;
  }
  return state;
}

// Terms add up to terms; with a value that is the same everywhere, every rank adds its share of it.
FailureOr<BatchState> Globalizer::visitAdditive(Operation* op) {
  if (!anyPartial(op) || anySplit(op)) return visitElementwise(op);
  // An integer has no shares.
  const bool allPartial = llvm::all_of(op->getOperands(), [&](Value v) { return of(v).isPartial(); });
  if (!allPartial && !isFloat(op->getResult(0))) return visitElementwise(op);
  for (OpOperand& operand : op->getOpOperands())
    if (!of(operand.get()).isPartial()) shareOperand(operand);
  return BatchState::partial();
}

// A term times, or divided by, what is the same everywhere is a term. Integers are rounded where they are divided.
FailureOr<BatchState> Globalizer::visitScaling(Operation* op, bool divides) {
  if (divides && !isFloat(op->getResult(0))) return visitElementwise(op);
  BatchState lhs = of(op->getOperand(0)), rhs = of(op->getOperand(1));
  if (lhs.isPartial() && rhs.isPartial() && op->getOperand(0) != op->getOperand(1)) {
    // One of them must be whole: the divisor, or the second factor.
    if (failed(sumPartialOperands(op, 1))) return failure();
    return BatchState::partial();
  }
  if (lhs.isPartial() && rhs.isPartial()) return visitElementwise(op);
  if (lhs.isPartial() && !rhs.isSplit()) return BatchState::partial();
  if (rhs.isPartial() && !lhs.isSplit() && !divides) return BatchState::partial();
  return visitElementwise(op);
}

FailureOr<BatchState> Globalizer::visitReduce(ReduceOp op) {
  BatchState state = of(op.getOperand());
  bool linear = op.getKind() == ReduceKind::sum || op.getKind() == ReduceKind::mean;
  FailureOr<bool> overBatch = holdBatch(op, state, op.getAxes());
  if (failed(overBatch)) return failure();
  // A sum of the rows that a sum is repeated in is one over the batch.
  if (state.isPartial() && op.getKind() == ReduceKind::sum && *overBatch) {
    if (failed(sumPartialOperands(op))) return failure();
    state = of(op.getOperand());
  }
  if (state.isPartial()) return linear ? BatchState::partial() : visitElementwise(op);
  if (!*overBatch) return state;
  if (!linear) return unsupported(op, Twine("takes the ") + stringifyReduceKind(op.getKind()) + " over the batch");
  maskOperand(op->getOpOperand(0));
  if (op.getKind() == ReduceKind::mean && mask) {
    // The mean of the rows that count.
    Value count = mask.count();
    builder.setInsertionPointAfter(op);
    TensorBuilder t{builder, op.getLoc()};
    Value result = op.getResult();
    Value divisor = t.cast(count, TensorBuilder::typeOf(result).getElementType());
    divisor = t.reshape(divisor, SmallVector<int64_t>(shapeOf(result).size(), 1));
    Value sum = t.mul(result, double(state.rows));
    Value share = t.div(sum, t.broadcast(divisor, shapeOf(result)));
    result.replaceAllUsesExcept(share, sum.getDefiningOp());
    states[share] = BatchState::partial();
  } else if (op.getKind() == ReduceKind::mean) {
    // The mean of the global batch is the mean of the ranks' means: every rank has as many rows.
    if (!isFloat(op.getResult())) return unsupported(op, "takes the mean of integers over the batch");
    builder.setInsertionPointAfter(op);
    TensorBuilder t{builder, op.getLoc()};
    Value share = t.mul(op.getResult(), 1.0 / double(ranks));
    op.getResult().replaceAllUsesExcept(share, share.getDefiningOp());
    states[share] = BatchState::partial();
  }
  return BatchState::partial();
}

// A reshape keeps the order of the elements, so the distance between rows stays the same: the batch is in the
// dimension whose stride is at most that distance and whose extent covers all rows. A single row may also be in an
// adjacent dimension of size 1.
FailureOr<BatchState> Globalizer::visitReshape(ReshapeOp op) {
  BatchState state = of(op.getOperand()), found;
  if (!state.isSplit()) return state;
  if (auto given = reshapeStates.find(op.getResult()); given != reshapeStates.end()) return given->second;
  ArrayRef<int64_t> from = shapeOf(op.getOperand()), to = shapeOf(op.getResult());
  if (to.empty()) return unsupported(op, "makes a scalar of one row of the batch");
  for (int64_t dimension : state.dimensions) {
    int64_t apart = state.minor * product(from.drop_front(dimension + 1)), inner = product(to);
    bool first = true;
    for (auto [d, size] : llvm::enumerate(to)) {
      inner /= std::max<int64_t>(size, 1);
      int64_t steps = apart / std::max<int64_t>(inner, 1);
      if (apart % std::max<int64_t>(inner, 1) != 0 || size % (steps * state.rows) != 0) continue;
      if (!first && (size > 1 || steps != found.minor)) continue;
      if (!found.isSplit()) found = BatchState::split({}, state.rows, steps);
      if (steps != found.minor) return unknownBatch(op);
      if (!found.mayBe(d)) found.dimensions.push_back(d);
      first = false;
    }
    if (first) return unsupported(op, "takes rows of the batch apart");
  }
  return found;
}

FailureOr<BatchState> Globalizer::visitConcat(ConcatOp op) {
  if (anyPartial(op)) {
    bool all = llvm::all_of(op.getOperands(), [&](Value v) { return of(v).isPartial(); });
    if (all) return BatchState::partial();
    if (failed(sumPartialOperands(op))) return failure();
  }
  BatchState state;
  for (Value operand : op.getOperands()) {
    BatchState s = of(operand);
    if (!s.isSplit()) continue;
    FailureOr<bool> along = holdBatch(op, s, {int64_t(op.getAxis())});
    if (failed(along)) return failure();
    if (*along) return crossesRows(op);
    auto met = state.isSplit() ? state.meet(s) : s;
    if (!met) return mixes(op);
    state = *met;
  }
  return state;
}

FailureOr<BatchState> Globalizer::visitMatMul(MatMulOp op) {
  BatchState lhs = of(op.getLhs()), rhs = of(op.getRhs());
  if ((lhs.isPartial() && rhs.kind == BatchState::Replicated) ||
      (rhs.isPartial() && lhs.kind == BatchState::Replicated))
    return BatchState::partial();
  if (failed(sumPartialOperands(op))) return failure();
  lhs = of(op.getLhs());
  rhs = of(op.getRhs());
  int64_t rank = shapeOf(op.getResult()).size();
  // The dimension of an operand that is summed over; the others are dimensions of the product: batch 0 (rank 3), rows
  // rank - 2, columns rank - 1.
  int64_t summedLeft = op.getTransposeA() ? rank - 2 : rank - 1, summedRight = op.getTransposeB() ? rank - 1 : rank - 2;
  FailureOr<bool> left = holdBatch(op, lhs, {summedLeft}), right = holdBatch(op, rhs, {summedRight});
  if (failed(left) || failed(right)) return failure();
  if (*left && *right) {
    maskOperand(op->getOpOperand(0));
    return BatchState::partial();
  }
  // One side alone may not be summed over: the other would hold the factors of this rank's rows only by accident.
  if (*left || *right) return crossesRows(op);
  BatchState l = lhs.moved([&](int64_t d) { return d < rank - 2 ? d : rank - 2; });
  BatchState r = rhs.moved([&](int64_t d) { return d < rank - 2 ? d : rank - 1; });
  if (!l.isSplit() || !r.isSplit()) return l.isSplit() ? l : r;
  auto met = l.meet(r);
  if (!met) return mixes(op);
  return *met;
}

FailureOr<BatchState> Globalizer::visitGather(GatherOp op) {
  if (of(op.getIndices()).isPartial()) return visitElementwise(op);
  BatchState data = of(op.getData()), indices = of(op.getIndices());
  int64_t axis = op.getAxis(), count = shapeOf(op.getIndices()).size();
  if (data.isPartial() && !indices.isSplit()) return data;
  if (failed(sumPartialOperands(op))) return failure();
  data = of(op.getData());
  if (data.isSplit() && indices.isSplit()) return mixes(op);
  if (indices.isSplit()) return indices.moved([&](int64_t d) { return axis + d; });
  FailureOr<bool> along = holdBatch(op, data, {axis});
  if (failed(along)) return failure();
  if (*along) return crossesRows(op);
  return data.moved([&](int64_t d) { return d < axis ? d : d - 1 + count; });
}

// Rows that are added into a tensor without a batch are a sum over the batch.
FailureOr<BatchState> Globalizer::visitScatterAdd(ScatterAddOp op) {
  if (of(op.getIndices()).isPartial()) return visitElementwise(op);
  BatchState update = of(op.getUpdate()), indices = of(op.getIndices());
  int64_t axis = op.getAxis(), count = shapeOf(op.getIndices()).size();
  if (update.isPartial() && !indices.isSplit()) return update;
  if (failed(sumPartialOperands(op))) return failure();
  update = of(op.getUpdate());
  if (indices.isSplit()) {
    if (!update.isSplit() || !update.meet(indices.moved([&](int64_t d) { return axis + d; }))) return mixes(op);
    maskOperand(op->getOpOperand(0));
    return BatchState::partial();
  }
  FailureOr<bool> along = holdBatch(op, update, llvm::to_vector(llvm::seq(axis, axis + count)));
  if (failed(along)) return failure();
  if (*along) return crossesRows(op);
  return update.moved([&](int64_t d) { return d < axis ? d : d - count + 1; });
}

// Rows take their own elements of rows, or rows of indices elements that are the same everywhere.
FailureOr<BatchState> Globalizer::visitGatherElements(GatherElementsOp op) {
  if (of(op.getData()).isPartial() && of(op.getIndices()).kind == BatchState::Replicated) return BatchState::partial();
  if (failed(sumPartialOperands(op))) return failure();
  BatchState data = of(op.getData()), indices = of(op.getIndices());
  FailureOr<bool> along = holdBatch(op, data, {int64_t(op.getAxis())});
  if (failed(along)) return failure();
  if (*along) return crossesRows(op);
  if (!data.isSplit() || !indices.isSplit()) return data.isSplit() ? data : indices;
  auto met = data.meet(indices);
  if (!met) return mixes(op);
  return *met;
}

// Rows take updates of their own. Rows of updates that are added to elements without a batch are a sum over the batch.
FailureOr<BatchState> Globalizer::visitScatter(ScatterOp op) {
  BatchState update = of(op.getUpdate()), data = op.getData() ? of(op.getData()) : BatchState::partial();
  const bool adds = op.getKind() == ScatterKind::add;
  if (adds && update.isPartial() && data.isPartial() && of(op.getIndices()).kind == BatchState::Replicated)
    return BatchState::partial();
  if (failed(sumPartialOperands(op))) return failure();
  BatchState state;
  for (Value operand : op.getOperands()) {
    BatchState s = of(operand);
    if (!s.isSplit()) continue;
    auto met = state.isSplit() ? state.meet(s) : s;
    if (!met) return mixes(op);
    state = *met;
  }
  FailureOr<bool> along = holdBatch(op, state, {int64_t(op.getAxis())});
  if (failed(along)) return failure();
  if (!*along) return state;
  const bool summed = adds && isFloat(op.getResult());
  if (!summed || (op.getData() && of(op.getData()).isSplit())) return crossesRows(op);
  maskOperand(op.getUpdateMutable(), state);
  if (op.getData()) shareOperand(op.getDataMutable()[0]);
  return BatchState::partial();
}

FailureOr<BatchState> Globalizer::visitLoss(LossOp op) {
  BatchState state = of(op.getValue());
  if (state.isSplit()) return op.emitOpError("has a value for every row: reduce it to a sum or mean over the batch");
  if (!state.isPartial()) shareOperand(op->getOpOperand(0));
  return BatchState();
}

// A tensor of the evaluation says where its rows are.
FailureOr<BatchState> Globalizer::visitOutput(OutputOp op) {
  if (failed(sumPartialOperands(op))) return failure();
  BatchState state = of(op.getValue());
  if (!state.isSplit()) return BatchState();
  if (op.getKind() != "tensor") return op.emitOpError("has a value for every row");
  if (!state.mayBe(0) && state.dimensions.size() > 1) return unknownBatch(op);
  const int64_t axis = state.mayBe(0) ? 0 : state.dimensions.front();
  op.setAxis(axis);
  op.setBlocks(shapeOf(op.getValue())[axis] / (state.rows * state.minor));
  return BatchState();
}

// In place of an operand whose batch is summed over: the same, with zeros in rows that do not count.
// `state` says where the operand's rows are, which may be the same on all ranks where indices are not.
void Globalizer::maskOperand(OpOperand& operand, const BatchState& state) {
  if (!mask) return;
  operand.set(mask.apply(operand.getOwner(), operand.get(), state.dimensions.front(), state.rows, state.minor));
  states[operand.get()] = state;
}

// A gradient that came with the model, or a moment of running statistics: a sum over the rows, or the same on all
// ranks.
FailureOr<BatchState> Globalizer::visitUpdate(UpdateOp op) {
  BatchState state = of(op.getGradient());
  if (state.isSplit()) return op.emitOpError("has a gradient for every row, not their sum");
  if (!state.isPartial()) shareOperand(op->getOpOperand(0));
  return BatchState();
}

// The moments are those of all ranks' rows, or, where they are local, each rank's own: its term of their mean.
FailureOr<BatchState> Globalizer::visitBatchNorm(BatchNormOp op) {
  if (failed(sumPartialOperands(op))) return failure();
  for (Value other : op->getOperands().drop_front())
    if (of(other).isSplit()) return mixes(op);
  BatchState state = of(op.getOperand());
  if (!state.isSplit()) return state;
  if (state.mayBe(0)) state = leadingOf(state);
  // Moments of rows that only fill the batch would move the others; the evaluation has running statistics instead.
  if (state.mayBe(1) || mask) return crossesRows(op);
  states[op.getResult()] = state;
  if (!op.getLocal()) {
    op.setRanks(ranks);
    states[op.getMean()] = states[op.getVariance()] = BatchState();
    return state;
  }
  for (Value moment : {op.getMean(), op.getVariance()}) {
    states[moment] = BatchState();
    if (moment.use_empty()) continue;
    builder.setInsertionPointAfter(op);
    TensorBuilder t{builder, op.getLoc()};
    Value share = t.mul(moment, 1.0 / double(ranks));
    moment.replaceAllUsesExcept(share, share.getDefiningOp());
    states[share] = BatchState::partial();
  }
  return state;
}

}  // namespace sheaf::train
