// Makes the program of one leaf that of a rank with several.
//
// A leaf is a fixed piece of the batch's rows. Everything that decides bits (fusion, precision, the order of sums
// within a leaf) has been decided on the shapes of one leaf; here the program is widened to the rows of all leaves of a
// rank:
// - What has rows gets those of all leaves, one leaf after the other. A kernel or a move treats each row by itself. A
//   product's bits may depend on its shape, so it is computed leaf by leaf.
// - What is a sum over rows gets a value for each leaf. Linear ops on it are repeated for each leaf, and where the sum
//   of all rows is needed the leaves' values are added by a balanced binary tree, as sums over ranks continue it
//   (runtime/comm/local/Reduce.h).
// So any division of the same leaves among ranks computes the same bits.
#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/StepModule.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_WIDENLEAVES
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf;
using namespace sheaf::train;

namespace {

// A kernel that adds leaves reads at most so many.
constexpr size_t kAddedAtOnce = 8;

// Where the rows are: the dimension is (outer x rows x minor).
struct Rows {
  int64_t dimension = 0, minor = 1;
  bool operator==(const Rows&) const = default;
};

// What a value of the leaf's program is.
struct State {
  enum Kind { Replicated, Split, Partial } kind = Replicated;
  Rows rows;  // of a split one
};

class Widener {
 public:
  // A rank has `leaves` leaves of `leafRows` rows each.
  Widener(func::FuncOp function, int64_t leaves, int64_t leafRows)
      : function(function), leaves(leaves), leafRows(leafRows), builder(function.getContext()) {}

  LogicalResult run() {
    Block& body = function.getBody().front();
    auto fresh = std::make_unique<Block>();
    builder.setInsertionPointToEnd(fresh.get());
    SmallVector<Type> types;
    for (BlockArgument argument : body.getArguments()) {
      auto type = cast<RankedTensorType>(argument.getType());
      const bool whole = bool(function.getArgAttr(argument.getArgNumber(), "train.whole"));
      if (!whole && type.getRank() > 0) {
        if (type.getDimSize(0) % leafRows)
          return function.emitError() << "input " << function.getArgAttr(argument.getArgNumber(), "train.name")
                                      << " has " << type.getDimSize(0) << " elements for the " << leafRows
                                      << " rows of a leaf";
        states[argument] = {State::Split, {0, type.getDimSize(0) / leafRows}};
        type = widened(type, states[argument].rows);
      }
      types.push_back(type);
      wholes[argument] = fresh->addArgument(type, argument.getLoc());
    }
    DenseMap<Attribute, Operation*> last;  // of a group
    for (Operation& op : body)
      if (auto group = op.getAttrOfType<IntegerAttr>(kGroupAttr)) {
        nextGroup = std::max(nextGroup, group.getInt() + 1);
        last[group] = &op;
      }
    for (Operation& op : body) {
      if (failed(visit(&op))) return failure();
      Attribute group = op.getAttr(kGroupAttr);
      if (!group || last[group] != &op) continue;
      for (Operation* later : std::exchange(deferred, {}))
        if (failed(repeat(later))) return failure();
    }
    // What was needed with the rows of one leaf only.
    for (Operation& op : llvm::make_early_inc_range(llvm::reverse(*fresh)))
      if (isOpTriviallyDead(&op)) op.erase();
    function.setType(FunctionType::get(function.getContext(), types, function.getFunctionType().getResults()));
    for (Operation& op : llvm::make_early_inc_range(llvm::reverse(body))) op.erase();
    body.erase();
    function.getBody().push_back(fresh.release());
    return success();
  }

 private:
  static bool isElementwise(Operation* op) {
    return op && (op->hasTrait<OpTrait::Elementwise>() || isa<FusableElementwise>(op));
  }
  static RankedTensorType typeOf(Value v) { return cast<RankedTensorType>(v.getType()); }
  State of(Value v) const { return states.lookup(v); }
  static bool isAny(Operation* op, llvm::function_ref<bool(Value)> holds) {
    return llvm::any_of(op->getOperands(), holds);
  }

