// Makes the program of one leaf that of a rank with several.
//
// A leaf is a fixed piece of the batch's rows. Everything that decides bits (fusion, precision, the order of sums
// within a leaf) has been decided on the shapes of one leaf; here the program is widened to all leaves of a rank:
// - What has rows gets those of all leaves side by side. A kernel or a move treats each row by itself. A product's bits
//   may depend on its shape, so it is computed leaf by leaf.
// - What is a sum over rows has a value for each leaf. Where the sum of all rows is needed the leaves' values are added
//   by a balanced binary tree, as sums over ranks continue it (runtime/comm/local/Reduce.h).
// - What is neither (rows that are combined with sums over them, or rows that two operands have in different places) is
//   computed for each leaf by itself, and so is all that follows from it.
// Each of these computes for a leaf what a rank with that leaf alone would. So any division of the same leaves among
// ranks computes the same bits.
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/StepModule.h"
#include "passes/train/Passes.h"
#include "passes/train/Widener.h"

namespace sheaf::train {
#define GEN_PASS_DEF_WIDENLEAVES
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf;
using namespace sheaf::train;

namespace {

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
    OpCheck tries(&getContext(), leaves / pieces, fault);
    bool failed = false;
    for (auto function : module.getOps<func::FuncOp>()) {
      if (function.isExternal()) continue;
      failed |= mlir::failed(Widener(function, leaves / pieces, rows, check ? &tries : nullptr).run());
      if (failed) break;
    }
    tries.addTo(module, "leaves");
    if (failed) return signalPassFailure();
    if (microBatches > 1) return;
    module->setAttr("train.ranks", b.getI64IntegerAttr(pieces));
    module->setAttr("train.leaves", b.getI64IntegerAttr(leaves / pieces));
  }
};

}  // namespace
