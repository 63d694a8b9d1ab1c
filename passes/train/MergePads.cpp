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

// The pieces under a tree of adds that are used nowhere else, or false.
bool collect(Value value, bool root, SmallVectorImpl<Piece>& pieces, int64_t& axis) {
  if (!root && !value.hasOneUse()) return false;
  if (auto add = value.getDefiningOp<train::AddOp>())
    return collect(add.getLhs(), false, pieces, axis) && collect(add.getRhs(), false, pieces, axis);
  auto pad = value.getDefiningOp<train::PadOp>();
  if (!pad) return false;
  auto from = cast<RankedTensorType>(pad.getOperand().getType()), to = cast<RankedTensorType>(pad.getType());
  for (int64_t d = 0; d < from.getRank(); ++d) {
    if (pad.getInterior()[d]) return false;
    if (from.getDimSize(d) == to.getDimSize(d)) continue;
    if (axis >= 0 && axis != d) return false;
    axis = d;
  }
  if (axis < 0) return false;
  pieces.push_back({pad, pad.getLow()[axis], pad.getLow()[axis] + from.getDimSize(axis)});
  return true;
}

struct MergePads : train::impl::MergePadsBase<MergePads> {
  using Base::Base;

  void runOnOperation() override {
    SmallVector<train::AddOp> adds;
    getOperation().walk([&](train::AddOp add) { adds.push_back(add); });
    // Consumers first, so that the largest tree is taken whole.
    for (train::AddOp add : llvm::reverse(adds)) {
      if (add->use_empty()) {
        add.erase();
        continue;
      }
      SmallVector<Piece> pieces;
      int64_t axis = -1;
      if (!collect(add.getResult(), true, pieces, axis)) continue;
      llvm::stable_sort(pieces, [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
      int64_t end = 0;
      bool tiles = true;
      SmallVector<Value> operands;
      for (Piece piece : pieces) {
        tiles &= piece.begin == end;
        end = piece.end;
        operands.push_back(piece.pad.getOperand());
      }
      if (!tiles || end != cast<RankedTensorType>(add.getType()).getDimSize(axis)) continue;
      OpBuilder builder(add);
      add.replaceAllUsesWith(train::ConcatOp::create(builder, add.getLoc(), add.getType(), operands, axis).getResult());
      add.erase();
      for (Piece piece : pieces)
        if (piece.pad->use_empty()) piece.pad.erase();
    }
  }
};

}  // namespace