  RankedTensorType widened(RankedTensorType type, Rows rows) const {
    SmallVector<int64_t> shape(type.getShape());
    shape[rows.dimension] *= leaves;
    return type.clone(shape);
  }
  LogicalResult unsupported(Operation* op, const Twine& what) {
    return op->emitOpError() << what << ", which is not supported with more leaves than ranks";
  }

  //===--- Values of the widened program ---===//

  // A value with the rows of all leaves: of what is the same for every leaf, a copy for each.
  FailureOr<Value> withRows(Operation* user, Value v, Rows rows) {
    const State state = of(v);
    if (state.kind == State::Partial) return unsupported(user, "takes a sum over the batch by its rows");
    if (state.kind == State::Split) {
      if (state.rows != rows) return unsupported(user, "combines values that carry the batch in different dimensions");
      return wholes.lookup(v);
    }
    Value& copies = replicated[{v, {rows.dimension, rows.minor}}];
    if (copies) return copies;
    Value made = replicate(user, v, rows);
    return replicated[{v, {rows.dimension, rows.minor}}] = made;
  }

  Value replicate(Operation* user, Value v, Rows rows) {
    const RankedTensorType type = widened(typeOf(v), rows);
    Operation* op = v.getDefiningOp();
    if (auto constant = dyn_cast_or_null<ConstantOp>(op))
      if (auto splat = dyn_cast<SplatElementsAttr>(constant.getValue())) {
        auto wide = ConstantOp::create(builder, v.getLoc(), splat.resizeSplat(type));
        copyGroup(op, wide);
        markRows(wide, {}, rows);
        return wide;
      }
    auto clone = [&](ValueRange operands, bool byRow) {
      Operation* wide = cloneWith(op, operands, {type});
      markRows(wide, SmallVector<std::optional<Rows>>(operands.size(), byRow ? std::optional(rows) : std::nullopt),
               rows);
      return wide->getResult(0);
    };
    if (auto broadcast = dyn_cast_or_null<BroadcastOp>(op);
        broadcast && typeOf(broadcast.getOperand()).getDimSize(rows.dimension) == 1)
      return clone(wholes.lookup(broadcast.getOperand()), false);
    if (auto iota = dyn_cast_or_null<IotaOp>(op); iota && int64_t(iota.getAxis()) != rows.dimension)
      return clone({}, false);
    // Within a kernel nothing can be copied: what makes the value is computed for all leaves.
    auto reduce = dyn_cast_or_null<ReduceOp>(op);
    const bool byRow = isElementwise(op) || isa_and_nonnull<BroadcastOp>(op) ||
                       (reduce && !llvm::is_contained(reduce.getAxes(), rows.dimension));
    if (op && op->hasAttr(kGroupAttr) && byRow) {
      SmallVector<Value> operands;
      for (Value operand : op->getOperands()) {
        FailureOr<Value> wide = withRows(user, operand, rows);
        if (failed(wide) || !*wide) return {};
        operands.push_back(*wide);
      }
      return clone(operands, true);
    }
    return join(SmallVector<Value>(leaves, wholes.lookup(v)), rows, v.getLoc());
  }

  Value slice(Value v, int64_t dimension, int64_t start, int64_t size) {
    SmallVector<int64_t> sizes(typeOf(v).getShape()), starts(sizes.size(), 0), steps(sizes.size(), 1);
    starts[dimension] = start, sizes[dimension] = size;
    return SliceOp::create(builder, v.getLoc(), v, starts, sizes, steps);
  }
  // Rows of one leaf of a widened value, and the value of leaves' rows. Outside of kernels.
  Value leafOf(Value wide, Rows rows, int64_t leaf) {
    TensorBuilder t{builder, wide.getLoc()};
    const ArrayRef<int64_t> shape = typeOf(wide).getShape();
    const int64_t own = leafRows * rows.minor, outer = shape[rows.dimension] / (own * leaves);
    if (outer == 1) return slice(wide, rows.dimension, leaf * own, own);
    SmallVector<int64_t> apart(shape.take_front(rows.dimension)), to(shape);
    apart.append({outer, leaves * own});
    llvm::append_range(apart, shape.drop_front(rows.dimension + 1));
    to[rows.dimension] = outer * own;
    return t.reshape(slice(t.reshape(wide, apart), rows.dimension + 1, leaf * own, own), to);
  }
  Value join(ArrayRef<Value> pieces, Rows rows, Location loc) {
    TensorBuilder t{builder, loc};
    const ArrayRef<int64_t> shape = typeOf(pieces.front()).getShape();
    const int64_t own = leafRows * rows.minor, outer = shape[rows.dimension] / own;
    if (outer == 1) return ConcatOp::create(builder, loc, pieces, rows.dimension);
    SmallVector<int64_t> apart(shape.take_front(rows.dimension)), to(shape);
    apart.append({outer, own});
    llvm::append_range(apart, shape.drop_front(rows.dimension + 1));
    to[rows.dimension] *= leaves;
    SmallVector<Value> parted;
    for (Value piece : pieces) parted.push_back(t.reshape(piece, apart));
    return t.reshape(ConcatOp::create(builder, loc, parted, rows.dimension + 1), to);
  }

