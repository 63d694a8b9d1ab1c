#include "passes/train/Widener.h"

#include "ir/Train/Outputs.h"
#include "llvm/ADT/TypeSwitch.h"
#include "passes/train/FusionOps.h"

using namespace mlir;

namespace sheaf::train {

namespace {

RankedTensorType typeOf(Value v) {
  return cast<RankedTensorType>(v.getType());
}

int64_t highestGroup(func::FuncOp function) {
  int64_t highest = -1;
  function.walk([&](Operation* op) {
    if (auto group = op->getAttrOfType<IntegerAttr>(kGroupAttr)) highest = std::max(highest, group.getInt());
  });
  return highest;
}

// Whether every entry of the dimension is computed from the same entries of the operand.
bool keepsDimension(Operation* op, int64_t d) {
  const bool sameSize = typeOf(op->getOperand(0)).getDimSize(d) == typeOf(op->getResult(0)).getDimSize(d);
  return llvm::TypeSwitch<Operation*, bool>(op)
      .Case([&](BroadcastOp) { return sameSize; })
      .Case([&](SliceOp o) { return sameSize && o.getSteps()[d] == 1; })
      .Case([&](PadOp o) { return !o.getLow()[d] && !o.getHigh()[d] && !o.getInterior()[d]; })
      .Case([&](ReverseOp o) { return !llvm::is_contained(o.getAxes(), d); })
      .Case<CumSumOp, TopKOp>([&](auto o) { return int64_t(o.getAxis()) != d; })
      .Default(false);
}

}  // namespace

Widener::Widener(func::FuncOp function, int64_t leaves, int64_t leafRows, OpCheck* check)
    : function(function),
      leaves(leaves),
      leafRows(leafRows),
      builder(function.getContext()),
      check(check),
      values(builder, leaves, highestGroup(function) + 1) {
  values.onMade([this](auto... made) { note(made...); });
}

LogicalResult Widener::run() {
  Block& body = function.getBody().front();
  auto fresh = std::make_unique<Block>();
  builder.setInsertionPointToEnd(fresh.get());
  if (failed(addArguments(body, *fresh))) return failure();
  for (Operation& op : body) {
    Attribute group = op.getAttr(kGroupAttr);
    Operation *before = op.getPrevNode(), *after = op.getNextNode();
    if (group && !(before && before->getAttr(kGroupAttr) == group)) enterGroup(&op);
    if (!done.contains(&op) && failed(visit(&op))) return failure();
    if (group && !(after && after->getAttr(kGroupAttr) == group)) leaveGroup();
  }
  for (const OpPair& pair : pairs)
    if (failed(check->check(pair))) return failure();
  // What was needed with the rows of one leaf only.
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(*fresh)))
    if (isOpTriviallyDead(&op)) op.erase();
  function.setType(
      FunctionType::get(function.getContext(), fresh->getArgumentTypes(), function.getFunctionType().getResults()));
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(body))) op.erase();
  body.erase();
  function.getBody().push_back(fresh.release());
  return success();
}

void Widener::note(Operation* op, Operation* made, ArrayRef<MaybeRows> operands, LeafRows rows) {
  if (!check) return;
  OpPair pair{made, op, {}, {}, 1};
  for (const MaybeRows& where : operands)
    pair.operands.push_back(where ? Claim{Claim::Split, {where->dimension, where->own}} : Claim());
  pair.results.assign(op->getNumResults(), {Claim::Split, {rows.dimension, rows.own}});
  pairs.push_back(std::move(pair));
}

LogicalResult Widener::addArguments(Block& body, Block& fresh) {
  for (BlockArgument argument : body.getArguments()) {
    auto type = typeOf(argument);
    LeafState state;
    if (!function.getArgAttr(argument.getArgNumber(), "train.whole") && type.getRank() > 0) {
      if (type.getDimSize(0) % leafRows)
        return function.emitError() << "input " << function.getArgAttr(argument.getArgNumber(), "train.name") << " has "
                                    << type.getDimSize(0) << " elements for the " << leafRows << " rows of a leaf";
      state = {LeafState::Split, {0, type.getDimSize(0)}};
      type = values.widened(type, state.rows);
    }
    values.setWhole(argument, fresh.addArgument(type, argument.getLoc()), state);
  }
  return success();
}

