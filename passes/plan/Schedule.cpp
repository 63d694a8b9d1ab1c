// Orders the step's gathers, reductions and updates. Only ops of the `zero` dialect move; computation stays in place.
#include "passes/plan/Passes.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_SCHEDULE
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf;

namespace {

bool isReduction(Operation& op) {
  return isa<zero::AllReduceOp, zero::ReduceScatterOp>(op);
}

// What follows a bucket's reduction and may be put off.
bool isAftermath(Operation& op) {
  return isa<zero::SquareSumOp, zero::UpdateOp, zero::GatherUpdatedOp>(op);
}

struct Schedule : plan_ir::impl::ScheduleBase<Schedule> {
  using Base::Base;

  void runOnOperation() override {
    auto step = getOperation().lookupSymbol<func::FuncOp>("step");
    if (!step) return;
    Block& block = step.getBody().front();
    prefetch(block);
    deferUpdates(block);
  }

  // Each gather moves up to where the one before it stood; the first is carried over from the step before.
  static void prefetch(Block& block) {
    SmallVector<zero::AllGatherOp> gathers(block.getOps<zero::AllGatherOp>());
    for (size_t i = gathers.size(); i-- > 1;) gathers[i]->moveAfter(gathers[i - 1]);
    if (!gathers.empty()) gathers.front()->setAttr("carried", UnitAttr::get(block.front().getContext()));
  }

  // The updates of a bucket move behind the next bucket's reduction; the last ones stay.
  static void deferUpdates(Block& block) {
    SmallVector<Operation*> pending;
    for (Operation& op : llvm::make_early_inc_range(block)) {
      if (isa<zero::GradientNormOp>(op)) return;  // what follows waits for the norm anyway
      if (isAftermath(op)) {
        pending.push_back(&op);
      } else if (isReduction(op)) {
        Operation* at = &op;
        for (Operation* late : pending) {
          late->moveAfter(at);
          at = late;
        }
        pending.clear();
      }
    }
  }
};

}  // namespace
