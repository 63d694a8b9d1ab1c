// Places the gradient norm, the updates and, at stages 1 and 2, the gathers that follow them.
#include "ir/Train/BatchNorm.h"
#include "passes/zero/Passes.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_PLACEUPDATES
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

bool reads(train::OptimizerOp optimizer, train::ScalarKind kind) {
  return llvm::any_of(optimizer.getScalars().getAsRange<train::ScalarAttr>(),
                      [&](train::ScalarAttr scalar) { return scalar.getKind() == kind; });
}

bool readsNorm(train::OptimizerOp optimizer) {
  return reads(optimizer, train::ScalarKind::clip_scale) || reads(optimizer, train::ScalarKind::finite);
}

struct PlaceUpdates : zero::impl::PlaceUpdatesBase<PlaceUpdates> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SymbolTable symbols(module);
    const zero::Sharding sharding = zero::shardingOf(module);

    if (!zero::stepOf(module)) return;
    SmallVector<Operation*> reductions;
    bool clip = false;
    for (Operation& op : zero::stepOf(module).getBody().front())
      if (isa<zero::AllReduceOp, zero::ReduceScatterOp>(op)) reductions.push_back(&op);
    if (reductions.empty()) return;
    for (Operation* reduction : reductions) {
      clip |= reads(ruleOf(symbols, reduction), train::ScalarKind::clip_scale);
    }

    OpBuilder builder(module.getContext());
    auto scalar = [&](Type element, int64_t n) { return RankedTensorType::get({n}, element); };
    SmallVector<Value> partials;
    auto update = [&](Operation* reduction, Value scalars) {
      StringRef bucket = bucketOf(symbols, reduction).getSymName();
      zero::UpdateOp::create(builder, reduction->getLoc(), bucket, reduction->getResult(0), scalars);
      if (sharding.parts(3) < sharding.parts(1)) zero::GatherUpdatedOp::create(builder, reduction->getLoc(), bucket);
    };
    for (Operation* reduction : reductions) {
      builder.setInsertionPointAfter(reduction);
      train::OptimizerOp rule = ruleOf(symbols, reduction);
      if (!train::isStatistic(rule))
        partials.push_back(zero::SquareSumOp::create(builder, reduction->getLoc(), scalar(builder.getF64Type(), 1),
                                                     bucketOf(symbols, reduction).getSymName(),
                                                     reduction->getResult(0)));
      if (!readsNorm(rule)) update(reduction, {});
    }
    Block& step = zero::stepOf(module).getBody().front();
    const bool scaled = !step.getOps<train::LossScaleOp>().empty();
    builder.setInsertionPoint(step.getTerminator());
    auto norm = zero::GradientNormOp::create(builder, reductions.back()->getLoc(), scalar(builder.getF64Type(), 1),
                                             scalar(builder.getF32Type(), 2), partials, clip, scaled);
    for (Operation* reduction : reductions)
      if (readsNorm(ruleOf(symbols, reduction))) update(reduction, norm.getScalars());
  }

  static train::OptimizerOp ruleOf(SymbolTable& symbols, Operation* reduction) {
    return symbols.lookup<train::OptimizerOp>(*bucketOf(symbols, reduction).getOptimizer());
  }
  static zero::BucketOp bucketOf(SymbolTable& symbols, Operation* reduction) {
    return symbols.lookup<zero::BucketOp>(reduction->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue());
  }
};

}  // namespace