// A kernel has the rows of all leaves, or of none: where it has both kinds of ops, those that are the same for every
// leaf become a kernel of their own, before it. What the others use of them they compute themselves if they can.
void Widener::enterGroup(Operation* first) {
  auto group = first->getAttrOfType<IntegerAttr>(kGroupAttr);
  DenseSet<Value> differing;
  SmallVector<Operation*> equal;
  for (Operation* op = first; op && op->getAttr(kGroupAttr) == group; op = op->getNextNode()) {
    const bool differs = llvm::any_of(op->getOperands(), [&](Value v) {
      return values.of(v).kind != LeafState::Replicated || differing.contains(v);
    });
    if (differs)
      differing.insert(op->result_begin(), op->result_end());
    else
      equal.push_back(op);
  }
  if (differing.empty()) return;
  for (Operation* op : equal) {
    visitReplicated(op);
    Operation* made = values.whole(op->getResult(0)).getDefiningOp();
    if (isa<ConstantOp>(op))
      made->removeAttr(kGroupAttr);  // kernels hold it in registers
    else
      values.setGroup(made, values.groupOf(group.getInt(), -1));
    done.insert(op);
  }
}

void Widener::leaveGroup() {
  for (int64_t leaf = 0; leaf < leaves; ++leaf)
    for (Operation* op : deferred) {
      const int64_t group = values.groupOf(op->getAttrOfType<IntegerAttr>(kGroupAttr).getInt(), leaf);
      SmallVector<Value> operands;
      for (Value v : op->getOperands())
        operands.push_back(values.of(v).kind == LeafState::Replicated ? values.inside(op, v, group)
                                                                      : values.part(v, leaf));
      Operation* own = values.cloneWith(op, operands, op->getResultTypes());
      values.setGroup(own, group);
      for (auto [result, made] : llvm::zip(op->getResults(), own->getResults())) values.addPart(result, made);
    }
  deferred.clear();
  done.clear();
}

LogicalResult Widener::visit(Operation* op) {
  if (isa<GlobalSumOp, LossOp, UpdateOp>(op)) return addUp(op), success();
  if (auto gather = dyn_cast<GatherRowsOp>(op)) return gatherRows(gather), success();
  if (auto output = dyn_cast<OutputOp>(op)) return visitOutput(output);
  auto isAny = [&](LeafState::Kind kind) {
    return llvm::any_of(op->getOperands(), [&](Value v) { return values.of(v).kind == kind; });
  };
  const bool apart = isAny(LeafState::Apart);
  // Numbers are drawn for rows, also where the operand is the same for all of them.
  if (isa<DropoutOp, RandomUniformOp>(op))
    draw(op);
  else if (!apart && !isAny(LeafState::Split))
    visitReplicated(op);
  else if (apart || !tryWiden(op))
    eachLeaf(op);
  return success();
}

void Widener::visitReplicated(Operation* op) {
  SmallVector<Value> operands;
  for (Value operand : op->getOperands()) operands.push_back(values.whole(operand));
  values.setWhole(op, values.cloneWith(op, operands, op->getResultTypes()), {});
}

// What is summed over ranks is summed over leaves first. What is the same for every leaf is each leaf's share.
void Widener::addUp(Operation* op) {
  SmallVector<Value> operands;
  for (Value operand : op->getOperands()) operands.push_back(values.sumOf(operand));
  values.setWhole(op, values.cloneWith(op, operands, op->getResultTypes()), {});
}

// All leaves' values side by side, outside of kernels.
Value Widener::sideBySide(Operation* user, Value v, LeafRows rows) {
  if (Value wide = values.withRows(user, v, rows)) return wide;
  SmallVector<Value> pieces;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) pieces.push_back(values.part(v, leaf));
  return values.join(pieces, rows, user->getLoc());
}

LogicalResult Widener::visitOutput(OutputOp op) {
  Value v = op.getValue();
  if (values.of(v).kind == LeafState::Replicated) return visitReplicated(op), success();
  if (op.getBlocks() == 0)
    return op.emitOpError("has a value of its own for every leaf: compile with as many ranks as leaves");
  const int64_t axis = op.getAxis(), own = typeOf(v).getDimSize(axis) / int64_t(op.getBlocks());
  values.cloneWith(op, {sideBySide(op, v, {axis, own})}, {});
  return success();
}

