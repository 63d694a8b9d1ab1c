#include "passes/train/HeadLayout.h"

#include "ir/Train/Matchers.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace sheaf::train {

std::optional<HeadLayout> HeadLayout::of(Value value, ArrayRef<std::pair<HeadDim, int64_t>> order) {
  HeadLayout layout;
  layout.current = value;
  SmallVector<int> all;
  for (auto [dim, size] : order) {
    if (size == 1) continue;
    int id = layout.factors.size();
    layout.factors.push_back({dim, size});
    layout.dims[int(dim)].push_back(id);
    all.push_back(id);
  }
  layout.groups.push_back(all);
  if (!layout.regroup(typeOf(value).getShape())) return std::nullopt;
  return layout;
}

SmallVector<int> HeadLayout::sequence() const {
  SmallVector<int> ids;
  for (auto& group : groups) llvm::append_range(ids, group);
  return ids;
}

SmallVector<int> HeadLayout::ordered(ArrayRef<HeadDim> order) const {
  SmallVector<int> ids;
  for (HeadDim dim : order)
    for (int id : dims[int(dim)])
      if (!factors[id].repeated) ids.push_back(id);
  return ids;
}

// Distributes the factors over the dimensions of another shape of the same elements, splitting them where it does.
bool HeadLayout::regroup(ArrayRef<int64_t> shape) {
  SmallVector<int> ids = sequence();
  SmallVector<SmallVector<int>> regrouped;
  size_t next = 0;
  for (int64_t remaining : shape) {
    regrouped.emplace_back();
    while (remaining != 1) {
      if (next == ids.size() || remaining == 0) return false;
      int id = ids[next++];
      int64_t size = factors[id].size;
      regrouped.back().push_back(id);
      if (remaining % size == 0) {
        remaining /= size;
        continue;
      }
      if (size % remaining != 0) return false;
      int minor = factors.size();
      factors.push_back({factors[id].dim, size / remaining});
      factors[id].size = remaining;
      auto& parts = dims[int(factors[id].dim)];
      parts.insert(llvm::find(parts, id) + 1, minor);
      ids.insert(ids.begin() + next, minor);
      remaining = 1;
    }
  }
  groups = std::move(regrouped);
  return next == ids.size();
}

bool HeadLayout::dropRepeats(BroadcastOp op, Through through) {
  auto from = typeOf(op.getOperand()), to = typeOf(op);
  for (int64_t d = 0; d < to.getRank(); ++d) {
    if (from.getDimSize(d) == to.getDimSize(d)) continue;
    for (int id : groups[d]) factors[id].repeated = true;
    groups[d].clear();
  }
  for (int dim = 0; dim < numHeadDims; ++dim) {
    auto repeated = [&](int id) { return factors[id].repeated; };
    bool any = llvm::any_of(dims[dim], repeated), all = llvm::all_of(dims[dim], repeated);
    if (through == Through::anyRepeats && any && !all) return false;
    if (through == Through::repeatedHeads) {
      // Query head h reads key/value head h / (H / G): only the minor factors of the heads may be repeated.
      if (any && HeadDim(dim) != HeadDim::head) return false;
      if (!std::is_partitioned(dims[dim].rbegin(), dims[dim].rend(), repeated)) return false;
    }
  }
  return true;
}

void HeadLayout::trace(Through through, bool scales) {
  while (Operation* op = current.getDefiningOp()) {
    HeadLayout next = *this;
    if (auto reshape = dyn_cast<ReshapeOp>(op)) {
      if (!next.regroup(typeOf(reshape.getOperand()).getShape())) return;
      next.current = reshape.getOperand();
    } else if (auto transpose = dyn_cast<TransposeOp>(op)) {
      for (auto [to, from] : llvm::enumerate(transpose.getPermutation())) next.groups[from] = groups[to];
      next.current = transpose.getOperand();
    } else if (auto broadcast = dyn_cast<BroadcastOp>(op); broadcast && through != Through::nothing) {
      if (!next.dropRepeats(broadcast, through)) return;
      next.current = broadcast.getOperand();
    } else if (auto scaled = scales ? matchMulBySplat(current) : std::nullopt) {
      next.product *= scaled->splat;
      next.current = scaled->other;
    } else {
      return;
    }
    *this = std::move(next);
  }
}

int64_t HeadLayout::size(HeadDim dim) const {
  int64_t size = 1;
  for (int id : dims[int(dim)])
    if (!factors[id].repeated) size *= factors[id].size;
  return size;
}

std::optional<int64_t> HeadLayout::stride(HeadDim dim) const {
  SmallVector<int> wanted = ordered({dim}), ids = sequence();
  if (wanted.empty()) return 0;
  auto first = llvm::find(ids, wanted.front());
  if (size_t(ids.end() - first) < wanted.size() || !std::equal(wanted.begin(), wanted.end(), first))
    return std::nullopt;
  int64_t stride = 1;
  for (auto id = first + wanted.size(); id != ids.end(); ++id) stride *= factors[*id].size;
  return stride;
}

HeadLayout HeadLayout::withValue(Value other) const {
  HeadLayout layout = *this;
  layout.current = other;
  return layout;
}

std::optional<HeadLayout> HeadLayout::forward(Operation* user) const {
  HeadLayout next = *this;
  next.current = user->getResult(0);
  if (auto transpose = dyn_cast<TransposeOp>(user)) {
    for (auto [to, from] : llvm::enumerate(transpose.getPermutation())) next.groups[to] = groups[from];
    return next;
  }
  if (!isa<ReshapeOp>(user) || !next.regroup(typeOf(next.current).getShape())) return std::nullopt;
  return next;
}

bool HeadLayout::isOrdered(ArrayRef<HeadDim> order) const {
  return sequence() == ordered(order);
}

