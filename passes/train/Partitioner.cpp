#include "passes/train/Partitioner.h"

#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
#include "passes/train/LossWeight.h"

using namespace mlir;

namespace sheaf::train {
namespace {

RankedTensorType typeOf(Value v) {
  return TensorBuilder::typeOf(v);
}

bool isFloat(Value v) {
  return isa<FloatType>(typeOf(v).getElementType());
}

}  // namespace

Partitioner::Partitioner(func::FuncOp step, int64_t leaves, int64_t parts)
    : step(step), leaves(leaves), parts(parts), builder(step.getContext()), mask(step) {}

LogicalResult Partitioner::run(OpCheck* check) {
  if (check) remember();
  Block& body = step.getBody().front();
  for (BlockArgument argument : body.getArguments()) {
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (!type || type.getRank() == 0 || step.getArgAttr(argument.getArgNumber(), "train.whole")) continue;
    rows = type.getDimSize(0);
    if (rows % parts)
      return step.emitError() << "input " << step.getArgAttr(argument.getArgNumber(), "train.name") << " has " << rows
                              << " rows, which do not divide into " << parts << " equal parts";
    setSplit(argument, {0, rows / parts});
  }
  for (Operation& op : llvm::make_early_inc_range(body)) {
    if (op.hasTrait<OpTrait::IsTerminator>()) continue;
    if (failed(visit(&op))) return failure();
  }
  if (check && failed(checkClaims(*check))) return failure();
  if (mask && !dependent) weighLoss(step, leaves, mask, [&](Value v) { return isPartial(v); });
  auto erase = [&](Operation* op) {
    llvm::erase(repeatedOps, op);
    op->erase();
  };
  // A leaf with one row has that row as its part of a sum over the batch.
  for (auto reduce : llvm::make_early_inc_range(body.getOps<ReduceOp>()))
    if (reduce.getType() == reduce.getOperand().getType()) {
      reduce.replaceAllUsesWith(reduce.getOperand());
      erase(reduce);
    }
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op)) erase(&op);
  step.setType(FunctionType::get(step.getContext(), body.getArgumentTypes(), step.getFunctionType().getResults()));
  return success();
}

//===--- States ---===//

ArrayRef<int64_t> Partitioner::globalShape(Value v) const {
  auto found = shapes.find(v);
  return found == shapes.end() ? typeOf(v).getShape() : ArrayRef<int64_t>(found->second);
}

RankedTensorType Partitioner::leafType(RankedTensorType global, Place place) const {
  SmallVector<int64_t> shape(global.getShape());
  shape[place.dimension] /= leaves;
  return global.clone(shape);
}

void Partitioner::setSplit(Value v, Place place, bool chosen) {
  shapes[v] = SmallVector<int64_t>(typeOf(v).getShape());
  states[v] = {State::Split, place, chosen};
  v.setType(leafType(typeOf(v), place));
}

std::optional<Place> Partitioner::placeAt(Value v, Place place, Value other, int64_t dimension) const {
  return placeAlong(globalShape(v), place, globalShape(other), dimension, parts);
}

//===--- Ops ---===//

LogicalResult Partitioner::visit(Operation* op) {
  if (op->getNumOperands() == 0) return success();
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case(
          [&](LossOp) { return visitTerm(op, "has a value for every row: reduce it to a sum or mean over the batch"); })
      .Case([&](OutputOp o) { return visitOutput(o); })
      .Case([&](UpdateOp) { return visitTerm(op, "has a gradient for every row, not their sum"); })
      .Case([&](BatchNormOp o) { return visitBatchNorm(o); })
      .Case<DropoutOp, RandomUniformOp>([&](auto) { return visitRandom(op), success(); })
      .Default([&](Operation*) {
        if (visitLinear(op)) return success();
        for (OpOperand& operand : op->getOpOperands())
          if (isPartial(operand.get())) makeWhole(operand);
        if (llvm::none_of(op->getOperands(), [&](Value v) { return isSplit(v) || rowsIn.contains(v); }))
          return success();
        auto reshape = dyn_cast<ReshapeOp>(op);
        if (reshape ? !visitReshape(reshape) : !visitAxes(op) && !visitBlocks(op)) computeWhole(op);
        return success();
      });
}