  // The sum of all leaves' values. Subtrees of what one kernel adds are a group; a type narrower than f32 is rounded at
  // every addition, which a kernel does only for what it stores.
  Value sum(ArrayRef<Value> terms, size_t& grouped) {
    if (terms.size() == 1) {
      grouped = 1;
      return terms.front();
    }
    const size_t subtree = terms.size() & -terms.size();
    const size_t left = subtree == terms.size() ? terms.size() / 2 : terms.size() - subtree;
    size_t leftGrouped = 0, rightGrouped = 0;
    Value lhs = sum(terms.take_front(left), leftGrouped), rhs = sum(terms.drop_front(left), rightGrouped);
    auto add = AddOp::create(builder, lhs.getLoc(), lhs, rhs);
    const bool wide = typeOf(lhs).getElementTypeBitWidth() >= 32;
    int64_t group = nextGroup++;
    grouped = 1;
    if (wide && leftGrouped + rightGrouped <= kAddedAtOnce) {
      // Both sides' kernels become this one.
      grouped = leftGrouped + rightGrouped;
      regroup(lhs, leftGrouped, group), regroup(rhs, rightGrouped, group);
    }
    add->setAttr(kGroupAttr, builder.getI64IntegerAttr(group));
    return add;
  }
  void regroup(Value v, size_t terms, int64_t group) {
    if (terms <= 1) return;
    auto old = v.getDefiningOp()->getAttrOfType<IntegerAttr>(kGroupAttr);
    SmallVector<Value> open{v};
    while (!open.empty()) {
      Operation* op = open.pop_back_val().getDefiningOp();
      if (!op || op->getAttr(kGroupAttr) != old) continue;
      op->setAttr(kGroupAttr, builder.getI64IntegerAttr(group));
      llvm::append_range(open, op->getOperands());
    }
  }
  Value sumOf(Value v) {
    Value& known = sums[v];
    if (known) return known;
    size_t grouped = 0;
    Value made = sum(partsOf(v), grouped);
    return sums[v] = made;
  }

  // The leaves' terms of a sum. Those of a kernel's column sums are taken apart where they are first needed, which is
  // after the kernel.
  ArrayRef<Value> partsOf(Value v) {
    SmallVector<Value>& known = parts[v];
    if (known.empty()) {
      TensorBuilder t{builder, v.getLoc()};
      Value sums = wholes.lookup(v);
      for (int64_t leaf = 0; leaf < leaves; ++leaf)
        known.push_back(t.reshape(slice(sums, 0, leaf, 1), typeOf(v).getShape()));
    }
    return known;
  }

  //===--- Ops ---===//

  static void copyGroup(Operation* from, Operation* to) {
    if (Attribute group = from->getAttr(kGroupAttr)) to->setAttr(kGroupAttr, group);
  }
  // Notes on a kernel's op where the leaves' rows lie in each operand and result.
  void markRows(Operation* op, ArrayRef<std::optional<Rows>> operands, std::optional<Rows> results) {
    if (!op->hasAttr(kGroupAttr) && !isa<ConstantOp>(op)) return;
    SmallVector<int64_t> all{leaves};
    auto add = [&](Value v, std::optional<Rows> rows) {
      if (rows)
        all.append({rows->dimension, typeOf(v).getDimSize(rows->dimension) / (leafRows * rows->minor * leaves)});
      else
        all.append({-1, 0});
    };
    for (auto [v, rows] : llvm::zip(op->getOperands(), operands)) add(v, rows);
    for (Value v : op->getResults()) add(v, results);
    op->setAttr(kLeafRowsAttr, builder.getDenseI64ArrayAttr(all));
  }
  Operation* cloneWith(Operation* op, ValueRange operands, TypeRange results) {
    OperationState state(op->getLoc(), op->getName(), operands, results, op->getAttrs());
    return builder.create(state);
  }
  void setWhole(Operation* op, Operation* made, State state) {
    for (auto [from, to] : llvm::zip(op->getResults(), made->getResults())) wholes[from] = to, states[from] = state;
  }

