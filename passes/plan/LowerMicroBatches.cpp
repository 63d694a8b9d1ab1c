// Lowers sums over micro-batches: a buffer for each level, and kernels that add them up.
#include "passes/plan/ZeroLowering.h"

using namespace mlir;

namespace sheaf::plan_ir {

// A kernel adds at most so many levels.
constexpr size_t kLevelsAtOnce = 8;

int64_t ZeroLowering::levelOf(StringRef sum, int64_t level, plan::BufferKind kind, int64_t bytes) {
  SmallVector<int64_t>& levels = sums_[sum];
  if (int64_t(levels.size()) <= level) levels.resize(level + 1, kNoBuffer);
  if (levels[level] == kNoBuffer) levels[level] = builder_.buffer((sum + ".sum" + Twine(level)).str(), kind, bytes);
  return levels[level];
}

// GATHERED or GRADIENTS for a bucket's gradient, ACTIVATIONS for a scalar.
plan::BufferKind ZeroLowering::kindOfSum(zero::AccumulateOp op) const {
  auto bucket = places_.buckets.find(op.getSum());
  if (bucket == places_.buckets.end()) return plan::ACTIVATIONS;
  const bool whole = cast<RankedTensorType>(op.getValue().getType()).getNumElements() == bucket->second.elements;
  return whole && from_.stage >= 2 ? plan::GATHERED : plan::GRADIENTS;
}

void ZeroLowering::placeGradients(func::FuncOp function) {
  for (auto& [name, storage] : places_.buckets) {
    if (!storage.op.getOptimizer()) continue;
    const int64_t bytes = storage.elements * widthOf(storage.gradientType);
    storage.gradient = kNoBuffer;
    for (auto sum : function.getOps<zero::AccumulateOp>())
      if (sum.getSum() == name && sum.storesValue() && bytesOf(sum.getValue()) == bytes)
        storage.gradient = levelOf(name, sum.getLevel(), kindOfSum(sum), bytes);
    if (storage.gradient == kNoBuffer)
      storage.gradient =
          builder_.buffer((name + ".gradients").str(), from_.stage >= 2 ? plan::GATHERED : plan::GRADIENTS, bytes);
  }
}

// A sum over ranks whose number has an odd factor has several subtrees, which are added to the chain one by one.
std::optional<Operand> ZeroLowering::chainOf(Value reduced) {
  auto sum = reduced.hasOneUse() ? dyn_cast<zero::AccumulateOp>(*reduced.user_begin()) : zero::AccumulateOp();
  if (!sum || !sum.getChain() || llvm::isPowerOf2_64(from_.ranks)) return std::nullopt;
  const int64_t bytes = bytesOf(reduced);
  return Operand{levelOf(sum.getSum(), sum.getLevel(), kindOfSum(sum), bytes), 0, bytes, 0, kReadWrite};
}

void ZeroLowering::lowerChain(zero::AccumulateOp op) {
  Location at = places_.of(op.getValue());
  if (!chainOf(op.getValue())) {
    const int64_t bytes = bytesOf(op.getValue());
    const Location chain{levelOf(op.getSum(), op.getLevel(), kindOfSum(op), bytes)};
    if (op.getKeep())
      at = chain;
    else if (!places_.buckets.contains(op.getSum()))  // others may read the value
      at = {builder_.buffer(op.getSum(), plan::ACTIVATIONS, bytes)};
    addUp(op, {{chain.buffer, 0, bytes, 0, kRead}, places_.operand(op.getValue(), kRead)},
          {at.buffer, at.offset, bytes, at.shardStride, kWrite, at.axis});
  }
  places_[op.getResult()] = at;
}

void ZeroLowering::lowerAccumulate(zero::AccumulateOp op) {
  if (op.getChain()) return lowerChain(op);
  const auto type = cast<RankedTensorType>(op.getValue().getType());
  const int64_t bytes = bytesOf(op.getValue()), level = op.getLevel();
  const Operand value = places_.operand(op.getValue(), kRead);
  Location at = places_.of(op.getValue());
  if (op.getKeep())
    at = {levelOf(op.getSum(), level, kindOfSum(op), bytes)};
  else if (!places_.buckets.contains(op.getSum()))  // others may read the value
    at = {builder_.buffer(op.getSum(), plan::ACTIVATIONS, bytes)};
  places_[op.getResult()] = at;
  const Operand destination{at.buffer, at.offset, bytes, at.shardStride, kWrite, at.axis};
  SmallVector<Operand> terms;
  for (int64_t i = op.getStart() ? 0 : level; i-- > 0;)
    terms.push_back({levelOf(op.getSum(), i, kindOfSum(op), bytes), 0, bytes, 0, kRead});
  terms.push_back(value);
  if (terms.size() > 1) return addUp(op, terms, destination);
  if (value.buffer == at.buffer && value.offset == at.offset && value.stride == at.shardStride && value.axis == at.axis)
    return;
  builder_.copy(labelOf(op), value, destination, {widthOf(type.getElementType()), {type.getNumElements()}, {1}, {1}});
}

void ZeroLowering::addUp(zero::AccumulateOp op, ArrayRef<Operand> terms, Operand destination) {
  const auto whole = cast<RankedTensorType>(op.getValue().getType());
  const int64_t elements = whole.getNumElements();
  // A type narrower than f32 is rounded at every addition, which a kernel does only for what it stores.
  const size_t most = whole.getElementType().getIntOrFloatBitWidth() < 32 ? 2 : kLevelsAtOnce;
  if (terms.size() > most) {
    addUp(op, terms.take_back(most), destination);
    SmallVector<Operand> rest(terms.drop_back(most));
    rest.push_back(destination);
    rest.back().access = kRead;
    return addUp(op, rest, destination);
  }
  const auto [rows, columns, block] = ArrayGrid(elements);
  const auto type = RankedTensorType::get({rows, columns}, whole.getElementType());
  // The fusion's operands are placeholders; only its region and the addresses matter.
  OpBuilder builder(op);
  const mlir::Location loc = op.getLoc();
  SmallVector<Value> placeholders;
  for (size_t i = 0; i < terms.size(); ++i)
    placeholders.push_back(train::ConstantOp::create(builder, loc, cast<ElementsAttr>(builder.getZeroAttr(type))));
  auto fusion = train::FusionOp::create(builder, loc, TypeRange{type}, placeholders, rows, columns, block,
                                        llvm::to_vector(llvm::seq<int64_t>(0, terms.size())),
                                        /*pitches=*/DenseI64ArrayAttr());
  Block* body = builder.createBlock(&fusion.getBody());
  for (size_t i = 0; i < terms.size(); ++i) body->addArgument(type, loc);
  Value sum = body->getArguments().back();
  for (size_t i = terms.size() - 1; i-- > 0;) sum = train::AddOp::create(builder, loc, body->getArgument(i), sum);
  train::YieldOp::create(builder, loc, sum);
  SmallVector<Operand> operands(terms);
  operands.push_back(destination);
  builder_.launch(fusion, (op.getSum() + " over micro-batches").str(), operands);
  fusion.erase();
  for (Value placeholder : placeholders) placeholder.getDefiningOp()->erase();
}

}  // namespace sheaf::plan_ir
