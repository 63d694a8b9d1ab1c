#include "passes/train/LeafValues.h"

#include "ir/Train/TensorBuilder.h"
#include "passes/train/FusionOps.h"

using namespace mlir;

namespace sheaf::train {

namespace {

// A kernel that adds leaves reads at most so many.
constexpr size_t kAddedAtOnce = 8;

RankedTensorType typeOf(Value v) {
  return cast<RankedTensorType>(v.getType());
}

Attribute groupAttr(Operation* op) {
  return op ? op->getAttr(kGroupAttr) : Attribute();
}

}  // namespace

bool isElementOp(Operation* op) {
  return op && (op->hasTrait<OpTrait::Elementwise>() || isa<FusableElementwise>(op));
}

int64_t LeafValues::runOf(RankedTensorType type, LeafRows rows) {
  return rows.own * ShapedType::getNumElements(type.getShape().drop_front(rows.dimension + 1));
}

LeafRows LeafValues::rowsOfRun(RankedTensorType type, int64_t run) {
  // Without elements any dimension will do.
  if (run == 0) return {0, type.getDimSize(0)};
  int64_t inner = type.getNumElements();
  for (auto [d, size] : llvm::enumerate(type.getShape())) {
    inner /= size;
    if (run % inner == 0 && size % (run / inner) == 0) return {int64_t(d), run / inner};
  }
  llvm_unreachable("no dimension spans the run");
}

RankedTensorType LeafValues::widened(RankedTensorType type, LeafRows rows) const {
  SmallVector<int64_t> shape(type.getShape());
  shape[rows.dimension] *= leaves;
  return type.clone(shape);
}

void LeafValues::setWhole(Operation* op, Operation* made, LeafState state) {
  for (auto [from, to] : llvm::zip(op->getResults(), made->getResults())) setWhole(from, to, state);
}

void LeafValues::setParts(Value v, ArrayRef<Value> made) {
  parts[v].assign(made.begin(), made.end());
  announceParts(v);
}

//===--- Groups and marks ---===//

int64_t LeafValues::groupOf(int64_t group, int64_t leaf) {
  auto [entry, isNew] = groups.try_emplace({group, leaf}, nextGroup);
  nextGroup += isNew;
  return entry->second;
}

void LeafValues::setGroup(Operation* op, int64_t group) const {
  op->setAttr(kGroupAttr, builder.getI64IntegerAttr(group));
}

void LeafValues::markRows(Operation* op, ArrayRef<MaybeRows> operands, MaybeRows results) {
  if (!groupAttr(op) && !isa<ConstantOp>(op)) return;
  SmallVector<int64_t> all{leaves};
  auto add = [&](Value v, MaybeRows rows) {
    if (rows)
      all.append({rows->dimension, typeOf(v).getDimSize(rows->dimension) / (rows->own * leaves)});
    else
      all.append({-1, 0});
  };
  for (auto [v, rows] : llvm::zip(op->getOperands(), operands)) add(v, rows);
  for (Value v : op->getResults()) add(v, results);
  op->setAttr(kLeafRowsAttr, builder.getDenseI64ArrayAttr(all));
}

Operation* LeafValues::cloneWith(Operation* op, ValueRange operands, TypeRange results) {
  OperationState state(op->getLoc(), op->getName(), operands, results, op->getAttrs());
  return builder.create(state);
}

Value LeafValues::inside(Operation* user, Value v, int64_t group) {
  Operation* op = v.getDefiningOp();
  if (!groupAttr(op) || groupAttr(op) != groupAttr(user) || isa<ConstantOp>(op)) return wholes.lookup(v);
  if (Value known = insides.lookup({v, group})) return known;
  SmallVector<Value> operands;
  for (Value operand : op->getOperands()) operands.push_back(inside(user, operand, group));
  Operation* own = cloneWith(op, operands, op->getResultTypes());
  setGroup(own, group);
  return insides[{v, group}] = own->getResult(0);
}

bool LeafValues::reducesInside(Operation* user, Value v) const {
  SmallVector<Value> open{v};
  DenseSet<Operation*> seen;
  while (!open.empty()) {
    Operation* op = open.pop_back_val().getDefiningOp();
    if (!groupAttr(op) || groupAttr(op) != groupAttr(user) || !seen.insert(op).second) continue;
    if (isa<ReduceOp>(op)) return true;
    llvm::append_range(open, op->getOperands());
  }
  return false;
}

//===--- Side by side ---===//

Value LeafValues::withRows(Operation* user, Value v, LeafRows rows) {
  const LeafState state = of(v);
  if (state.kind == LeafState::Apart) return {};
  if (state.kind == LeafState::Split && state.rows == rows) return wholes.lookup(v);
  const std::pair<std::pair<Value, Attribute>, Place> key{{v, groupAttr(user)}, {rows.dimension, rows.own}};
  if (Value known = placed.lookup(key)) return known;
  Value made = state.kind == LeafState::Split ? moveRows(user, v, rows) : replicate(user, v, rows);
  return placed[key] = made;
}

// The rows in another dimension. Where these differ by dimensions of size 1 alone, elements stay where they are.
Value LeafValues::moveRows(Operation* user, Value v, LeafRows rows) {
  const LeafRows from = rowsOf(v);
  const RankedTensorType type = typeOf(v);
  Attribute group = groupAttr(user);
  const bool inside = group && groupAttr(v.getDefiningOp()) == group;
  if (type.getDimSize(rows.dimension) % rows.own != 0) return {};
  if (runOf(type, from) == runOf(type, rows)) {
    const RankedTensorType wide = widened(type, rows);
    if (inside && typeOf(wholes.lookup(v)).getShape().back() != wide.getShape().back()) return {};
    auto reshape = ReshapeOp::create(builder, v.getLoc(), wide, wholes.lookup(v));
    if (inside) reshape->setAttr(kGroupAttr, group);
    markRows(reshape, {from}, rows);
    return reshape;
  }
  if (inside) return {};
  SmallVector<Value> pieces;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) pieces.push_back(part(v, leaf));
  return join(pieces, rows, v.getLoc());
}