  // An op that treats each row by itself, with the rows of all leaves. The results' rows are where `rows` says.
  LogicalResult widen(Operation* op, ArrayRef<std::optional<Rows>> operandRows, Rows rows) {
    SmallVector<Value> operands;
    for (auto [operand, where] : llvm::zip(op->getOperands(), operandRows)) {
      if (!where) {
        operands.push_back(wholes.lookup(operand));
        continue;
      }
      FailureOr<Value> wide = withRows(op, operand, *where);
      if (failed(wide) || !*wide) return failure();
      operands.push_back(*wide);
    }
    SmallVector<Type> types;
    for (Value result : op->getResults()) types.push_back(widened(typeOf(result), rows));
    Operation* made = cloneWith(op, operands, types);
    if (auto slice = dyn_cast<SliceOp>(made)) slice.setSizes(typeOf(slice.getResult()).getShape());
    markRows(made, operandRows, rows);
    setWhole(op, made, {State::Split, rows});
    return success();
  }
  // The same where all operands have the results' rows.
  LogicalResult widenAll(Operation* op, Rows rows) {
    return widen(op, SmallVector<std::optional<Rows>>(op->getNumOperands(), rows), rows);
  }

  // The op once for each leaf, on its rows of the operands that have some. The results are joined in `rows`, or, where
  // there are none, are terms of a sum.
  LogicalResult perLeaf(Operation* op, ArrayRef<std::optional<Rows>> resultRows) {
    SmallVector<SmallVector<Value>> made(op->getNumResults());
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      SmallVector<Value> operands;
      for (Value operand : op->getOperands()) {
        const State state = of(operand);
        operands.push_back(state.kind == State::Split     ? leafOf(wholes.lookup(operand), state.rows, leaf)
                           : state.kind == State::Partial ? partsOf(operand)[leaf]
                                                          : wholes.lookup(operand));
      }
      Operation* own = cloneWith(op, operands, op->getResultTypes());
      for (auto [i, result] : llvm::enumerate(own->getResults())) made[i].push_back(result);
    }
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      if (resultRows[i]) {
        wholes[result] = join(made[i], *resultRows[i], op->getLoc());
        states[result] = {State::Split, *resultRows[i]};
      } else {
        parts[result] = made[i];
        states[result] = {State::Partial, {}};
      }
    return success();
  }

  // A linear op on terms of sums: the same on each leaf's term. Or a sum over rows that a kernel cannot keep apart.
  LogicalResult repeat(Operation* op) {
    if (!isa<ReduceOp>(op) && isAny(op, [&](Value v) { return of(v).kind == State::Split; }))
      return unsupported(op, "combines a sum over the batch with rows of it");
    if (failed(perLeaf(op, SmallVector<std::optional<Rows>>(op->getNumResults())))) return failure();
    // Each leaf's are a kernel of their own. An op outside of kernels rounded what a kernel's sums would have.
    auto group = op->getAttrOfType<IntegerAttr>(kGroupAttr);
    if (!group && !isElementwise(op)) return success();
    for (Value result : op->getResults())
      for (auto [leaf, part] : llvm::enumerate(parts[result])) {
        const int64_t number = group ? leafGroup(group.getInt(), int64_t(leaf)) : nextGroup++;
        part.getDefiningOp()->setAttr(kGroupAttr, builder.getI64IntegerAttr(number));
      }
    return success();
  }
  int64_t leafGroup(int64_t group, int64_t leaf) {
    auto [entry, isNew] = leafGroups.try_emplace({group, leaf}, nextGroup);
    nextGroup += isNew;
    return entry->second;
  }