// Terms of a sum from terms of a sum.
bool Partitioner::visitLinear(Operation* op) {
  auto isWhole = [&](Value v) { return stateOf(v).kind == State::Whole; };
  SmallVector<unsigned> partial;
  for (OpOperand& operand : op->getOpOperands())
    if (isPartial(operand.get())) partial.push_back(operand.getOperandNumber());
  if (partial.empty() || llvm::any_of(op->getOperands(), [&](Value v) { return isSplit(v); })) return false;
  const bool all = partial.size() == op->getNumOperands();
  auto keep = [&] {
    setPartial(op->getResult(0));
    return true;
  };
  if (isa<AddOp, SubOp>(op)) {
    // An integer has no shares.
    if (!all && !isFloat(op->getResult(0))) return false;
    for (OpOperand& operand : op->getOpOperands())
      if (isWhole(operand.get())) makeTerm(operand);
    return keep();
  }
  if (isa<ConcatOp>(op)) return all && keep();
  if (auto scatter = dyn_cast<ScatterOp>(op))
    return scatter.getKind() == ScatterKind::add && isWhole(scatter.getIndices()) &&
           partial.size() + 1 == op->getNumOperands() && keep();
  // One of two factors must be whole: the divisor, or the second one.
  if (isa<MulOp, DivOp>(op) && all && op->getOperand(0) != op->getOperand(1) && isFloat(op->getResult(0))) {
    makeWhole(op->getOpOperand(1));
    return keep();
  }
  return partial.size() == 1 && isLinear(op, partial.front()) && keep();
}

bool Partitioner::visitReshape(ReshapeOp op) {
  Value from = op.getOperand();
  if (!isSplit(from)) return false;
  auto place = reshapedPlace(globalShape(from), globalShape(op.getResult()), stateOf(from).place, parts);
  if (place) setSplit(op.getResult(), *place, stateOf(from).chosen);
  return place.has_value();
}

bool Partitioner::visitAxes(Operation* op) {
  const SmallVector<OpAxis> axes = axesOf(op, [&](Value v) { return globalShape(v); });
  for (OpOperand& operand : op->getOpOperands()) {
    Value v = operand.get();
    if (!isSplit(v)) continue;
    const Place place = stateOf(v).place;
    for (const OpAxis& axis : axes) {
      if (axis.operands[operand.getOperandNumber()] != place.dimension) continue;
      auto fits = [&](ValueRange values, ArrayRef<int64_t> dimensions) {
        return llvm::all_of(llvm::zip(values, dimensions), [&](auto pair) {
          auto [other, dimension] = pair;
          return dimension < 0 || placeAt(v, place, other, dimension);
        });
      };
      if (!fits(op->getOperands(), axis.operands) || !fits(op->getResults(), axis.results)) continue;
      computeAlong(op, axis, v, place);
      return true;
    }
  }
  return false;
}

// Rows of several values one after the other, such as two views of each sample, and whole blocks of them: each leaf has
// its part of every block.
bool Partitioner::visitBlocks(Operation* op) {
  Value first = op->getOperand(0);
  if (!isa<ConcatOp, SliceOp>(op) || !isSplit(first)) return false;
  const Place place = stateOf(first).place;
  if (auto slice = dyn_cast<SliceOp>(op)) {
    const int64_t d = place.dimension;
    SmallVector<int64_t> starts(slice.getStarts());
    if (!takesWholeBlocks(starts[d], slice.getSizes()[d], slice.getSteps()[d], place, parts)) return false;
    starts[d] /= leaves;
    slice.setStarts(starts);
  } else if (int64_t(cast<ConcatOp>(op).getAxis()) != place.dimension ||
             llvm::any_of(op->getOperands(), [&](Value v) { return !isSplit(v) || stateOf(v).place != place; })) {
    return false;
  }
  const bool chosen = llvm::any_of(op->getOperands(), [&](Value v) { return stateOf(v).chosen; });
  setSplit(op->getResult(0), place, chosen);
  if (auto slice = dyn_cast<SliceOp>(op)) slice.setSizes(typeOf(slice.getResult()).getShape());
  return true;
}

void Partitioner::computeAlong(Operation* op, const OpAxis& axis, Value first, Place place) {
  SmallVector<std::optional<Place>> places;
  for (auto [result, dimension] : llvm::zip(op->getResults(), axis.results))
    places.push_back(dimension < 0 ? std::nullopt : placeAt(first, place, result, dimension));
  for (auto [operand, dimension] : llvm::zip(op->getOpOperands(), axis.operands)) {
    if (dimension >= 0)
      operand.set(splitAt(operand.get(), *placeAt(first, place, operand.get(), dimension), op));
    else
      makeWhole(operand);
  }
  if (axis.addedOnce >= 0) makeTerm(op->getOpOperand(unsigned(axis.addedOnce)));
  if (axis.summed) maskSummed(op, place);
  for (auto [result, at] : llvm::zip(op->getResults(), places))
    if (at)
      setSplit(result, *at, stateOf(first).chosen);
    else if (axis.summed)
      setPartial(result);
  if (auto slice = dyn_cast<SliceOp>(op)) slice.setSizes(typeOf(slice.getResult()).getShape());
  auto reduce = dyn_cast<ReduceOp>(op);
  if (reduce && axis.summed && reduce.getKind() == ReduceKind::mean) scaleMean(reduce);
}

