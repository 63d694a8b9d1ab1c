// The partitioner's values in another state: whole values of parts and terms, and a leaf's part of a whole value.
#include "ir/Train/Constant.h"
#include "ir/Train/TensorBuilder.h"
#include "passes/train/Partitioner.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// So many ops in a row compute a leaf's part of a whole value; of a longer chain the result is computed whole.
constexpr int kMaxDepth = 64;

RankedTensorType typeOf(Value v) {
  return TensorBuilder::typeOf(v);
}

int64_t product(ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

}  // namespace

Value Partitioner::wholeOf(Value v, Operation* user) {
  if (stateOf(v).kind == State::Whole) return v;
  if (Value known = wholes.lookup(v)) return known;
  if (isPartial(v)) return sumOf(v);
  // Gather before the repetition.
  if (auto broadcast = v.getDefiningOp<BroadcastOp>(); broadcast && isSplit(broadcast.getOperand())) {
    Value whole = wholeOf(broadcast.getOperand(), user);
    insertAfter(v);
    return wholes[v] = claim(BroadcastOp::create(builder, v.getLoc(), typeOf(v).clone(globalShape(v)), whole), v);
  }
  dependent = true;
  gatheredValues.push_back({user->getLoc(), product(globalShape(v)) * typeOf(v).getElementTypeBitWidth() / 8});
  return gather(v, user);
}

Value Partitioner::sumOf(Value v) {
  // Sum before the repetition.
  if (auto broadcast = v.getDefiningOp<BroadcastOp>(); broadcast && isPartial(broadcast.getOperand())) {
    Value whole = wholeOf(broadcast.getOperand(), broadcast);
    builder.setInsertionPointAfterValue(v);
    return wholes[v] = claim(BroadcastOp::create(builder, v.getLoc(), v.getType(), whole), v);
  }
  builder.setInsertionPointAfterValue(v);
  TensorBuilder t{builder, v.getLoc()};
  // Integers are summed in f64, which holds them exactly up to 2^53.
  const Type element = typeOf(v).getElementType();
  Value term = isa<FloatType>(element) ? v : t.cast(v, builder.getF64Type());
  states[term] = stateOf(v);
  Value whole = GlobalSumOp::create(builder, v.getLoc(), term.getType(), term);
  return wholes[v] = reshard(t.cast(whole, element), v);
}

Partitioner::Blocks Partitioner::blocksOf(ArrayRef<int64_t> global, Place place) const {
  const int64_t run = runOf(place), outer = global[place.dimension] / (run * leaves);
  return {product(global.take_front(place.dimension)) * outer, run, product(global.drop_front(place.dimension + 1))};
}

Value Partitioner::gather(Value v, Operation* user) {
  const Place place = stateOf(v).place;
  const SmallVector<int64_t> global(globalShape(v));
  Value index = numberOfLeaf();
  insertAfter(v);
  TensorBuilder t{builder, user->getLoc()};
  const auto [before, run, after] = blocksOf(global, place);
  const int64_t all = run * leaves;
  auto gatherRows = [&](Value rows, ArrayRef<int64_t> shape) -> Value {
    return GatherRowsOp::create(builder, user->getLoc(), typeOf(v).clone(shape), rows, index);
  };
  Value whole;
  if (before == 1) {
    whole = place.dimension == 0 ? gatherRows(v, global)
                                 : t.reshape(gatherRows(t.reshape(v, {run, after}), {all, after}), global);
  } else {
    const int64_t swapped[] = {1, 0, 2};
    Value rows = t.make<TransposeOp>(t.reshape(v, {before, run, after}), swapped);
    whole = t.reshape(t.make<TransposeOp>(gatherRows(rows, {all, before, after}), swapped), global);
  }
  partsOfWhole[{whole, {place.dimension, place.run}}] = v;
  return wholes[v] = reshard(whole, v);
}

// Sets the insertion point after a value, and after the leaf's number, which stands at the beginning.
void Partitioner::insertAfter(Value v) {
  builder.setInsertionPointAfterValue(isa<BlockArgument>(v) && leafNumber ? leafNumber : v);
}

Value Partitioner::splitAt(Value v, Place place, Operation* user) {
  if (isSplit(v) && stateOf(v).place == place) return v;
  return partOf(wholeOf(v, user), place);
}

Value Partitioner::partOf(Value v, Place place, int depth) {
  const Placed key{v, {place.dimension, place.run}};
  if (Value known = partsOfWhole.lookup(key)) return known;
  Value made;
  if (auto constant = v.getDefiningOp<ConstantOp>()) made = partOfConstant(constant, place);
  if (auto iota = v.getDefiningOp<IotaOp>()) made = partOfIota(iota, place);
  if (auto result = dyn_cast<OpResult>(v); result && !made && depth < kMaxDepth)
    made = partOfResult(result, place, depth);
  const bool computed = made && !v.getDefiningOp<ConstantOp>() && !v.getDefiningOp<IotaOp>();
  if (!made) made = selectPart(v, place);
  made = computed ? claim(made, v) : reshard(made, v);
  if (made != v && !isSplit(made)) {
    shapes[made] = SmallVector<int64_t>(globalShape(v));
    states[made] = {State::Split, place};
    wholes[made] = v;
  }
  return partsOfWhole[key] = made;
}

Value Partitioner::partOfConstant(ConstantOp op, Place place) {
  const RankedTensorType type = leafType(typeOf(op.getResult()), place);
  builder.setInsertionPointAfter(op);
  if (auto splat = dyn_cast<SplatElementsAttr>(op.getValue()))
    return ConstantOp::create(builder, op.getLoc(), splat.resizeSplat(type));
  auto known = Constant::fromAttribute(op.getValue());
  if (!known || !known->repeats(place.dimension, runOf(place))) return {};
  return materialize(builder, op.getLoc(), known->first(place.dimension, type.getDimSize(place.dimension)));
}