  LogicalResult visit(Operation* op);
  LogicalResult visitReshape(ReshapeOp op);
  LogicalResult visitReduce(ReduceOp op);
  LogicalResult visitMatMul(Operation* op, Value lhs, Value rhs, bool transposeA, bool transposeB);

  Rows rowsOf(Value v) const { return of(v).rows; }
  bool isSplit(Value v) const { return of(v).kind == State::Split; }
  // Where all rows of the op's split operands are; failure if they differ.
  FailureOr<Rows> commonRows(Operation* op) {
    std::optional<Rows> rows;
    for (Value operand : op->getOperands()) {
      if (!isSplit(operand)) continue;
      if (rows && *rows != rowsOf(operand))
        return unsupported(op, "combines values that carry the batch in different dimensions");
      rows = rowsOf(operand);
    }
    return *rows;
  }

  func::FuncOp function;
  const int64_t leaves, leafRows;
  OpBuilder builder;
  int64_t nextGroup = 0;
  DenseMap<Value, State> states;              // of the leaf's values
  DenseMap<Value, Value> wholes;              // replicated and split ones in the widened program
  DenseMap<Value, SmallVector<Value>> parts;  // partial ones: a term for each leaf
  DenseMap<Value, Value> sums;                // of those
  DenseMap<std::pair<Value, std::pair<int64_t, int64_t>>, Value> replicated;
  DenseMap<std::pair<int64_t, int64_t>, int64_t> leafGroups;
  SmallVector<Operation*> deferred;  // on sums over the batch, of the group that is being visited
};

