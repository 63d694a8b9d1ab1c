// The verifier that ends the zero phase.
#include "passes/zero/Passes.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_VERIFYSTAGE
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

struct VerifyStage : zero::impl::VerifyStageBase<VerifyStage> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    const zero::Sharding sharding = zero::shardingOf(module);
    const int64_t ranks = sharding.ranks, stage = sharding.stage;
    llvm::DenseMap<StringAttr, int64_t> updates;
    bool bad = false;
    auto reject = [&](Operation* op, const Twine& message) {
      op->emitError() << "at ZeRO stage " << stage << (sharding.hasNodes ? " within nodes" : "") << ": " << message;
      bad = true;
    };
    llvm::DenseMap<Value, Operation*> released;
    auto check = [&](func::FuncOp function) {
      llvm::DenseSet<Attribute> kept;
      for (Operation& op : function.getBody().front()) {
        if (isa<train::ReadOp, train::UpdateOp>(op)) reject(&op, "parameters are reached through buckets only");
        if (isa<zero::ParametersOp>(op) && stage == 3) reject(&op, "a rank holds no replicated parameters");
        if (isa<zero::AllGatherOp>(op) && stage != 3) reject(&op, "parameters are replicated, a gather is not needed");
        if (isa<zero::AllReduceOp>(op) && stage != 0) reject(&op, "a rank reduces its shard of the gradient only");
        if (auto reduce = dyn_cast<zero::ReduceScatterOp>(op)) {
          auto bucket = module.lookupSymbol<zero::BucketOp>(reduce.getBucket());
          const int64_t elements = cast<RankedTensorType>(reduce.getResult().getType()).getNumElements();
          if (stage == 0 || reduce.getWhole() != (stage == 1) ||
              (bucket && elements * sharding.parts(1) != int64_t(bucket.getElements())))
            reject(&op, "the reduced gradient has the wrong storage");
        }
        if (isa<zero::GatherUpdatedOp>(op) && sharding.parts(3) == sharding.parts(1))
          reject(&op, "the updated part of the parameters is all that a rank holds");
        if (auto gather = dyn_cast<zero::AllGatherOp>(op)) {
          if (gather.getKept() && !kept.contains(gather.getBucketAttr()))
            reject(&op, "no gather before has kept the secondary shard");
          if ((gather.getKeep() || gather.getKept()) && sharding.parts(3) == sharding.perNode)
            reject(&op, "nothing is gathered over the network that could be kept");
          if (gather.getKeep()) kept.insert(gather.getBucketAttr());
        }
        if (auto release = dyn_cast<zero::ReleaseOp>(op)) released[release.getGathered()] = &op;
        if (auto update = dyn_cast<zero::UpdateOp>(op)) ++updates[update.getBucketAttr().getAttr()];
      }
      function.walk([&](zero::AllGatherOp gather) {
        Operation* release = released.lookup(gather.getResult());
        if (!release) return reject(gather, "the gathered bucket is never released");
        for (Operation* view : gather->getUsers())
          for (Operation* user : view->getUsers())
            if (release->isBeforeInBlock(user)) reject(user, "reads a gathered bucket after its release");
      });
    };
    for (func::FuncOp function : zero::functionsOf(module)) check(function);
    for (auto bucket : module.getOps<zero::BucketOp>()) {
      int64_t expected = bucket.getOptimizer() ? 1 : 0;
      if (updates.lookup(bucket.getSymNameAttr()) != expected)
        reject(bucket, "the bucket must be updated " + Twine(expected) + " times");
      if (bucket.getElements() % ranks) reject(bucket, "the ranks do not divide the bucket's elements");
    }
    if (bad) signalPassFailure();
  }
};

}  // namespace
