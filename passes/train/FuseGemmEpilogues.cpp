// Gives matrix products the epilogues that their library functions have.
//
// Forward, a bias and a GELU after a product; backward, the gradient of that GELU, and the gradient of a bias, which
// sums what the gradient of its weight multiplies. What a fused kernel can compute at no extra cost (the sum of
// a gradient that it produces, say) stays there.
#include "ir/Train/Matchers.h"
#include "ir/Train/RowPitches.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_FUSEGEMMEPILOGUES
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Calls `visit` for every use of a value, also through reshapes that keep the columns.
void forUses(Value v, function_ref<void(OpOperand&)> visit) {
  for (OpOperand& use : v.getUses()) {
    auto reshape = dyn_cast<ReshapeOp>(use.getOwner());
    if (reshape && keepsRows(reshape))
      forUses(reshape.getResult(), visit);
    else
      visit(use);
  }
}

OpOperand* onlyUse(Value v) {
  OpOperand* only = nullptr;
  int64_t count = 0;
  forUses(v, [&](OpOperand& use) { only = &use, ++count; });
  return count == 1 ? only : nullptr;
}

class Epilogues {
 public:
  explicit Epilogues(Block& block) : block(block) {}

  // How many products have got a bias, a GELU or its gradient.
  int64_t results() {
    return llvm::count_if(products(), [&](MatMulOp product) { return forward(product) || geluGradient(product); });
  }

  // How many also sum an operand.
  int64_t sums() {
    return llvm::count_if(products(), [&](MatMulOp product) {
      return (!product.getTransposeB() && sum(product, product.getRhs(), MatMulEpilogue::sum_rhs)) ||
             (product.getTransposeA() && sum(product, product.getLhs(), MatMulEpilogue::sum_lhs));
    });
  }

 private:
  SmallVector<MatMulOp> products() {
    return llvm::to_vector(llvm::make_filter_range(
        block.getOps<MatMulOp>(), [](MatMulOp op) { return TensorBuilder::typeOf(op.getResult()).getRank() == 2; }));
  }

  MatMulEpilogueOp create(OpBuilder& builder, MatMulOp product, MatMulEpilogue epilogue, Value side) {
    return MatMulEpilogueOp::create(builder, product.getLoc(), epilogue, product.getLhs(), product.getRhs(), side,
                                    product.getTransposeA(), product.getTransposeB());
  }

  static void replace(Value old, Value fresh) {
    OpBuilder builder(old.getContext());
    builder.setInsertionPointAfterValue(fresh);
    TensorBuilder t{builder, old.getLoc()};
    old.replaceAllUsesWith(t.reshape(fresh, TensorBuilder::typeOf(old).getShape()));
    old.getDefiningOp()->erase();
  }

  // The ops that follow the product: bias and GELU, if there are any.
  bool forward(MatMulOp product) {
    Value before = product.getResult(), bias;
    AddOp add;
    if (OpOperand* use = onlyUse(before); use && (add = dyn_cast<AddOp>(use->getOwner()))) {
      bias = matchColumnVector(add->getOperand(1 - use->getOperandNumber()), columnsOf(before));
      // Only one of the operands may lead to the product.
      if (bias) before = add.getResult();
    }
    GeluOp gelu;
    forUses(before, [&](OpOperand& use) {
      if (auto op = dyn_cast<GeluOp>(use.getOwner()); op && op.getApproximate()) gelu = op;
    });
    if (!bias && !gelu) return false;
    Operation* at = before.getDefiningOp();
    OpBuilder builder(at);
    TensorBuilder t{builder, at->getLoc()};
    if (bias) bias = t.reshape(bias, {columnsOf(before)});
    auto fresh = create(builder, product,
                        gelu ? bias ? MatMulEpilogue::bias_gelu : MatMulEpilogue::gelu : MatMulEpilogue::bias, bias);
    if (gelu) replace(gelu.getResult(), fresh.getResult());
    replace(before, gelu ? fresh.getAlso() : fresh.getResult());
    return true;
  }

  bool geluGradient(MatMulOp product) {
    OpOperand* use = onlyUse(product.getResult());
    auto gradient = use ? dyn_cast<GeluGradOp>(use->getOwner()) : GeluGradOp();
    if (!gradient || !gradient.getApproximate() || use->get() != gradient.getGradient()) return false;
    OpBuilder builder(gradient);
    TensorBuilder t{builder, gradient.getLoc()};
    Value at = t.reshape(gradient.getOperand(), TensorBuilder::typeOf(product.getResult()).getShape());
    replace(gradient.getResult(), create(builder, product, MatMulEpilogue::gelu_grad, at).getResult());
    return true;
  }

  // The sum of the rows of an operand, if it is used and no kernel computes it at no extra cost.
  bool sum(MatMulOp product, Value operand, MatMulEpilogue epilogue) {
    Value matrix = withoutReshapes(operand);
    if (!isa_and_nonnull<MatMulOp, MatMulEpilogueOp, AttentionGradOp, ConcatOp, TransposeOp>(matrix.getDefiningOp()))
      return false;
    ReduceOp wanted;
    forUses(matrix, [&](OpOperand& use) {
      if (auto reduce = dyn_cast<ReduceOp>(use.getOwner()); reduce && reduce.getKind() == ReduceKind::sum &&
                                                            use.get().getType() == operand.getType() &&
                                                            reduce.getAxes() == ArrayRef<int64_t>{0})
        wanted = reduce;
    });
    if (!wanted) return false;
    Operation* first = product->isBeforeInBlock(wanted) ? product.getOperation() : wanted.getOperation();
    for (Value v : product->getOperands())
      if (Operation* op = v.getDefiningOp(); op && !op->isBeforeInBlock(first)) return false;
    OpBuilder builder(first);
    auto fresh = create(builder, product, epilogue, {});
    replace(product.getResult(), fresh.getResult());
    replace(wanted.getResult(), fresh.getAlso());
    return true;
  }

  Block& block;
};

struct FuseGemmEpilogues : sheaf::train::impl::FuseGemmEpiloguesBase<FuseGemmEpilogues> {
  using Base::Base;

  void runOnOperation() override {
    int64_t fused = 0;
    auto forBlocks = [&](int64_t (Epilogues::*fuse)()) {
      for (auto function : getOperation().getOps<func::FuncOp>())
        for (Block& block : function.getBody()) fused += (Epilogues(block).*fuse)();
      // Products and biases that have been replaced.
      visitBackwards(getOperation(), [](Operation*) {});
    };
    forBlocks(&Epilogues::results);
    // The gradient of a GELU is now part of a product, so no kernel can sum it at no extra cost.
    forBlocks(&Epilogues::sums);
    if (fused > 0) recordDecision(getOperation(), "matrix products with an epilogue: " + Twine(fused));
  }
};

}  // namespace