LogicalResult Widener::visit(Operation* op) {
  const bool partial = isAny(op, [&](Value v) { return of(v).kind == State::Partial; });
  const bool split = isAny(op, [&](Value v) { return isSplit(v); });
  if (partial ? isa<GlobalSumOp, LossOp, UpdateOp, OutputOp>(op) : !split && isa<GlobalSumOp, LossOp, UpdateOp>(op)) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) {
      // What is the same for every leaf is each leaf's share.
      if (of(operand).kind == State::Replicated) parts[operand].assign(leaves, wholes.lookup(operand));
      operands.push_back(sumOf(operand));
    }
    setWhole(op, cloneWith(op, operands, op->getResultTypes()), {});
    return success();
  }
  if (partial && op->hasAttr(kGroupAttr)) {
    // They leave their kernel for ones of their own, which come after it.
    for (Value result : op->getResults()) states[result] = {State::Partial, {}};
    deferred.push_back(op);
    return success();
  }
  if (partial) return repeat(op);
  if (!split) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) operands.push_back(wholes.lookup(operand));
    setWhole(op, cloneWith(op, operands, op->getResultTypes()), {});
    return success();
  }
  auto first = [&] { return rowsOf(op->getOperand(0)); };
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](ReshapeOp o) { return visitReshape(o); })
      .Case([&](ReduceOp o) { return visitReduce(o); })
      .Case([&](MatMulOp o) { return visitMatMul(op, o.getLhs(), o.getRhs(), o.getTransposeA(), o.getTransposeB()); })
      .Case([&](MatMulEpilogueOp o) {
        return visitMatMul(op, o.getLhs(), o.getRhs(), o.getTransposeA(), o.getTransposeB());
      })
      .Case<BroadcastOp, SliceOp, PadOp, ReverseOp, CumSumOp, TopKOp>(
          [&](auto) { return widen(op, {first()}, first()); })
      .Case([&](TransposeOp o) {
        Rows rows = first();
        rows.dimension = llvm::find(o.getPermutation(), rows.dimension) - o.getPermutation().begin();
        return widen(op, {first()}, rows);
      })
      .Case([&](GatherOp o) {
        const int64_t axis = o.getAxis(), count = typeOf(o.getIndices()).getRank();
        if (isSplit(o.getData()) && isSplit(o.getIndices()))
          return unsupported(op, "gathers from rows of the batch by rows of the batch");
        Rows rows = isSplit(o.getData()) ? rowsOf(o.getData()) : rowsOf(o.getIndices());
        if (isSplit(o.getData())) {
          if (rows.dimension >= axis) rows.dimension += count - 1;
          return widen(op, {rowsOf(o.getData()), std::nullopt}, rows);
        }
        rows.dimension += axis;
        return widen(op, {std::nullopt, rowsOf(o.getIndices())}, rows);
      })
      .Case([&](ScatterAddOp o) {
        const int64_t axis = o.getAxis(), count = typeOf(o.getIndices()).getRank();
        Rows rows = rowsOf(o.getUpdate());
        // The rows are added up, also where each has the same indices.
        const bool added = isSplit(o.getUpdate()) && rows.dimension >= axis && rows.dimension < axis + count;
        if (isSplit(o.getIndices()) || added) return perLeaf(op, {std::nullopt});
        if (rows.dimension >= axis) rows.dimension -= count - 1;
        SmallVector<std::optional<Rows>> operands;
        for (Value operand : op->getOperands())
          operands.push_back(isSplit(operand) ? std::optional(rowsOf(operand)) : std::nullopt);
        return widen(op, operands, rows);
      })
      .Case<GatherElementsOp, ScatterOp>([&](auto o) -> LogicalResult {
        FailureOr<Rows> rows = commonRows(op);
        if (failed(rows)) return failure();
        if (rows->dimension == int64_t(o.getAxis())) return perLeaf(op, {std::nullopt});
        return widenAll(op, *rows);
      })
      .Case<AttentionOp, AttentionGradOp>([&](auto o) -> LogicalResult {
        FailureOr<Rows> rows = commonRows(op);
        if (failed(rows)) return failure();
        SmallVector<std::optional<Rows>> operands(op->getNumOperands(), *rows);
        // One mask is that of all sequences.
        if (o.getMask() && !isSplit(o.getMask()) && typeOf(o.getMask()).getDimSize(0) == 1)
          operands.back() = std::nullopt;
        return widen(op, operands, *rows);
      })
      .Case<ConvOp, ConvGradInputOp>([&](auto) { return perLeaf(op, {first()}); })
      .Case([&](ConvGradFilterOp) { return perLeaf(op, {std::nullopt}); })
      .Case<LossOp, UpdateOp, GlobalSumOp>([&](auto) { return unsupported(op, "has a value for every row"); })
      .Case([&](OutputOp o) {
        FailureOr<Value> value = withRows(op, o.getValue(), first());
        if (failed(value)) return failure();
        cloneWith(op, {*value}, {});
        return success();
      })
      .Case([&](RandomUniformOp) { return widen(op, {first()}, first()); })
      .Default([&](Operation*) -> LogicalResult {
        FailureOr<Rows> rows = commonRows(op);
        if (failed(rows)) return failure();
        const bool known =
            isElementwise(op) || isa<DropoutOp, MaxPoolOp, MaxPoolIndicesOp, MaxPoolGradOp, ConcatOp>(op);
        if (!known) return unsupported(op, "depends on the batch in a way that is not known to be row by row");
        return widenAll(op, *rows);
      });
}

// The order of elements stays, so the distance between rows does, too.
LogicalResult Widener::visitReshape(ReshapeOp op) {
  const Rows from = rowsOf(op.getOperand());
  const ArrayRef<int64_t> source = typeOf(op.getOperand()).getShape(), to = typeOf(op.getResult()).getShape();
  const int64_t apart = from.minor * ShapedType::getNumElements(source.drop_front(from.dimension + 1));
  int64_t inner = ShapedType::getNumElements(to);
  std::optional<Rows> found;
  for (auto [d, size] : llvm::enumerate(to)) {
    inner /= std::max<int64_t>(size, 1);
    if (inner == 0 || apart % inner != 0 || size % (apart / inner * leafRows) != 0) continue;
    found = {int64_t(d), apart / inner};
  }
  if (!found) return unsupported(op, "takes rows of the batch apart");
  return widen(op, {from}, *found);
}

