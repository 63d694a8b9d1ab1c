// Makes the loss of one rank's rows this rank's share of the loss of the global batch.
//
// The step is written for one rank, as if its rows were the whole batch. A forward analysis classifies every value by
// its relation to the global one: equal on all ranks, this rank's rows of it, or this rank's term of a sum. Sums over
// the batch make terms, linear ops keep terms, and any other op that needs the global value gets train.global_sum.
//
// In the evaluation rows may only fill up the last batch: wherever the batch is summed over, a mask leaves them out, so
// that loss and counts are those of the rows that count.
#include "ir/Train/BatchNorm.h"
#include "ir/Train/Evaluator.h"
#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/AddAccuracy.h"
#include "passes/train/LossWeight.h"
#include "passes/train/Passes.h"
#include "passes/train/RowMask.h"

namespace sheaf::train {
#define GEN_PASS_DEF_GLOBALIZELOSS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

struct State {
  enum Kind { Replicated, Split, Partial } kind = Replicated;
  // Of a split value: the dimension that holds the batch, this rank's rows of it, and how many elements of the
  // dimension lie within one row: the dimension is (something x rows x minor). Where a rank has one row, a reshape may
  // leave several dimensions of size 1, any of which may be the batch; these are all of them.
  SmallVector<int64_t, 1> dimensions;
  int64_t rows = 0, minor = 1;

  static State split(ArrayRef<int64_t> dimensions, int64_t rows, int64_t minor = 1) {
    return {Split, SmallVector<int64_t, 1>(dimensions), rows, minor};
  }
  static State partial() { return {Partial, {}}; }
  bool isSplit() const { return kind == Split; }
  bool isPartial() const { return kind == Partial; }
  bool mayBe(int64_t dimension) const { return llvm::is_contained(dimensions, dimension); }
  bool is(int64_t dimension) const { return mayBe(dimension) && dimensions.size() == 1; }

  // The same value elsewhere: move(dimension) says where a dimension has gone.
  template <class Move>
  State moved(Move move) const {
    State result = *this;
    for (int64_t& d : result.dimensions) d = move(d);
    return result;
  }
  // What this and `other`, whose rows meet, both may be; nothing if they carry the batch in different ways.
  std::optional<State> meet(const State& other) const {
    if (rows != other.rows || minor != other.minor) return std::nullopt;
    State both = *this;
    llvm::erase_if(both.dimensions, [&](int64_t d) { return !other.mayBe(d); });
    return both.dimensions.empty() ? std::nullopt : std::optional(both);
  }
};

ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}