Value HeadLayout::materialize(TensorBuilder& b, ArrayRef<HeadDim> order) const {
  SmallVector<int64_t> shape;
  for (HeadDim dim : order) shape.push_back(size(dim));
  SmallVector<int> target = ordered(order);
  if (sequence() == target) return b.reshape(current, shape);

  // As a transpose of the value's own dimensions, those of size 1 first.
  SmallVector<int64_t> permutation;
  for (size_t d = 0; d < groups.size(); ++d)
    if (groups[d].empty()) permutation.push_back(d);
  size_t done = 0;
  while (done < target.size()) {
    auto group = llvm::find_if(groups, [&](auto& g) { return !g.empty() && g.front() == target[done]; });
    if (group == groups.end() || target.size() - done < group->size() ||
        !std::equal(group->begin(), group->end(), target.begin() + done))
      break;
    permutation.push_back(group - groups.begin());
    done += group->size();
  }
  if (done == target.size()) return b.reshape(transposeThrough(b, current, permutation), shape);

  // A dimension holds factors that come apart.
  SmallVector<int64_t> sizes;
  permutation.clear();
  SmallVector<int> ids = sequence();
  for (int id : ids) sizes.push_back(factors[id].size);
  for (int id : target) permutation.push_back(llvm::find(ids, id) - ids.begin());
  return b.reshape(b.make<TransposeOp>(b.reshape(current, sizes), permutation), shape);
}

//===--------------------------------------------------------------------------------------------------------------===//
// Transposing what an expression reads
//===--------------------------------------------------------------------------------------------------------------===//

namespace {

// More than any rotary embedding; keeps the search local.
constexpr size_t maxOps = 64;

bool movesOnlyUnits(RankedTensorType type, ArrayRef<int64_t> permutation) {
  int64_t last = -1;
  for (int64_t p : permutation) {
    if (type.getDimSize(p) == 1) continue;
    if (p < last) return false;
    last = p;
  }
  return true;
}

SmallVector<int64_t> permuted(ArrayRef<int64_t> values, ArrayRef<int64_t> permutation) {
  SmallVector<int64_t> result;
  for (int64_t p : permutation) result.push_back(values[p]);
  return result;
}

struct Transposer {
  Transposer(TensorBuilder& b, ArrayRef<int64_t> permutation) : b(b), permutation(permutation) {}

  TensorBuilder& b;
  ArrayRef<int64_t> permutation;
  llvm::SetVector<Operation*> interior;
  DenseMap<Value, Value> built;

  // Whether transposing `value` leaves only transposes that cancel; collects the ops to rebuild.
  bool isFree(Value value) {
    if (movesOnlyUnits(typeOf(value), permutation)) return true;
    Operation* op = value.getDefiningOp();
    if (!op) return false;
    if (auto constant = dyn_cast<ConstantOp>(op)) return isa<SplatElementsAttr>(constant.getValue());
    if (auto transpose = dyn_cast<TransposeOp>(op))
      return movesOnlyUnits(typeOf(transpose.getOperand()), permuted(transpose.getPermutation(), permutation));
    if (!isa<FusableElementwise, BroadcastOp, SliceOp, ConcatOp>(op)) return false;
    if (!interior.insert(op)) return true;
    return interior.size() <= maxOps && llvm::all_of(op->getOperands(), [&](Value v) { return isFree(v); });
  }

  // Rebuilding an op that is also used otherwise would compute it twice; repeating a value costs nothing.
  bool isPrivate(Operation* root) {
    return llvm::all_of(interior, [&](Operation* op) {
      return op == root || isa<BroadcastOp>(op) ||
             llvm::all_of(op->getUsers(), [&](Operation* user) { return interior.contains(user); });
    });
  }

  Value build(Value value) {
    Value& result = built[value];
    if (result) return result;
    auto type = typeOf(value);
    SmallVector<int64_t> shape = permuted(type.getShape(), permutation);
    Operation* op = value.getDefiningOp();
    Value made;
    if (movesOnlyUnits(type, permutation)) {
      made = b.reshape(value, shape);
    } else if (auto constant = dyn_cast<ConstantOp>(op)) {
      made = b.make<ConstantOp>(cast<SplatElementsAttr>(constant.getValue()).resizeSplat(type.clone(shape)));
    } else if (auto transpose = dyn_cast<TransposeOp>(op)) {
      made = b.reshape(transpose.getOperand(), shape);
    } else {
      SmallVector<Value> operands;
      for (Value operand : op->getOperands()) operands.push_back(build(operand));
      if (auto slice = dyn_cast<SliceOp>(op)) {
        made = b.make<SliceOp>(operands[0], permuted(slice.getStarts(), permutation), shape,
                               permuted(slice.getSteps(), permutation));
      } else if (auto concat = dyn_cast<ConcatOp>(op)) {
        made = b.make<ConcatOp>(operands, llvm::find(permutation, int64_t(concat.getAxis())) - permutation.begin());
      } else if (isa<BroadcastOp>(op)) {
        made = b.broadcast(operands[0], shape);
      } else {
        Operation* copy = b.builder.clone(*op);
        copy->setOperands(operands);
        made = copy->getResult(0);
        made.setType(type.clone(shape));
      }
    }
    return built[value] = made;
  }
};

}  // namespace

Value transposeThrough(TensorBuilder& b, Value value, ArrayRef<int64_t> permutation) {
  if (movesOnlyUnits(typeOf(value), permutation))
    return b.reshape(value, permuted(typeOf(value).getShape(), permutation));
  Transposer transposer(b, permutation);
  if (transposer.isFree(value) && transposer.isPrivate(value.getDefiningOp())) return transposer.build(value);
  return b.make<TransposeOp>(value, permutation);
}

}  // namespace sheaf::train