LogicalResult Widener::visitReduce(ReduceOp op) {
  const Rows rows = rowsOf(op.getOperand());
  if (!llvm::is_contained(op.getAxes(), rows.dimension)) return widen(op, {rows}, rows);
  const auto type = typeOf(op.getOperand());
  if (op.getKind() != ReduceKind::sum) return unsupported(op, "reduces the batch by other than a sum");
  // A kernel keeps leaves apart that follow each other. Else each leaf's rows are copied and summed by a kernel of
  // their own, which must see what the one kernel of a leaf alone would: a 16-bit type is rounded where it is stored.
  const int64_t outer = type.getDimSize(rows.dimension) / (leafRows * rows.minor);
  if (ShapedType::getNumElements(type.getShape().take_front(rows.dimension)) * outer != 1) {
    if (type.getElementTypeBitWidth() < 32)
      return unsupported(op, "sums a 16-bit type over a batch that is not the first dimension");
    states[op.getResult()] = {State::Partial, {}};
    if (!op->hasAttr(kGroupAttr)) return repeat(op);
    deferred.push_back(op);
    return success();
  }
  FailureOr<Value> operand = withRows(op, op.getOperand(), rows);
  if (failed(operand)) return failure();
  auto sums = ReduceOp::create(builder, op.getLoc(), ReduceKind::sum, *operand, op.getAxes(), leaves);
  copyGroup(op, sums);
  markRows(sums, {rows}, std::nullopt);
  wholes[op.getResult()] = sums;
  states[op.getResult()] = {State::Partial, {}};
  return success();
}

LogicalResult Widener::visitMatMul(Operation* op, Value lhs, Value rhs, bool transposeA, bool transposeB) {
  const int64_t rank = typeOf(op->getResult(0)).getRank();
  const int64_t summedLeft = transposeA ? rank - 2 : rank - 1, summedRight = transposeB ? rank - 1 : rank - 2;
  const bool left = isSplit(lhs) && rowsOf(lhs).dimension == summedLeft;
  const bool right = isSplit(rhs) && rowsOf(rhs).dimension == summedRight;
  SmallVector<std::optional<Rows>> results(op->getNumResults());
  if (left || right) {
    if (!(left && right) || rowsOf(lhs).minor != rowsOf(rhs).minor)
      return unsupported(op, "sums over the batch of one operand alone");
    return perLeaf(op, results);
  }
  auto moved = [&](Value v, int64_t own) {
    Rows rows = rowsOf(v);
    if (rows.dimension >= rank - 2) rows.dimension = own;
    return rows;
  };
  if (isSplit(lhs) && isSplit(rhs) && moved(lhs, rank - 2) != moved(rhs, rank - 1))
    return unsupported(op, "combines values that carry the batch in different dimensions");
  results[0] = isSplit(lhs) ? moved(lhs, rank - 2) : moved(rhs, rank - 1);
  // Besides its result an epilogue gives what has the result's shape, or a sum over rows.
  if (op->getNumResults() > 1 && typeOf(op->getResult(1)).getRank() == rank) results[1] = results[0];
  return perLeaf(op, results);
}

struct WidenLeaves : sheaf::train::impl::WidenLeavesBase<WidenLeaves> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    const int64_t leaves = zero::ranksOf(module), pieces = zero::moduleInteger(module, "train.widen_to", leaves);
    module->removeAttr("train.widen_to");
    // A rank has as many pieces as micro-batches, and the program is that of one of them.
    const int64_t microBatches = zero::moduleInteger(module, "train.micro_batches", 1);
    Builder b(&getContext());
    if (microBatches > 1) {
      module->setAttr("train.ranks", b.getI64IntegerAttr(pieces / microBatches));
      module->setAttr("train.leaves", b.getI64IntegerAttr(leaves / pieces * microBatches));
    }
    if (pieces == leaves) return;
    const int64_t rows = zero::moduleInteger(module, "train.batch", leaves) / leaves;
    // A dimension of size 1 could be the batch or not.
    if (rows < 2) {
      module.emitError() << "a leaf has one row of the batch, and leaves that share a rank need at least two: give a "
                            "larger --batch or fewer --leaves";
      return signalPassFailure();
    }
    for (auto function : module.getOps<func::FuncOp>())
      if (!function.isExternal() && failed(Widener(function, leaves / pieces, rows).run())) return signalPassFailure();
    if (microBatches > 1) return;
    module->setAttr("train.ranks", b.getI64IntegerAttr(pieces));
    module->setAttr("train.leaves", b.getI64IntegerAttr(leaves / pieces));
  }
};

}  // namespace