// The mean of the global batch is the mean of the leaves' means: every leaf has as many rows. Of an evaluation it is
// the mean of the rows that count.
void Partitioner::scaleMean(ReduceOp op) {
  Value count = mask ? mask.count() : Value();
  builder.setInsertionPointAfter(op);
  TensorBuilder t{builder, op.getLoc()};
  Value result = op.getResult(), first, term;
  double factor = 1.0 / double(leaves);
  if (mask) {
    const RankedTensorType type = typeOf(result);
    Value divisor = t.reshape(t.cast(count, type.getElementType()), SmallVector<int64_t>(type.getRank(), 1));
    factor = double(rows / leaves);
    first = t.mul(result, factor);
    term = t.div(first, t.broadcast(divisor, type.getShape()));
  } else {
    first = term = t.mul(result, factor);
  }
  // All rows count where the check tries it.
  if (before) scaled[result] = {mask ? factor / double(rows) : factor, term};
  reshard(term, result);
  batchValues.erase(result);
  result.replaceAllUsesExcept(term, first.getDefiningOp());
  setPartial(first);
  setPartial(term);
}

// Replaces an operand whose rows are summed by the same with zeros in rows that do not count.
void Partitioner::maskSummed(Operation* op, Place place) {
  if (!mask) return;
  const unsigned masked = isa<ScatterOp, ConvGradFilterOp>(op) ? 1 : 0;
  OpOperand& operand = op->getOpOperand(masked);
  const Place at = stateOf(operand.get()).place;
  Value value = operand.get();
  operand.set(mask.apply(op, value, at.dimension, rows / leaves, at.run));
  shapes[operand.get()] = SmallVector<int64_t>(globalShape(value));
  states[operand.get()] = stateOf(value);
  reshard(operand.get(), value);
}

void Partitioner::computeWhole(Operation* op) {
  repeatedOps.push_back(op);
  std::optional<State> before;  // the first operand with rows has it
  SmallVector<int64_t> was;
  for (Value v : op->getOperands()) {
    if (before) break;
    if (isSplit(v))
      before = stateOf(v), was = SmallVector<int64_t>(globalShape(v));
    else if (auto found = rowsIn.find(v); found != rowsIn.end())
      before = State{State::Whole, {found->second, 0}, true};
  }
  const int64_t dimension = before->place.dimension;
  for (OpOperand& operand : op->getOpOperands()) makeWhole(operand);
  for (Value result : op->getResults()) {
    const SmallVector<int64_t> shape(globalShape(result));
    const bool kept = before->kind == State::Split && shape.size() == was.size() &&
                      shape[size_t(dimension)] == was[size_t(dimension)];
    auto place = kept ? std::optional(before->place) : placeOfWhole(result, dimension);
    if (!place) {
      if (dimension < int64_t(shape.size())) rowsIn[result] = dimension;
      continue;
    }
    SmallVector<OpOperand*> uses;
    for (OpOperand& use : result.getUses()) uses.push_back(&use);
    Value part = partOf(result, *place);
    states[part].chosen = !kept || before->chosen;
    for (OpOperand* use : uses) use->set(part);
  }
}

// Chooses the part of a leaf in a whole result: along the dimension that had the rows, if it divides into parts;
// without such a dimension, along the first one of as many elements as rows, or a multiple.
std::optional<Place> Partitioner::placeOfWhole(Value result, int64_t dimension) const {
  const ArrayRef<int64_t> shape = globalShape(result);
  auto along = [&](int64_t d, int64_t unit) {
    const int64_t n = shape[size_t(d)];
    return n > 0 && n % unit == 0 ? std::optional(Place{d, n / parts}) : std::nullopt;
  };
  if (dimension < int64_t(shape.size())) return along(dimension, parts);
  for (int64_t d = 0; d < int64_t(shape.size()); ++d)
    if (auto place = along(d, rows)) return place;
  return std::nullopt;
}

// A loss; a gradient that came with the model, or a moment of running statistics.
LogicalResult Partitioner::visitTerm(Operation* op, StringRef ofEachRow) {
  OpOperand& value = op->getOpOperand(0);
  if (isSplit(value.get())) return op->emitOpError(ofEachRow);
  if (!isPartial(value.get())) makeTerm(value);
  return success();
}