// The leaves of a rank, which follow each other, are joined to those of the others, if there are any.
void Widener::gatherRows(GatherRowsOp op) {
  Value wide = sideBySide(op, op.getOperand(), {0, typeOf(op.getOperand()).getDimSize(0)});
  if (wide.getType() != op.getType()) wide = GatherRowsOp::create(builder, op.getLoc(), op.getType(), wide, Value());
  values.setWhole(op.getResult(), wide, {});
}

// Random numbers go by the index in the global value, in each block of which the leaves follow each other. Of a whole
// value all leaves draw the same.
void Widener::draw(Operation* op) {
  Value v = op->getOperand(0);
  auto dropout = dyn_cast<DropoutOp>(op);
  const int64_t blocks = dropout ? dropout.getBlocks() : cast<RandomUniformOp>(op).getBlocks();
  if (blocks == 0) return values.of(v).kind == LeafState::Replicated ? visitReplicated(op) : eachLeaf(op);
  const int64_t run = typeOf(v).getNumElements() / blocks;
  LeafRows rows = values.rowsOf(v);
  Value wide = values.whole(v);
  if (!values.isSplit(v) || LeafValues::runOf(typeOf(v), rows) != run) {
    rows = LeafValues::rowsOfRun(typeOf(v), run);
    SmallVector<Value> pieces;
    for (int64_t leaf = 0; leaf < leaves; ++leaf) pieces.push_back(values.part(v, leaf));
    wide = values.join(pieces, rows, op->getLoc());
  }
  Operation* made = values.cloneWith(op, {wide}, {values.widened(typeOf(op->getResult(0)), rows)});
  note(op, made, {rows}, rows);
  values.setWhole(op, made, {LeafState::Split, rows});
}

//===--- Leaf by leaf ---===//

void Widener::eachLeaf(Operation* op) {
  if (!op->hasAttr(kGroupAttr)) return perLeaf(op, SmallVector<MaybeRows>(op->getNumResults()));
  for (Value result : op->getResults()) values.announceParts(result);
  deferred.push_back(op);
}

// Outside of kernels. Results are joined in the rows that are given; the others stay apart.
void Widener::perLeaf(Operation* op, ArrayRef<MaybeRows> resultRows) {
  SmallVector<SmallVector<Value>> made(op->getNumResults());
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) operands.push_back(values.part(operand, leaf));
    Operation* own = values.cloneWith(op, operands, op->getResultTypes());
    // An op that rounded what a kernel's sums would have.
    if (isElementOp(op)) values.setGroup(own, values.newGroup());
    for (auto [i, result] : llvm::enumerate(own->getResults())) made[i].push_back(result);
  }
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    if (resultRows[i])
      values.setWhole(result, values.join(made[i], *resultRows[i], op->getLoc()), {LeafState::Split, *resultRows[i]});
    else
      values.setParts(result, made[i]);
}

//===--- All leaves at once ---===//

LeafRows Widener::rowsOfOperands(Operation* op) const {
  for (Value operand : op->getOperands())
    if (values.isSplit(operand)) return values.rowsOf(operand);
  return {};
}

bool Widener::widen(Operation* op, ArrayRef<MaybeRows> operandRows, LeafRows rows) {
  if (Attribute group = op->getAttr(kGroupAttr)) {
    // The values of a kernel have equally many columns.
    const RankedTensorType type = typeOf(op->getResult(0));
    const int64_t columns = rows.dimension == type.getRank() - 1 ? type.getShape().back() : 0;
    if (rowsInColumns.try_emplace(group, columns).first->second != columns) return false;
  }
  SmallVector<Value> operands;
  for (auto [operand, where] : llvm::zip(op->getOperands(), operandRows)) {
    operands.push_back(where ? values.withRows(op, operand, *where) : values.whole(operand));
    if (!operands.back()) return false;
  }
  SmallVector<Type> types;
  for (Value result : op->getResults()) types.push_back(values.widened(typeOf(result), rows));
  Operation* made = values.cloneWith(op, operands, types);
  if (auto slice = dyn_cast<SliceOp>(made)) slice.setSizes(typeOf(slice.getResult()).getShape());
  values.markRows(made, operandRows, rows);
  note(op, made, operandRows, rows);
  values.setWhole(op, made, {LeafState::Split, rows});
  return true;
}