int64_t product(ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

class Globalizer {
 public:
  Globalizer(func::FuncOp step, int64_t ranks) : step(step), ranks(ranks), builder(step.getContext()), mask(step) {}

  LogicalResult run() {
    Block& body = step.getBody().front();
    for (BlockArgument argument : body.getArguments())
      if (auto type = dyn_cast<RankedTensorType>(argument.getType());
          type && type.getRank() > 0 && type.getDimSize(0) > 0 &&
          !step.getArgAttr(argument.getArgNumber(), "train.whole"))
        states[argument] = State::split({0}, type.getDimSize(0));
    findLeading(body);
    for (Operation& op : llvm::make_early_inc_range(body)) {
      if (op.hasTrait<OpTrait::IsTerminator>() || op.getNumOperands() == 0) continue;
      FailureOr<State> state = visit(&op);
      if (failed(state)) return failure();
      for (Value result : op.getResults())
        states.try_emplace(result, leading.contains(result) && state->mayBe(0) ? leadingOf(*state) : *state);
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

 private:
  func::FuncOp step;
  int64_t ranks;
  OpBuilder builder;
  RowMask mask;  // of the evaluation
  DenseMap<Value, State> states;
  DenseMap<Value, Value> sums;  // train.global_sum of a partial value
  DenseSet<Value> leading;      // whose batch, if they have one, is their first dimension

  State of(Value v) const { return states.lookup(v); }
  bool anyPartial(Operation* op) const {
    return llvm::any_of(op->getOperands(), [&](Value v) { return of(v).isPartial(); });
  }
  bool anySplit(Operation* op) const {
    return llvm::any_of(op->getOperands(), [&](Value v) { return of(v).isSplit(); });
  }

  // Some ops have samples in their first dimension, and what is computed from equal indices has them there, too.
  static bool takesSamples(Operation* op) {
    return isa<AttentionOp, CrossEntropyOp, ConvOp, ConvGradInputOp, ConvGradFilterOp, MaxPoolOp, MaxPoolGradOp,
               MaxPoolIndicesOp, BatchNormOp>(op);
  }
  static State leadingOf(const State& state) { return State::split({0}, state.rows, state.minor); }
  void findLeading(Block& body) {
    for (Operation& op : llvm::reverse(body))
      if (takesSamples(&op) || (op.hasTrait<OpTrait::Elementwise>() && leading.contains(op.getResult(0))))
        leading.insert(op.operand_begin(), op.operand_end());
  }

  // The op reads the global value of its partial operands, from operand `first` on.
  LogicalResult sumPartialOperands(Operation* op, unsigned first = 0) {
    for (OpOperand& operand : op->getOpOperands().drop_front(first)) {
      Value value = operand.get();
      if (!of(value).isPartial()) continue;
      Value& sum = sums[value];
      if (!sum) {
        if (!isa<FloatType>(TensorBuilder::typeOf(value).getElementType()))
          return op->emitOpError("needs an integer sum over the global batch: cast to a float before summing");
        builder.setInsertionPointAfterValue(value);
        sum = GlobalSumOp::create(builder, value.getLoc(), value.getType(), value);
        states[sum] = State();
      }
      operand.set(sum);
    }
    return success();
  }

  // A value that is the same on all ranks, as one of `ranks` equal terms of itself.
  void shareOperand(OpOperand& operand) {
    builder.setInsertionPoint(operand.getOwner());
    TensorBuilder t{builder, operand.getOwner()->getLoc()};
    operand.set(t.mul(operand.get(), 1.0 / double(ranks)));
    states[operand.get()] = State::partial();
  }

  FailureOr<State> visit(Operation* op);
  FailureOr<State> visitReduce(ReduceOp op);
  FailureOr<State> visitReshape(ReshapeOp op);
  FailureOr<State> visitConcat(ConcatOp op);
  FailureOr<State> visitMatMul(MatMulOp op);
  FailureOr<State> visitGather(GatherOp op);
  FailureOr<State> visitScatterAdd(ScatterAddOp op);
  FailureOr<State> visitGatherElements(GatherElementsOp op);
  FailureOr<State> visitScatter(ScatterOp op);
  FailureOr<State> visitLoss(LossOp op);
  FailureOr<State> visitOutput(OutputOp op);
  void maskOperand(OpOperand& operand, const State& state);
  void maskOperand(OpOperand& operand) { maskOperand(operand, of(operand.get())); }
  FailureOr<State> visitUpdate(UpdateOp op);
  FailureOr<State> visitBatchNorm(BatchNormOp op);
  FailureOr<State> visitAdditive(Operation* op);
  FailureOr<State> visitScaling(Operation* op, bool divides);
  FailureOr<State> visitElementwise(Operation* op);

  // Whether one of the given dimensions holds the batch; failure where that is unknown.
  FailureOr<bool> holdBatch(Operation* op, const State& state, ArrayRef<int64_t> dimensions) {
    if (!state.isSplit()) return false;
    int64_t count = llvm::count_if(state.dimensions, [&](int64_t d) { return llvm::is_contained(dimensions, d); });
    if (count == 0 || count == int64_t(state.dimensions.size())) return count > 0;
    return unknownBatch(op);
  }

  // For an op that acts on the given dimensions of its first operand and keeps the others in place.
  FailureOr<State> visitAlong(Operation* op, ArrayRef<int64_t> dimensions) {
    State state = of(op->getOperand(0));
    FailureOr<bool> holds = holdBatch(op, state, dimensions);
    if (failed(holds)) return failure();
    if (*holds) return crossesRows(op);
    return state;
  }
  FailureOr<State> visitLastDimension(Operation* op) {
    if (failed(sumPartialOperands(op))) return failure();
    for (Value other : op->getOperands().drop_front())
      if (of(other).isSplit()) return mixes(op);
    return visitAlong(op, {int64_t(shapeOf(op->getOperand(0)).size()) - 1});
  }
  // For an op that computes each leading row by itself, in every split operand and in its results.
  FailureOr<State> visitPerSample(Operation* op) {
    if (failed(sumPartialOperands(op))) return failure();
    State state;
    for (Value operand : op->getOperands())
      if (State s = of(operand); s.isSplit()) {
        if (!s.mayBe(0)) return crossesRows(op);
        state = leadingOf(s);
      }
    return state;
  }

  LogicalResult unsupported(Operation* op, const Twine& what) {
    return op->emitOpError() << what << ", which is not supported with more than one rank";
  }
  LogicalResult crossesRows(Operation* op) {
    return unsupported(op, "mixes rows of the batch that lie on different ranks");
  }
  LogicalResult unknownBatch(Operation* op) {
    return op->emitOpError(
        "acts on one of several dimensions, any of which may be the batch, since a rank has one row "
        "of it: give every rank at least two, by a larger --batch");
  }
  LogicalResult mixes(Operation* op) {
    return unsupported(op, "combines values that carry the batch in different dimensions");
  }
};

FailureOr<State> Globalizer::visit(Operation* op) {
  return llvm::TypeSwitch<Operation*, FailureOr<State>>(op)
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
      .Case<TopKOp>([&](TopKOp o) -> FailureOr<State> {
        if (failed(sumPartialOperands(op))) return failure();
        return visitAlong(op, {int64_t(o.getAxis())});
      })
      .Case<AddOp, SubOp>([&](auto) { return visitAdditive(op); })
      .Case<MulOp>([&](auto) { return visitScaling(op, false); })
      .Case<DivOp>([&](auto) { return visitScaling(op, true); })
      .Case<NegOp, CastOp>([&](auto) -> FailureOr<State> {
        // A cast is linear where it goes to a float.
        if (of(op->getOperand(0)).isPartial() &&
            !isa<FloatType>(TensorBuilder::typeOf(op->getResult(0)).getElementType()))
          return visitElementwise(op);
        return of(op->getOperand(0));
      })
      .Case<BroadcastOp>([&](BroadcastOp o) -> FailureOr<State> {
        // Only a dimension that is not the batch can be repeated.
        State state = of(o.getOperand());
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
      .Case<ConvOp, ConvGradInputOp, MaxPoolOp, MaxPoolIndicesOp>([&](auto) -> FailureOr<State> {
        for (Value other : op->getOperands().drop_front())
          if (of(other).isSplit()) return mixes(op);
        return visitPerSample(op);
      })
      .Case<MaxPoolGradOp>([&](auto) { return visitPerSample(op); })
      .Case<ConvGradFilterOp>([&](auto o) -> FailureOr<State> {
        // A sum over the samples of both operands.
        if (failed(sumPartialOperands(op))) return failure();
        State input = of(o.getInput()), gradient = of(o.getGradient());
        if (!input.isSplit() && !gradient.isSplit()) return State();
        if (!input.mayBe(0) || !gradient.mayBe(0)) return mixes(op);
        maskOperand(o.getGradientMutable());
        return State::partial();
      })
      .Case<DropoutOp, RandomUniformOp>([&](auto) -> FailureOr<State> {
        // Numbers are drawn by the index in the global batch: its rows must be this tensor's leading dimension.
        State state = of(op->getOperand(0));
        bool leading = state.isSplit() && state.mayBe(0);
        if (leading && shapeOf(op->getOperand(0))[0] == state.rows * state.minor) return state;
        return unsupported(op, Twine(isa<DropoutOp>(op) ? "drops elements of" : "draws random numbers for") +
                                   " a value whose leading dimension is not the batch");
      })
      .Default([&](auto) -> FailureOr<State> {
        // Nothing depends on the batch: whatever it is, it is the same on all ranks.
        if (!anySplit(op) && !anyPartial(op)) return State();
        bool sameShapes = llvm::all_of(op->getOperands(), [&](Value v) {
          return op->getNumResults() == 1 && shapeOf(v) == shapeOf(op->getResult(0));
        });
        if (op->getNumRegions() == 0 && sameShapes && isPure(op)) return visitElementwise(op);
        return unsupported(op, "depends on the batch in a way that is not known to be row by row");
      });
}

// The operands' shapes are one shape; rows meet their own rows.
FailureOr<State> Globalizer::visitElementwise(Operation* op) {
  if (failed(sumPartialOperands(op))) return failure();
  State state;
  for (Value operand : op->getOperands()) {
    State s = of(operand);
    if (!s.isSplit()) continue;
    auto met = state.isSplit() ? state.meet(s) : s;
    if (!met) return mixes(op);
    state = *met;
  }
  return state;
}

// Terms add up to terms; with a value that is the same everywhere, every rank adds its share of it.
FailureOr<State> Globalizer::visitAdditive(Operation* op) {
  if (!anyPartial(op) || anySplit(op)) return visitElementwise(op);
  for (OpOperand& operand : op->getOpOperands())
    if (!of(operand.get()).isPartial()) shareOperand(operand);
  return State::partial();
}

// A term times, or divided by, what is the same everywhere is a term.
FailureOr<State> Globalizer::visitScaling(Operation* op, bool divides) {
  State lhs = of(op->getOperand(0)), rhs = of(op->getOperand(1));
  if (lhs.isPartial() && rhs.isPartial() && op->getOperand(0) != op->getOperand(1)) {
    // One of them must be whole: the divisor, or the second factor.
    if (failed(sumPartialOperands(op, 1))) return failure();
    return State::partial();
  }
  if (lhs.isPartial() && rhs.isPartial()) return visitElementwise(op);
  if (lhs.isPartial() && !rhs.isSplit()) return State::partial();
  if (rhs.isPartial() && !lhs.isSplit() && !divides) return State::partial();
  return visitElementwise(op);
}

FailureOr<State> Globalizer::visitReduce(ReduceOp op) {
  State state = of(op.getOperand());
  bool linear = op.getKind() == ReduceKind::sum || op.getKind() == ReduceKind::mean;
  if (state.isPartial() && linear) return state;
  if (state.isPartial()) return visitElementwise(op);
  FailureOr<bool> overBatch = holdBatch(op, state, op.getAxes());
  if (failed(overBatch)) return failure();
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
    states[share] = State::partial();
  } else if (op.getKind() == ReduceKind::mean) {
    // The mean of the global batch is the mean of the ranks' means: every rank has as many rows.
    if (!isa<FloatType>(TensorBuilder::typeOf(op.getResult()).getElementType()))
      return unsupported(op, "takes the mean of integers over the batch");
    builder.setInsertionPointAfter(op);
    TensorBuilder t{builder, op.getLoc()};
    Value share = t.mul(op.getResult(), 1.0 / double(ranks));
    op.getResult().replaceAllUsesExcept(share, share.getDefiningOp());
    states[share] = State::partial();
  }
  return State::partial();
}

// A reshape keeps the order of the elements, so the distance between rows stays the same: the batch is in the
// dimension whose stride is at most that distance and whose extent covers all rows. A single row may also be in an
// adjacent dimension of size 1.
FailureOr<State> Globalizer::visitReshape(ReshapeOp op) {
  State state = of(op.getOperand()), found;
  if (!state.isSplit()) return state;
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
      if (!found.isSplit()) found = State::split({}, state.rows, steps);
      if (steps != found.minor) return unknownBatch(op);
      if (!found.mayBe(d)) found.dimensions.push_back(d);
      first = false;
    }
    if (first) return unsupported(op, "takes rows of the batch apart");
  }
  return found;
}

FailureOr<State> Globalizer::visitConcat(ConcatOp op) {
  if (anyPartial(op)) {
    bool all = llvm::all_of(op.getOperands(), [&](Value v) { return of(v).isPartial(); });
    if (all) return State::partial();
    if (failed(sumPartialOperands(op))) return failure();
  }
  State state;
  for (Value operand : op.getOperands()) {
    State s = of(operand);
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

FailureOr<State> Globalizer::visitMatMul(MatMulOp op) {
  State lhs = of(op.getLhs()), rhs = of(op.getRhs());
  if ((lhs.isPartial() && rhs.kind == State::Replicated) || (rhs.isPartial() && lhs.kind == State::Replicated))
    return State::partial();
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
    return State::partial();
  }
  // One side alone may not be summed over: the other would hold the factors of this rank's rows only by accident.
  if (*left || *right) return crossesRows(op);
  State l = lhs.moved([&](int64_t d) { return d < rank - 2 ? d : rank - 2; });
  State r = rhs.moved([&](int64_t d) { return d < rank - 2 ? d : rank - 1; });
  if (!l.isSplit() || !r.isSplit()) return l.isSplit() ? l : r;
  auto met = l.meet(r);
  if (!met) return mixes(op);
  return *met;
}

FailureOr<State> Globalizer::visitGather(GatherOp op) {
  if (of(op.getIndices()).isPartial()) return visitElementwise(op);
  State data = of(op.getData()), indices = of(op.getIndices());
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
FailureOr<State> Globalizer::visitScatterAdd(ScatterAddOp op) {
  if (of(op.getIndices()).isPartial()) return visitElementwise(op);
  State update = of(op.getUpdate()), indices = of(op.getIndices());
  int64_t axis = op.getAxis(), count = shapeOf(op.getIndices()).size();
  if (update.isPartial() && !indices.isSplit()) return update;
  if (failed(sumPartialOperands(op))) return failure();
  update = of(op.getUpdate());
  if (indices.isSplit()) {
    if (!update.isSplit() || !update.meet(indices.moved([&](int64_t d) { return axis + d; }))) return mixes(op);
    maskOperand(op->getOpOperand(0));
    return State::partial();
  }
  FailureOr<bool> along = holdBatch(op, update, llvm::to_vector(llvm::seq(axis, axis + count)));
  if (failed(along)) return failure();
  if (*along) return crossesRows(op);
  return update.moved([&](int64_t d) { return d < axis ? d : d - count + 1; });
}

// Rows take their own elements of rows, or rows of indices elements that are the same everywhere.
FailureOr<State> Globalizer::visitGatherElements(GatherElementsOp op) {
  if (of(op.getData()).isPartial() && of(op.getIndices()).kind == State::Replicated) return State::partial();
  if (failed(sumPartialOperands(op))) return failure();
  State data = of(op.getData()), indices = of(op.getIndices());
  FailureOr<bool> along = holdBatch(op, data, {int64_t(op.getAxis())});
  if (failed(along)) return failure();
  if (*along) return crossesRows(op);
  if (!data.isSplit() || !indices.isSplit()) return data.isSplit() ? data : indices;
  auto met = data.meet(indices);
  if (!met) return mixes(op);
  return *met;
}

// Rows take updates of their own. Rows of updates that are added to elements without a batch are a sum over the batch.
FailureOr<State> Globalizer::visitScatter(ScatterOp op) {
  State update = of(op.getUpdate()), data = op.getData() ? of(op.getData()) : State::partial();
  const bool adds = op.getKind() == ScatterKind::add;
  if (adds && update.isPartial() && data.isPartial() && of(op.getIndices()).kind == State::Replicated)
    return State::partial();
  if (failed(sumPartialOperands(op))) return failure();
  State state;
  for (Value operand : op.getOperands()) {
    State s = of(operand);
    if (!s.isSplit()) continue;
    auto met = state.isSplit() ? state.meet(s) : s;
    if (!met) return mixes(op);
    state = *met;
  }
  FailureOr<bool> along = holdBatch(op, state, {int64_t(op.getAxis())});
  if (failed(along)) return failure();
  if (!*along) return state;
  const bool summed = adds && isa<FloatType>(TensorBuilder::typeOf(op.getResult()).getElementType());
  if (!summed || (op.getData() && of(op.getData()).isSplit())) return crossesRows(op);
  maskOperand(op.getUpdateMutable(), state);
  if (op.getData()) shareOperand(op.getDataMutable()[0]);
  return State::partial();
}

FailureOr<State> Globalizer::visitLoss(LossOp op) {
  State state = of(op.getValue());
  if (state.isSplit()) return op.emitOpError("has a value for every row: reduce it to a sum or mean over the batch");
  if (!state.isPartial()) shareOperand(op->getOpOperand(0));
  return State();
}

// A tensor of the evaluation says where its rows are.
FailureOr<State> Globalizer::visitOutput(OutputOp op) {
  if (failed(sumPartialOperands(op))) return failure();
  State state = of(op.getValue());
  if (!state.isSplit()) return State();
  if (op.getKind() != "tensor") return op.emitOpError("has a value for every row");
  if (!state.mayBe(0) && state.dimensions.size() > 1) return unknownBatch(op);
  const int64_t axis = state.mayBe(0) ? 0 : state.dimensions.front();
  op.setAxis(axis);
  op.setBlocks(shapeOf(op.getValue())[axis] / (state.rows * state.minor));
  return State();
}

// In place of an operand whose batch is summed over: the same, with zeros in rows that do not count.
// `state` says where the operand's rows are, which may be the same on all ranks where indices are not.
void Globalizer::maskOperand(OpOperand& operand, const State& state) {
  if (!mask) return;
  operand.set(mask.apply(operand.getOwner(), operand.get(), state.dimensions.front(), state.rows, state.minor));
  states[operand.get()] = state;
}

// A gradient that came with the model, or a moment of running statistics: a sum over the rows, or the same on all
// ranks.
FailureOr<State> Globalizer::visitUpdate(UpdateOp op) {
  State state = of(op.getGradient());
  if (state.isSplit()) return op.emitOpError("has a gradient for every row, not their sum");
  if (!state.isPartial()) shareOperand(op->getOpOperand(0));
  return State();
}

// The moments are those of all ranks' rows, or, where they are local, each rank's own: its term of their mean.
FailureOr<State> Globalizer::visitBatchNorm(BatchNormOp op) {
  if (failed(sumPartialOperands(op))) return failure();
  for (Value other : op->getOperands().drop_front())
    if (of(other).isSplit()) return mixes(op);
  State state = of(op.getOperand());
  if (!state.isSplit()) return state;
  if (state.mayBe(0)) state = leadingOf(state);
  // Moments of rows that only fill the batch would move the others; the evaluation has running statistics instead.
  if (state.mayBe(1) || mask) return crossesRows(op);
  states[op.getResult()] = state;
  if (!op.getLocal()) {
    op.setRanks(ranks);
    states[op.getMean()] = states[op.getVariance()] = State();
    return state;
  }
  for (Value moment : {op.getMean(), op.getVariance()}) {
    if (moment.use_empty()) continue;
    builder.setInsertionPointAfter(op);
    TensorBuilder t{builder, op.getLoc()};
    Value share = t.mul(moment, 1.0 / double(ranks));
    moment.replaceAllUsesExcept(share, share.getDefiningOp());
    states[share] = State::partial();
  }
  return state;
}

struct GlobalizeLoss : sheaf::train::impl::GlobalizeLossBase<GlobalizeLoss> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto ranks = module->getAttrOfType<IntegerAttr>("train.ranks");
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step || step.isExternal()) {
      module.emitError("has no function @step whose loss could be globalized");
      return signalPassFailure();
    }
    const int64_t count = ranks ? ranks.getInt() : 1;
    // Before anything is summed over the rows that count.
    bool evaluation = false;
    for (unsigned i = 0; i < step.getNumArguments(); ++i) evaluation |= bool(step.getArgAttr(i, "train.row_mask"));
    if (evaluation) addAccuracy(step);
    module->removeAttr(kOneRowAttr);
    if (count <= 1 && evaluation) return evaluateOnOneRank(step);
    if (count > 1 && failed(Globalizer(step, count).run())) signalPassFailure();
  }

  // On one rank rows may depend on each other: then every batch must be full, and what the first dimension of an output
  // holds is taken for rows where it can be.
  static void evaluateOnOneRank(func::FuncOp step) {
    OwningOpRef<func::FuncOp> whole = step.clone();
    {
      ScopedDiagnosticHandler quiet(step.getContext(), [](Diagnostic&) { return success(); });
      if (succeeded(Globalizer(step, 1).run())) return;
    }
    step.getBody().takeBody(whole->getBody());
    int64_t rows = 0;
    for (int64_t i = int64_t(step.getNumArguments()) - 1; i >= 0; --i)
      if (step.getArgAttr(i, "train.row_mask")) {
        rows = shapeOf(step.getArgument(i)).front();
        (void)step.eraseArgument(i);
      }
    for (OutputOp output : step.getOps<OutputOp>()) {
      const ArrayRef<int64_t> shape = shapeOf(output.getValue());
      if (output.getKind() == "tensor" && !shape.empty() && shape.front() % rows == 0) output.setBlocks(1);
    }
  }
};

}  // namespace