Value LeafValues::replicate(Operation* user, Value v, LeafRows rows) {
  const RankedTensorType type = widened(typeOf(v), rows);
  Operation* op = v.getDefiningOp();
  Attribute group = groupAttr(user);
  const bool isInside = group && groupAttr(op) == group;
  if (auto constant = dyn_cast_or_null<ConstantOp>(op))
    if (auto splat = dyn_cast<SplatElementsAttr>(constant.getValue())) {
      auto wide = ConstantOp::create(builder, v.getLoc(), splat.resizeSplat(type));
      if (isInside) wide->setAttr(kGroupAttr, group);
      markRows(wide, {}, rows);
      return wide;
    }
  auto clone = [&](ValueRange operands, bool byRow) {
    Operation* wide = cloneWith(op, operands, {type});
    // Of another kernel's op this is one of the user's, or of one of its own.
    if (groupAttr(op)) {
      if (group)
        wide->setAttr(kGroupAttr, group);
      else
        setGroup(wide, newGroup());
    }
    const SmallVector<MaybeRows> where(operands.size(), byRow ? MaybeRows(rows) : std::nullopt);
    markRows(wide, where, rows);
    if (noteMade && !operands.empty()) noteMade(op, wide, where, rows);
    return wide->getResult(0);
  };
  auto own = [&](Value small) {
    return group ? inside(user, small, cast<IntegerAttr>(group).getInt()) : wholes.lookup(small);
  };
  // The reductions of a kernel have the rows of all leaves.
  if (auto broadcast = dyn_cast_or_null<BroadcastOp>(op);
      broadcast && typeOf(broadcast.getOperand()).getDimSize(rows.dimension) == 1 &&
      !reducesInside(user, broadcast.getOperand()))
    if (of(broadcast.getOperand()).kind == LeafState::Replicated) return clone(own(broadcast.getOperand()), false);
  if (auto iota = dyn_cast_or_null<IotaOp>(op); iota && int64_t(iota.getAxis()) != rows.dimension)
    return clone({}, false);
  // Within a kernel nothing can be copied: what makes the value is computed for all leaves.
  auto reduce = dyn_cast_or_null<ReduceOp>(op);
  const bool byRow = isElementOp(op) || isa_and_nonnull<BroadcastOp>(op) ||
                     (reduce && !llvm::is_contained(reduce.getAxes(), rows.dimension));
  if (isInside && byRow) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      if (typeOf(operand).getDimSize(rows.dimension) % rows.own == 0)
        if (Value wide = withRows(user, operand, rows)) operands.push_back(wide);
    if (operands.size() == op->getNumOperands()) return clone(operands, true);
  }
  if (reducesInside(user, v)) return {};
  if (group && typeOf(v).getDimSize(rows.dimension) == 1) {
    auto broadcast = BroadcastOp::create(builder, v.getLoc(), type, own(v));
    broadcast->setAttr(kGroupAttr, group);
    markRows(broadcast, {std::nullopt}, rows);
    return broadcast;
  }
  return join(SmallVector<Value>(leaves, wholes.lookup(v)), rows, v.getLoc());
}

