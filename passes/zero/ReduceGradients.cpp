// Reduces each bucket's gradient where the last of its members' gradients is complete.
#include "passes/zero/Passes.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_REDUCEGRADIENTS
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

struct ReduceGradients : zero::impl::ReduceGradientsBase<ReduceGradients> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    func::FuncOp step = zero::stepOf(module);
    if (!step) return;
    const zero::Sharding sharding = zero::shardingOf(module);
    const int64_t stage = sharding.stage;

    llvm::DenseMap<StringAttr, train::UpdateOp> updates;
    for (auto update : step.getOps<train::UpdateOp>())
      if (!updates.insert({update.getParameterAttr().getAttr(), update}).second) {
        update.emitError("the parameter is updated twice");
        return signalPassFailure();
      }
    for (auto bucket : module.getOps<zero::BucketOp>()) {
      if (!bucket.getOptimizer()) continue;
      SmallVector<Value> gradients;
      Operation* last = nullptr;
      for (auto name : bucket.getParameters().getAsRange<FlatSymbolRefAttr>()) {
        train::UpdateOp update = updates.lookup(name.getAttr());
        gradients.push_back(update.getGradient());
        if (!last || last->isBeforeInBlock(update)) last = update;
      }
      OpBuilder builder(last);
      Type element = cast<RankedTensorType>(gradients.front().getType()).getElementType();
      auto whole = RankedTensorType::get({int64_t(bucket.getElements())}, element);
      auto shard = RankedTensorType::get({int64_t(bucket.getElements()) / sharding.parts(1)}, element);
      if (stage == 0)
        zero::AllReduceOp::create(builder, last->getLoc(), whole, bucket.getSymName(), gradients);
      else
        zero::ReduceScatterOp::create(builder, last->getLoc(), shard, bucket.getSymName(), gradients, stage == 1);
    }
    for (auto& [name, update] : updates) update.erase();
  }
};

}  // namespace
