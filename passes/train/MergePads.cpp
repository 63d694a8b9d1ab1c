// A tree of adds whose leaves are zero-padded pieces that tile the result along one dimension is their concatenation.
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_MERGEPADS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf;

namespace {

struct Piece {
  train::PadOp pad;
  int64_t begin, end;
};

// The dimension that a pad pads, if it is one alone.
std::optional<int64_t> paddedAxis(train::PadOp pad) {
  auto from = cast<RankedTensorType>(pad.getOperand().getType()), to = cast<RankedTensorType>(pad.getType());
  int64_t axis = -1;
  for (int64_t d = 0; d < from.getRank(); ++d) {
    if (pad.getInterior()[d]) return std::nullopt;
    if (from.getDimSize(d) == to.getDimSize(d)) continue;
    if (axis >= 0) return std::nullopt;
    axis = d;
  }
  return axis >= 0 ? std::optional(axis) : std::nullopt;
}

int64_t sizeOf(Value value, int64_t axis) {
  return cast<RankedTensorType>(value.getType()).getDimSize(axis);
}

// Finds sums of pads whose pieces may tile the result: their sizes add up to it. Every add is visited once, since such
// trees of adds may be as deep as a graph has nodes.
class PadSums {
 public:
  explicit PadSums(ArrayRef<train::AddOp> adds) {
    for (train::AddOp add : adds) {  // operands first
      const std::optional<Tree> lhs = padSumOf(add.getLhs()), rhs = padSumOf(add.getRhs());
      if (lhs && rhs && lhs->axis == rhs->axis) trees[add] = {lhs->axis, lhs->size + rhs->size};
    }
  }

  // The pieces of a tree in their order, and the dimension that they tile; nothing if they do not.
  SmallVector<Piece> piecesThatTile(train::AddOp root, int64_t& axis) {
    auto tree = trees.find(root);
    if (tree == trees.end() || tree->second.size != sizeOf(root, tree->second.axis)) return {};
    axis = tree->second.axis;
    SmallVector<Piece> pieces;
    SmallVector<Value> pending{root.getRhs(), root.getLhs()};
    while (!pending.empty()) {
      const Value value = pending.pop_back_val();
      if (auto add = value.getDefiningOp<train::AddOp>()) {
        pending.append({add.getRhs(), add.getLhs()});
        continue;
      }
      auto pad = value.getDefiningOp<train::PadOp>();
      const int64_t begin = pad.getLow()[axis];
      pieces.push_back({pad, begin, begin + sizeOf(pad.getOperand(), axis)});
    }
    llvm::stable_sort(pieces, [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (const Piece& piece : pieces)
      if (piece.begin != std::exchange(end, piece.end)) return {};
    return pieces;
  }

 private:
  struct Tree {
    int64_t axis, size;
  };
  // Returns the sum that a value, used nowhere else, is the root of.
  std::optional<Tree> padSumOf(Value value) {
    if (!value.hasOneUse()) return std::nullopt;
    if (auto found = trees.find(value.getDefiningOp()); found != trees.end()) return found->second;
    auto pad = value.getDefiningOp<train::PadOp>();
    const std::optional<int64_t> axis = pad ? paddedAxis(pad) : std::nullopt;
    if (!axis) return std::nullopt;
    return Tree{*axis, sizeOf(pad.getOperand(), *axis)};
  }

  DenseMap<Operation*, Tree> trees;  // by its root
};

struct MergePads : train::impl::MergePadsBase<MergePads> {
  using Base::Base;

  void runOnOperation() override {
    SmallVector<train::AddOp> adds;
    getOperation().walk([&](train::AddOp add) { adds.push_back(add); });
    PadSums sums(adds);
    // Consumers first, so that the largest tree is taken whole.
    for (train::AddOp add : llvm::reverse(adds)) {
      if (add->use_empty()) {
        add.erase();
        continue;
      }
      int64_t axis = -1;
      const SmallVector<Piece> pieces = sums.piecesThatTile(add, axis);
      if (pieces.empty()) continue;
      SmallVector<Value> operands;
      for (Piece piece : pieces) operands.push_back(piece.pad.getOperand());
      OpBuilder builder(add);
      add.replaceAllUsesWith(train::ConcatOp::create(builder, add.getLoc(), add.getType(), operands, axis).getResult());
      add.erase();
      for (Piece piece : pieces)
        if (piece.pad->use_empty()) piece.pad.erase();
    }
  }
};

}  // namespace