Value Partitioner::partOfIota(IotaOp op, Place place) {
  const RankedTensorType global = typeOf(op.getResult()), type = leafType(global, place);
  const bool along = int64_t(op.getAxis()) == place.dimension;
  if (along && runOf(place) * leaves != global.getDimSize(place.dimension)) return {};
  Value index = along ? numberOfLeaf() : Value();
  builder.setInsertionPointAfter(op);
  TensorBuilder t{builder, op.getLoc()};
  Value local = IotaOp::create(builder, op.getLoc(), type, op.getAxis());
  if (!along) return local;
  Value first = t.cast(t.mul(index, double(runOf(place))), type.getElementType());
  return t.add(local, t.broadcast(t.reshape(first, SmallVector<int64_t>(type.getRank(), 1)), type.getShape()));
}

Value Partitioner::partOfResult(OpResult v, Place place, int depth) {
  Operation* op = v.getOwner();
  if (op->getNumOperands() == 0 || op->getNumRegions() || !isPure(op) ||
      isa<DropoutOp, RandomUniformOp, GatherRowsOp>(op))
    return {};
  if (llvm::any_of(op->getOperands(), [&](Value operand) { return stateOf(operand).kind != State::Whole; })) return {};
  SmallVector<Value> operands(op->getOperands());
  SmallVector<Type> types(op->getResultTypes());
  if (auto reshape = dyn_cast<ReshapeOp>(op)) {
    auto from = reshapedPlace(globalShape(v), globalShape(operands[0]), place, parts);
    if (!from) return {};
    operands[0] = partOf(operands[0], *from, depth + 1);
    types[0] = leafType(typeOf(v), place);
  } else {
    auto shapeOf = [&](Value value) { return globalShape(value); };
    const SmallVector<OpAxis> axes = axesOf(op, shapeOf);
    const OpAxis* axis = llvm::find_if(
        axes, [&](const OpAxis& a) { return !a.summed && a.results[v.getResultNumber()] == place.dimension; });
    if (axis == axes.end()) return {};
    SmallVector<std::optional<Place>> places;
    for (auto [operand, dimension] : llvm::zip(operands, axis->operands)) {
      places.push_back(dimension < 0 ? std::nullopt : placeAt(v, place, operand, dimension));
      if (dimension >= 0 && !places.back()) return {};
    }
    for (auto [result, type, dimension] : llvm::zip(op->getResults(), types, axis->results))
      if (dimension >= 0) {
        auto at = placeAt(v, place, result, dimension);
        if (!at) return {};
        type = leafType(typeOf(result), *at);
      }
    for (auto [operand, at] : llvm::zip(operands, places))
      if (at) operand = partOf(operand, *at, depth + 1);
  }
  builder.setInsertionPointAfter(op);
  OperationState state(op->getLoc(), op->getName(), operands, types, op->getAttrs());
  Operation* made = builder.create(state);
  if (auto slice = dyn_cast<SliceOp>(made)) slice.setSizes(typeOf(slice.getResult()).getShape());
  return made->getResult(v.getResultNumber());
}

Value Partitioner::selectPart(Value v, Place place) {
  const SmallVector<int64_t> global(globalShape(v));
  Value index = numberOfLeaf();
  insertAfter(v);
  TensorBuilder t{builder, v.getLoc()};
  const auto [before, run, after] = blocksOf(global, place);
  Value part = t.make<GatherOp>(t.reshape(v, {before, leaves, run * after}), index, int64_t{1});
  return t.reshape(part, leafType(typeOf(v), place).getShape());
}

Value Partitioner::numberOfLeaf() {
  if (leafNumber) return leafNumber;
  std::string name = "row_index";
  auto taken = [&] {
    for (unsigned i = 0; i < step.getNumArguments(); ++i)
      if (auto known = step.getArgAttrOfType<StringAttr>(i, "train.name"); known && known == name) return true;
    return false;
  };
  while (taken()) name += "_";
  const int64_t count = rows / leaves;
  auto attributes = builder.getDictionaryAttr({builder.getNamedAttr("train.name", builder.getStringAttr(name)),
                                               builder.getNamedAttr("train.row_index", builder.getUnitAttr())});
  (void)step.insertArgument(step.getNumArguments(), RankedTensorType::get({count}, builder.getI64Type()), attributes,
                            step.getLoc());
  Value index = step.getArgument(step.getNumArguments() - 1);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&step.getBody().front());
  TensorBuilder t{builder, step.getLoc()};
  const int64_t starts[] = {0, 0}, sizes[] = {1, 1}, steps[] = {1, 1};
  Value first = t.reshape(t.make<SliceOp>(t.reshape(index, {1, count}), starts, sizes, steps), {1});
  leafNumber = count == 1 ? first : t.div(first, t.splatLike(first, double(count)));
  return leafNumber;
}

void Partitioner::makeTerm(OpOperand& operand) {
  builder.setInsertionPoint(operand.getOwner());
  TensorBuilder t{builder, operand.getOwner()->getLoc()};
  Value whole = operand.get();
  operand.set(claim(t.mul(whole, 1.0 / double(leaves)), whole));
  setPartial(operand.get());
}

void Partitioner::makeWhole(OpOperand& operand) {
  operand.set(wholeOf(operand.get(), operand.getOwner()));
}

}  // namespace sheaf::train
