// Puts rows that are gathered in hops into the order of the ranks.
#include "ir/Train/TensorBuilder.h"
#include "passes/StepModule.h"
#include "passes/zero/Passes.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_ORDERGATHEREDROWS
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

struct OrderGatheredRows : zero::impl::OrderGatheredRowsBase<OrderGatheredRows> {
  using Base::Base;

  void runOnOperation() override {
    const zero::Sharding sharding = zero::shardingOf(getOperation());
    if (sharding.perNode == 1 || sharding.nodes() == 1) return;
    for (func::FuncOp function : zero::functionsOf(getOperation()))
      for (auto gather : llvm::make_early_inc_range(function.getBody().front().getOps<train::GatherRowsOp>())) {
        OpBuilder builder(gather->getNextNode());
        train::TensorBuilder t{builder, gather.getLoc()};
        const auto type = cast<RankedTensorType>(gather.getType());
        const int64_t rest = type.getNumElements() / sharding.ranks, turned[] = {1, 0, 2};
        Value hops = t.reshape(gather.getResult(), {sharding.perNode, sharding.nodes(), rest});
        Value ordered = t.reshape(t.make<train::TransposeOp>(hops, turned), type.getShape());
        gather.getResult().replaceAllUsesExcept(ordered, hops.getDefiningOp());
      }
  }
};

}  // namespace