bool Widener::widenAll(Operation* op, LeafRows rows) {
  return widen(op, SmallVector<MaybeRows>(op->getNumOperands(), rows), rows);
}

bool Widener::tryWiden(Operation* op) {
  const LeafRows rows = rowsOfOperands(op);
  auto alikeInRows = [&] {
    return llvm::all_of(op->getOperands(), [&](Value v) {
      return typeOf(v).getDimSize(rows.dimension) == typeOf(op->getResult(0)).getDimSize(rows.dimension);
    });
  };
  return llvm::TypeSwitch<Operation*, bool>(op)
      .Case([&](ReshapeOp o) { return widenReshape(o); })
      .Case([&](ReduceOp o) { return widenReduce(o); })
      .Case([&](MatMulOp o) { return widenMatMul(op, o.getLhs(), o.getRhs(), o.getTransposeA(), o.getTransposeB()); })
      .Case([&](MatMulEpilogueOp o) {
        return widenMatMul(op, o.getLhs(), o.getRhs(), o.getTransposeA(), o.getTransposeB());
      })
      .Case<BroadcastOp, SliceOp, PadOp, ReverseOp, CumSumOp, TopKOp>(
          [&](auto) { return keepsDimension(op, rows.dimension) && widenAll(op, rows); })
      .Case([&](TransposeOp o) {
        LeafRows to = rows;
        to.dimension = llvm::find(o.getPermutation(), rows.dimension) - o.getPermutation().begin();
        return widen(op, {rows}, to);
      })
      .Case([&](GatherOp o) { return widenGather(o); })
      .Case([&](ScatterAddOp o) { return widenScatterAdd(o); })
      .Case<GatherElementsOp, ScatterOp>(
          [&](auto o) { return rows.dimension != int64_t(o.getAxis()) && alikeInRows() && widenAll(op, rows); })
      .Case<AttentionOp, AttentionGradOp>([&](auto o) {
        if (rows.dimension != 0) return false;
        SmallVector<MaybeRows> operands(op->getNumOperands(), rows);
        // One mask is that of all sequences.
        if (o.getMask() && !values.isSplit(o.getMask()) && typeOf(o.getMask()).getDimSize(0) == 1)
          operands.back() = std::nullopt;
        return widen(op, operands, rows);
      })
      .Case<ConvOp, ConvGradInputOp>([&](auto) {
        if (!values.isSplit(op->getOperand(0)) || rows.dimension != 0) return false;
        return perLeaf(op, {rows}), true;
      })
      .Case<MaxPoolOp, MaxPoolIndicesOp, MaxPoolGradOp>([&](auto) { return rows.dimension == 0 && widenAll(op, rows); })
      .Case([&](ConcatOp o) {
        const bool along = int64_t(o.getAxis()) == rows.dimension;
        auto fits = [&](Value v) { return values.isSplit(v) && values.rowsOf(v) == rows; };
        return (!along || llvm::all_of(op->getOperands(), fits)) && widenAll(op, rows);
      })
      .Default([&](Operation*) { return isElementOp(op) && widenAll(op, rows); });
}

// The order of elements stays, so what was a run of neighbours is one. A single row may be in any of several dimensions
// of size 1: preferably one that has as many elements before it.
bool Widener::widenReshape(ReshapeOp op) {
  const LeafRows from = values.rowsOf(op.getOperand());
  const ArrayRef<int64_t> source = typeOf(op.getOperand()).getShape(), to = typeOf(op.getResult()).getShape();
  const int64_t run = LeafValues::runOf(typeOf(op.getOperand()), from);
  const int64_t before = ShapedType::getNumElements(source.take_front(from.dimension));
  MaybeRows found;
  int64_t inner = ShapedType::getNumElements(to), outer = 1;
  for (auto [d, size] : llvm::enumerate(to)) {
    inner /= std::max<int64_t>(size, 1);
    if (inner != 0 && run % inner == 0 && size % (run / inner) == 0 && (!found || outer == before)) {
      found = {int64_t(d), run / inner};
      if (outer == before) break;
    }
    outer *= size;
  }
  return found && widen(op, {from}, *found);
}