// A tensor of the evaluation says where its rows are.
LogicalResult Partitioner::visitOutput(OutputOp op) {
  OpOperand& value = op->getOpOperand(0);
  if (isPartial(value.get())) makeWhole(value);
  if (!isSplit(value.get()) && !rowsIn.contains(value.get())) return success();
  auto isRows = [&](const State& state) { return !state.chosen && runOf(state.place) % (rows / leaves) == 0; };
  if (op.getKind() != "tensor" || !isSplit(value.get()) || !isRows(stateOf(value.get()))) {
    // As on one rank, what the first dimension holds is taken for rows if it can be.
    makeWhole(value);
    const ArrayRef<int64_t> shape = globalShape(value.get());
    if (op.getKind() != "tensor" || shape.empty() || shape[0] == 0 || shape[0] % rows) return success();
    value.set(splitAt(value.get(), {0, shape[0] / parts}, op));
  }
  const Place place = stateOf(value.get()).place;
  const int64_t run = runOf(place);
  op.setAxis(place.dimension);
  op.setBlocks(globalShape(value.get())[place.dimension] / (run * leaves));
  return success();
}

// True if a value is made of a parameter.
static bool readsParameter(Value v) {
  SmallVector<Value> pending{v};
  DenseSet<Operation*> seen;
  while (!pending.empty()) {
    Operation* op = pending.pop_back_val().getDefiningOp();
    if (!op || !seen.insert(op).second) continue;
    if (isa<ReadOp>(op)) return true;
    llvm::append_range(pending, op->getOperands());
  }
  return false;
}

// Numbers are drawn by the index in the global value. Every leaf draws those of its part, or all of a whole value.
void Partitioner::visitRandom(Operation* op) {
  OpOperand& like = op->getOpOperand(0);
  if (isPartial(like.get())) makeWhole(like);
  const SmallVector<int64_t> shape(globalShape(like.get()));
  int64_t blocks = 0;
  // As many elements as rows, in a value that no parameter decides, are taken for them: each leaf draws its own then.
  if (!isSplit(like.get()) && !shape.empty() && shape[0] && shape[0] % rows == 0 && !readsParameter(like.get()))
    like.set(splitAt(like.get(), {0, shape[0] / parts}, op));
  if (isSplit(like.get())) {
    const State state = stateOf(like.get());
    blocks = blocksOf(shape, state.place).before;
    setSplit(op->getResult(0), state.place, state.chosen);
  } else if (auto found = rowsIn.find(like.get()); found != rowsIn.end()) {
    rowsIn[op->getResult(0)] = found->second;
  }
  if (blocks != 1) op->setAttr("blocks", builder.getI64IntegerAttr(blocks));
}

// The moments are those of all leaves' rows, or, where they are local, each leaf's own: its term of their mean. The
// importer made the unbiased estimate (`train.unbiased`) with the number of elements of the batch; here it is corrected
// to that of a leaf.
LogicalResult Partitioner::visitBatchNorm(BatchNormOp op) {
  for (OpOperand& operand : op->getOpOperands())
    if (operand.getOperandNumber() > 0 || isPartial(operand.get())) makeWhole(operand);
  Value operand = op.getOperand();
  if (!isSplit(operand)) return success();
  // Moments of rows that only fill the batch would move the others.
  dependent = true;
  const Place place = stateOf(operand).place;
  if (place.dimension == 1) return computeWhole(op), success();
  setSplit(op.getResult(), place, stateOf(operand).chosen);
  if (!op.getLocal()) return op.setRanks(leaves), success();
  const double own = double(typeOf(operand).getNumElements()) / double(typeOf(operand).getDimSize(1));
  auto unbiased = [](double n) { return n > 1 ? n / (n - 1) : 1; };
  for (Value moment : {op.getMean(), op.getVariance()}) {
    SmallVector<OpOperand*> plain, estimates;
    for (OpOperand& use : moment.getUses())
      (use.getOwner()->hasAttr("train.unbiased") ? estimates : plain).push_back(&use);
    auto give = [&](ArrayRef<OpOperand*> uses, double factor) {
      if (uses.empty()) return;
      builder.setInsertionPointAfter(op);
      TensorBuilder t{builder, op.getLoc()};
      Value term = t.mul(moment, factor / double(leaves));
      reshard(term, moment);
      for (OpOperand* use : uses) use->set(term);
      setPartial(term);
    };
    give(plain, 1);
    give(estimates, unbiased(own) / unbiased(own * double(leaves)));
  }
  return success();
}

}  // namespace sheaf::train
