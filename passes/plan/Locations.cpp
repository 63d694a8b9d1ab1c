#include "passes/plan/Locations.h"

#include "ir/Train/Outputs.h"
#include "ir/Train/RowPitches.h"

using namespace mlir;

namespace sheaf::plan_ir {

// Through the views that share a value's bytes.
void Locations::analyzeUses(Block& block, bool judgesLoss) {
  for (auto [i, op] : llvm::enumerate(block)) position_[&op] = i;
  // The loss is judged with the gradient norm.
  int64_t judged = -1;
  for (auto norm : block.getOps<zero::GradientNormOp>()) judged = position_[norm];
  auto note = [&](Value v) {
    int64_t last = -1;
    for (Operation* user : v.getUsers()) {
      last = std::max(last, position_[user]);
      if (isa<train::LossOp, train::OutputOp>(user) && judgesLoss) last = std::max(last, judged);
      if (isa<train::ReshapeOp, train::SliceOp, train::GlobalSumOp, train::GatherRowsOp, train::ConcatOp,
              zero::AccumulateOp>(user))
        last = std::max(last, lastUse_.lookup(user->getResult(0)));
    }
    lastUse_[v] = last;
  };
  for (Operation& op : llvm::reverse(block))
    for (Value v : op.getResults()) note(v);
}

Operand Locations::operand(Value value, int64_t access) const {
  Location at = of(value);
  int64_t bytes = bytesOf(value);
  if (at.rowStride) bytes = (bytes / at.rowBytes - 1) * at.rowStride + (at.padded ? at.rowStride : at.rowBytes);
  return {at.buffer, at.offset, bytes, at.shardStride, access, at.axis};
}

const Location& Locations::ofConcat(train::ConcatOp concat) {
  if (!contains(concat.getResult())) {
    const Location at = choose(concat.getResult());
    places_[concat.getResult()] = at;
  }
  return places_[concat.getResult()];
}

std::optional<Location> Locations::inBucket(Value value, Value reshaped) {
  for (OpOperand& use : reshaped.getUses()) {
    Operation* reduction = use.getOwner();
    if (!isa<zero::AllReduceOp, zero::ReduceScatterOp, zero::GradientOp>(reduction)) continue;
    BucketStorage& storage = buckets[reduction->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue()];
    // The reduction overwrites the slot at stages 0 and 1, so the value must not be read after it.
    if (lastUse_.lookup(value) > position_[reduction]) return std::nullopt;
    return Location{storage.gradient, storage.op.getOffsets()[use.getOperandNumber()] * widthOf(storage.gradientType)};
  }
  return std::nullopt;
}

std::optional<Location> Locations::inRows(Value reshaped, int64_t rowElements) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(reshaped.getType()).getShape();
  if (!rowElements || shape.empty() || shape.back() != rowElements || !reshaped.hasOneUse()) return std::nullopt;
  auto concat = dyn_cast<train::ConcatOp>(*reshaped.user_begin());
  if (!concat) return std::nullopt;
  auto type = cast<RankedTensorType>(concat.getResult().getType());
  if (concat.getAxis() != uint64_t(type.getRank() - 1)) return std::nullopt;
  Location at = ofConcat(concat);
  if (at.rowStride) return std::nullopt;
  const int64_t width = widthOf(type.getElementType());
  for (Value piece : concat.getOperands().take_front(reshaped.use_begin()->getOperandNumber()))
    at.offset += cast<RankedTensorType>(piece.getType()).getShape().back() * width;
  at.rowStride = type.getShape().back() * width;
  at.rowBytes = rowElements * width;
  return at;
}

// A piece of a concatenation along the first dimension lies in one piece there.
std::optional<Location> Locations::inPiece(Value value, Value reshaped) {
  auto concat = reshaped.hasOneUse() ? dyn_cast<train::ConcatOp>(*reshaped.user_begin()) : train::ConcatOp();
  if (!concat || concat.getAxis() != 0 || train::pitchOf(value)) return std::nullopt;
  int64_t before = 0;
  for (Value piece : concat.getOperands().take_front(reshaped.use_begin()->getOperandNumber()))
    before += bytesOf(piece);
  Location at = ofConcat(concat);
  if (at.rowStride || before % plan::kAlignment != 0) return std::nullopt;
  at.offset += before;
  return at;
}

Location Locations::choose(Value value, int64_t rowElements) {
  // The last of a chain of reshapes: its reader fixes the place.
  Value reshaped = value;
  while (reshaped.hasOneUse() && isa<train::ReshapeOp>(*reshaped.user_begin()))
    reshaped = reshaped.user_begin()->getResult(0);
  if (std::optional<Location> at = inBucket(value, reshaped)) return *at;
  if (std::optional<Location> at = inRows(reshaped, rowElements)) return *at;
  if (std::optional<Location> at = inPiece(value, reshaped)) return *at;
  Location at;
  int64_t bytes = bytesOf(value);
  if (int64_t pitch = train::pitchOf(value)) {
    auto type = cast<RankedTensorType>(value.getType());
    int64_t columns = type.getShape().back(), width = widthOf(type.getElementType());
    at.rowStride = pitch * width, at.rowBytes = columns * width, at.padded = true;
    bytes = bytes / at.rowBytes * at.rowStride;
  }
  const std::string label = labelOf(value.getLoc());
  at.buffer = builder_.buffer(label.empty() ? "value" : label, plan::ACTIVATIONS, bytes);
  owned_[at.buffer] = lastUse_.lookup(value);
  return at;
}

Location Locations::chooseInPlace(train::FusionOp fusion, Value result, const llvm::DenseSet<int64_t>& taken) {
  Location at = choose(result);
  // The buffer of a concatenation also holds its other pieces.
  const uint64_t bytes = at.rowStride ? bytesOf(result) / at.rowBytes * at.rowStride : bytesOf(result);
  if (owned_.contains(at.buffer) && at.offset == 0 && builder_.at(at.buffer).bytes() == bytes)
    for (int64_t i : fusion.getElementwise()) {
      Value candidate = fusion.getOperand(i);
      Location theirs = of(candidate);
      auto owner = owned_.find(theirs.buffer);
      if (candidate.getType() != result.getType() || owner == owned_.end() || theirs.rowStride != at.rowStride ||
          theirs.offset || taken.contains(theirs.buffer) || owner->second > position_[fusion] ||
          llvm::count_if(fusion.getOperands(), [&](Value v) { return of(v).buffer == theirs.buffer; }) > 1)
        continue;
      owned_.erase(at.buffer);  // nothing uses the fresh buffer, so the plan loses it
      at = theirs;
      break;
    }
  if (auto owner = owned_.find(at.buffer); owner != owned_.end())
    owner->second = std::max(owner->second, lastUse_.lookup(result));
  return at;
}

}  // namespace sheaf::plan_ir
