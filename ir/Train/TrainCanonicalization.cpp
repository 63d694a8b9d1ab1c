// Canonicalization of shape ops. Exporters write chains of reshapes, transposes and full slices; after these patterns a
// chain holds at most one op of a kind, and a transpose is left only where elements really move.
#include "ir/Train/TrainDialect.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace sheaf::train;

namespace {

// A shape op on a splat is a splat of another type.
template <typename Op>
struct FoldSplat : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op, PatternRewriter& rewriter) const override {
    auto constant = op->getOperand(0).template getDefiningOp<ConstantOp>();
    if (!constant) return failure();
    auto splat = dyn_cast<SplatElementsAttr>(constant.getValue());
    if (!splat) return failure();
    auto type = cast<RankedTensorType>(op.getType());
    rewriter.replaceOpWithNewOp<ConstantOp>(op, splat.resizeSplat(type));
    return success();
  }
};

struct ComposeBroadcasts : OpRewritePattern<BroadcastOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(BroadcastOp op, PatternRewriter& rewriter) const override {
    auto inner = op.getOperand().getDefiningOp<BroadcastOp>();
    if (!inner) return failure();
    rewriter.replaceOpWithNewOp<BroadcastOp>(op, op.getType(), inner.getOperand());
    return success();
  }
};

struct ComposeTransposes : OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(TransposeOp op, PatternRewriter& rewriter) const override {
    auto inner = op.getOperand().getDefiningOp<TransposeOp>();
    if (!inner) return failure();
    SmallVector<int64_t> permutation;
    for (int64_t p : op.getPermutation()) permutation.push_back(inner.getPermutation()[p]);
    rewriter.replaceOpWithNewOp<TransposeOp>(op, op.getType(), inner.getOperand(), permutation);
    return success();
  }
};

// Elements move only if dimensions larger than 1 change their order.
struct TransposeOfUnitsToReshape : OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(TransposeOp op, PatternRewriter& rewriter) const override {
    auto from = cast<RankedTensorType>(op.getOperand().getType());
    int64_t last = -1;
    for (int64_t p : op.getPermutation()) {
      if (from.getDimSize(p) == 1) continue;
      if (p < last) return failure();
      last = p;
    }
    rewriter.replaceOpWithNewOp<ReshapeOp>(op, op.getType(), op.getOperand());
    return success();
  }
};

struct FullSlice : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(SliceOp op, PatternRewriter& rewriter) const override {
    // Equal types leave room only for starts of 0 and steps of 1, or for reversals.
    if (op.getOperand().getType() != op.getType()) return failure();
    for (auto [start, size] : llvm::zip(op.getStarts(), op.getSizes()))
      if (start != 0 && size != 0) return failure();
    rewriter.replaceOp(op, op.getOperand());
    return success();
  }
};

struct ComposeSlices : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(SliceOp op, PatternRewriter& rewriter) const override {
    auto inner = op.getOperand().getDefiningOp<SliceOp>();
    if (!inner) return failure();
    SmallVector<int64_t> starts, steps;
    for (auto [d, start] : llvm::enumerate(op.getStarts())) {
      starts.push_back(inner.getStarts()[d] + start * inner.getSteps()[d]);
      steps.push_back(op.getSteps()[d] * inner.getSteps()[d]);
    }
    rewriter.replaceOpWithNewOp<SliceOp>(op, op.getType(), inner.getOperand(), starts, op.getSizes(), steps);
    return success();
  }
};

struct ConcatOfOne : OpRewritePattern<ConcatOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ConcatOp op, PatternRewriter& rewriter) const override {
    SmallVector<Value> operands;
    for (Value operand : op.getOperands())
      if (cast<RankedTensorType>(operand.getType()).getDimSize(op.getAxis()) != 0) operands.push_back(operand);
    if (operands.size() == 1) {
      rewriter.replaceOp(op, operands.front());
      return success();
    }
    if (operands.empty() || operands.size() == op.getOperands().size()) return failure();
    rewriter.replaceOpWithNewOp<ConcatOp>(op, op.getType(), operands, op.getAxis());
    return success();
  }
};

}  // namespace

void ReshapeOp::getCanonicalizationPatterns(RewritePatternSet& patterns, MLIRContext* context) {
  patterns.add<FoldSplat<ReshapeOp>>(context);
}

void BroadcastOp::getCanonicalizationPatterns(RewritePatternSet& patterns, MLIRContext* context) {
  patterns.add<FoldSplat<BroadcastOp>, ComposeBroadcasts>(context);
}

void TransposeOp::getCanonicalizationPatterns(RewritePatternSet& patterns, MLIRContext* context) {
  patterns.add<FoldSplat<TransposeOp>, ComposeTransposes, TransposeOfUnitsToReshape>(context);
}

void SliceOp::getCanonicalizationPatterns(RewritePatternSet& patterns, MLIRContext* context) {
  patterns.add<FoldSplat<SliceOp>, FullSlice, ComposeSlices>(context);
}

void ConcatOp::getCanonicalizationPatterns(RewritePatternSet& patterns, MLIRContext* context) {
  patterns.add<ConcatOfOne>(context);
}