bool Widener::widenReduce(ReduceOp op) {
  const LeafRows rows = values.rowsOf(op.getOperand());
  const auto type = typeOf(op.getOperand());
  SmallVector<int64_t> axes(op.getAxes());
  const bool summed = llvm::is_contained(axes, rows.dimension), columns = isColumnReduction(op);
  if (!summed && (!columns || rows.dimension == type.getRank() - 1)) return widen(op, {rows}, rows);
  // A kernel keeps apart the sums of leaves that follow each other in its rows.
  const bool follow = LeafValues::runOf(type, rows) == type.getNumElements();
  if (!columns || !op->hasAttr(kGroupAttr) || !follow) return false;
  // A dimension of size 1 need not be summed in one leaf.
  if (!summed) axes.insert(llvm::lower_bound(axes, rows.dimension), rows.dimension);
  Value operand = values.withRows(op, op.getOperand(), rows);
  auto sums = ReduceOp::create(builder, op.getLoc(), ReduceKind::sum, operand, axes, leaves);
  sums->setAttr(kGroupAttr, op->getAttr(kGroupAttr));
  values.markRows(sums, {rows}, std::nullopt);
  note(op, sums, {rows}, {0, 1});
  values.setStacked(op.getResult(), sums);
  return true;
}

// A product's bits may depend on its shape, so each leaf has its own.
bool Widener::widenMatMul(Operation* op, Value lhs, Value rhs, bool transposeA, bool transposeB) {
  const int64_t rank = typeOf(op->getResult(0)).getRank();
  auto isSummed = [&](Value v, int64_t dimension) {
    return values.isSplit(v) && values.rowsOf(v).dimension == dimension;
  };
  if (isSummed(lhs, transposeA ? rank - 2 : rank - 1) || isSummed(rhs, transposeB ? rank - 1 : rank - 2)) return false;
  auto moved = [&](Value v, int64_t own) {
    LeafRows rows = values.rowsOf(v);
    if (rows.dimension >= rank - 2) rows.dimension = own;
    return rows;
  };
  const bool left = values.isSplit(lhs), right = values.isSplit(rhs);
  if ((!left && !right) || (left && right && moved(lhs, rank - 2) != moved(rhs, rank - 1))) return false;
  SmallVector<MaybeRows> results(op->getNumResults());
  results[0] = left ? moved(lhs, rank - 2) : moved(rhs, rank - 1);
  // Besides its result an epilogue gives what has the result's shape, or a sum over rows.
  if (op->getNumResults() > 1 && typeOf(op->getResult(1)).getRank() == rank) results[1] = results[0];
  perLeaf(op, results);
  return true;
}

bool Widener::widenGather(GatherOp op) {
  const int64_t axis = op.getAxis(), count = typeOf(op.getIndices()).getRank();
  const bool split = values.isSplit(op.getData());
  LeafRows rows = values.rowsOf(split ? op.getData() : op.getIndices());
  if (!split) {
    rows.dimension += axis;
    return widen(op, {std::nullopt, values.rowsOf(op.getIndices())}, rows);
  }
  if (values.isSplit(op.getIndices()) || rows.dimension == axis) return false;
  if (rows.dimension > axis) rows.dimension += count - 1;
  return widen(op, {values.rowsOf(op.getData()), std::nullopt}, rows);
}

// Where indices are those of rows, or rows are among what is added, the sum is over rows.
bool Widener::widenScatterAdd(ScatterAddOp op) {
  const int64_t axis = op.getAxis(), count = typeOf(op.getIndices()).getRank();
  const LeafRows from = values.rowsOf(op.getUpdate());
  if (values.isSplit(op.getIndices()) || (from.dimension >= axis && from.dimension < axis + count)) return false;
  LeafRows rows = from;
  if (rows.dimension >= axis) rows.dimension -= count - 1;
  return widen(op, {from, std::nullopt}, rows);
}

}  // namespace sheaf::train