Value LeafValues::slice(Value v, int64_t dimension, int64_t start, int64_t size) {
  SmallVector<int64_t> sizes(typeOf(v).getShape()), starts(sizes.size(), 0), steps(sizes.size(), 1);
  starts[dimension] = start, sizes[dimension] = size;
  return SliceOp::create(builder, v.getLoc(), v, starts, sizes, steps);
}

Value LeafValues::leafOf(Value wide, LeafRows rows, int64_t leaf) {
  TensorBuilder t{builder, wide.getLoc()};
  const ArrayRef<int64_t> shape = typeOf(wide).getShape();
  const int64_t own = rows.own, outer = shape[rows.dimension] / (own * leaves);
  if (outer == 1) return slice(wide, rows.dimension, leaf * own, own);
  SmallVector<int64_t> apart(shape.take_front(rows.dimension)), to(shape);
  apart.append({outer, leaves * own});
  llvm::append_range(apart, shape.drop_front(rows.dimension + 1));
  to[rows.dimension] = outer * own;
  return t.reshape(slice(t.reshape(wide, apart), rows.dimension + 1, leaf * own, own), to);
}

Value LeafValues::join(ArrayRef<Value> pieces, LeafRows rows, Location loc) {
  TensorBuilder t{builder, loc};
  const ArrayRef<int64_t> shape = typeOf(pieces.front()).getShape();
  const int64_t own = rows.own, outer = shape[rows.dimension] / own;
  if (outer == 1) return ConcatOp::create(builder, loc, pieces, rows.dimension);
  SmallVector<int64_t> apart(shape.take_front(rows.dimension)), to(shape);
  apart.append({outer, own});
  llvm::append_range(apart, shape.drop_front(rows.dimension + 1));
  to[rows.dimension] *= leaves;
  SmallVector<Value> parted;
  for (Value piece : pieces) parted.push_back(t.reshape(piece, apart));
  return t.reshape(ConcatOp::create(builder, loc, parted, rows.dimension + 1), to);
}

//===--- Leaf by leaf, and their sum ---===//

Value LeafValues::part(Value v, int64_t leaf) {
  const LeafState state = of(v);
  if (state.kind == LeafState::Replicated) return wholes.lookup(v);
  if (state.kind == LeafState::Split) return leafOf(wholes.lookup(v), state.rows, leaf);
  SmallVector<Value>& known = parts[v];
  // Column sums are taken apart where they are first needed, which is after their kernel.
  if (known.empty()) {
    TensorBuilder t{builder, v.getLoc()};
    Value sums = wholes.lookup(v);
    for (int64_t i = 0; i < leaves; ++i) known.push_back(t.reshape(slice(sums, 0, i, 1), typeOf(v).getShape()));
  }
  return known[size_t(leaf)];
}

// Subtrees of what one kernel adds are a group; a type narrower than f32 is rounded at every addition, which a kernel
// does only for what it stores.
Value LeafValues::sum(ArrayRef<Value> terms, size_t& grouped) {
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
  const int64_t group = newGroup();
  grouped = 1;
  if (wide && leftGrouped + rightGrouped <= kAddedAtOnce) {
    // Both sides' kernels become this one.
    grouped = leftGrouped + rightGrouped;
    regroup(lhs, leftGrouped, group), regroup(rhs, rightGrouped, group);
  }
  setGroup(add, group);
  return add;
}

void LeafValues::regroup(Value v, size_t terms, int64_t group) {
  if (terms <= 1) return;
  Attribute old = groupAttr(v.getDefiningOp());
  SmallVector<Value> open{v};
  while (!open.empty()) {
    Operation* op = open.pop_back_val().getDefiningOp();
    if (!op || groupAttr(op) != old) continue;
    setGroup(op, group);
    llvm::append_range(open, op->getOperands());
  }
}

Value LeafValues::sumOf(Value v) {
  if (Value known = sums.lookup(v)) return known;
  SmallVector<Value> terms;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) terms.push_back(part(v, leaf));
  size_t grouped = 0;
  return sums[v] = sum(terms, grouped);
}

}  // namespace sheaf::train
