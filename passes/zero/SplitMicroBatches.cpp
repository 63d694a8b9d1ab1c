// Cuts a step of several micro-batches into the functions that its turns run.
#include "ir/Train/Outputs.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "passes/zero/Passes.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_SPLITMICROBATCHES
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

constexpr StringRef kLoss = "loss";

void eraseDead(func::FuncOp function) {
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(function.getBody().front())))
    if (isOpTriviallyDead(&op)) op.erase();
}

struct SplitMicroBatches : zero::impl::SplitMicroBatchesBase<SplitMicroBatches> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    func::FuncOp step = zero::stepOf(module);
    const int64_t count = zero::moduleInteger(module, "train.micro_batches", 1);
    if (!step || count < 2) return;
    ranks = zero::ranksOf(module);
    levels = llvm::Log2_64(count);
    const bool powerOfTwo = llvm::isPowerOf2_64(ranks);
    if (reduce == "each" && !powerOfTwo) {
      module.emitError() << "--reduce each needs a power of two of ranks, not " << ranks
                         << ": their micro-batches would not add up in the order of one tree; give --reduce last";
      return signalPassFailure();
    }
    const bool automaticallyOnce = reduce == "auto" && (!powerOfTwo || zero::effectiveStage(module) < 2);
    once = ranks > 1 && (reduce == "last" || automaticallyOnce);
    Builder b(&getContext());
    module->setAttr("zero.dealing", b.getStringAttr(once ? "by_rank" : "by_micro_batch"));
    if (failed(splitCounts(step))) return signalPassFailure();
    for (int64_t level = 0; level < levels; ++level)
      accumulate(copyOf(step, zero::kAccumulatePrefix, level), level, /*last=*/false);
    accumulate(step, levels, /*last=*/true);
  }

 private:
  static func::FuncOp copyOf(func::FuncOp step, StringRef prefix, int64_t number) {
    func::FuncOp copy = step.clone();
    copy.setName((prefix + Twine(number)).str());
    step->getParentOfType<ModuleOp>().insert(step, copy);
    return copy;
  }

  // What a value is computed from; failure if that is more than inputs, constants and parameters that are not trained.
  LogicalResult collect(Value root, llvm::DenseSet<Operation*>& slice) {
    SmallVector<Value> pending{root};
    while (!pending.empty()) {
      Operation* op = pending.pop_back_val().getDefiningOp();
      if (!op || !slice.insert(op).second) continue;
      const bool reads = isa<zero::ParametersOp, zero::AllGatherOp>(op);
      const bool known = op->getDialect()->getNamespace() != "zero" || isa<zero::ViewOp>(op) || (reads && isFrozen(op));
      if (!known || isa<train::GlobalSumOp>(op)) return failure();
      llvm::append_range(pending, op->getOperands());
    }
    return success();
  }

  bool isFrozen(Operation* reads) {
    auto name = reads->getAttrOfType<FlatSymbolRefAttr>("bucket");
    auto bucket = getOperation().lookupSymbol<zero::BucketOp>(name.getValue());
    return bucket && !bucket.getOptimizer();
  }

  // Sums over the global batch that the step needs before its first micro-batch has one.
  LogicalResult splitCounts(func::FuncOp step) {
    SmallVector<train::GlobalSumOp> sums(step.getOps<train::GlobalSumOp>());
    if (sums.empty()) return success();
    llvm::DenseSet<Operation*> slice;
    for (train::GlobalSumOp sum : sums)
      if (failed(collect(sum.getOperand(), slice)))
        return sum.emitError(
            "needs a sum over the global batch of what the model computes, which a micro-batch cannot "
            "know: leave out --micro-batches; if it is a batch norm, --batch-norm local normalizes by "
            "each piece's own moments");
    for (int64_t level = 0; level <= levels; ++level) {
      func::FuncOp part = step.cloneWithoutRegions();
      part.setName((zero::kCountPrefix + Twine(level)).str());
      getOperation().insert(step, part);
      Block* block = part.addEntryBlock();
      IRMapping mapping;
      mapping.map(step.getArguments(), block->getArguments());
      OpBuilder builder = OpBuilder::atBlockEnd(block);
      for (Operation& op : step.getBody().front())
        if (slice.contains(&op)) builder.clone(op, mapping);
      for (auto [i, sum] : llvm::enumerate(sums)) {
        const std::string name = ("count " + Twine(i)).str();
        Value term = mapping.lookup(sum.getOperand());
        Location loc = sum.getLoc();
        auto global = [&] { term = train::GlobalSumOp::create(builder, loc, term.getType(), term); };
        if (!once) global();
        term = zero::AccumulateOp::create(builder, loc, "terms of " + name, level, level < levels, term);
        if (level < levels) continue;
        if (once) global();
        zero::AccumulateOp::create(builder, loc, name, int64_t{0}, /*keep=*/true, term);
      }
      for (auto gather : llvm::make_early_inc_range(block->getOps<zero::AllGatherOp>()))
        zero::ReleaseOp::create(builder, step.getLoc(), gather.getResult());
      func::ReturnOp::create(builder, step.getLoc());
      for (int64_t i = int64_t(part.getNumArguments()) - 1; i >= 0; --i)
        if (part.getArgument(i).use_empty()) (void)part.eraseArgument(i);
    }
    for (auto [i, sum] : llvm::enumerate(sums)) {
      OpBuilder builder(sum);
      Value known = zero::AccumulatedOp::create(builder, sum.getLoc(), sum.getType(), ("count " + Twine(i)).str());
      sum.replaceAllUsesWith(known);
      sum.erase();
    }
    eraseDead(step);
    return success();
  }

  void accumulate(func::FuncOp function, int64_t level, bool last) {
    SmallVector<Operation*> reductions, after;
    SmallVector<train::LossOp> losses;
    for (Operation& op : function.getBody().front()) {
      if (isa<zero::AllReduceOp, zero::ReduceScatterOp>(op)) reductions.push_back(&op);
      if (isa<zero::SquareSumOp, zero::GradientNormOp, zero::UpdateOp, zero::GatherUpdatedOp>(op)) after.push_back(&op);
      if (auto loss = dyn_cast<train::LossOp>(op)) losses.push_back(loss);
    }
    if (!last)
      for (Operation* op : llvm::reverse(after)) op->erase();
    for (Operation* reduction : reductions) {
      OpBuilder builder(reduction);
      Location loc = reduction->getLoc();
      StringRef bucket = reduction->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue();
      auto add = [&](Value value) -> Value {
        return zero::AccumulateOp::create(builder, loc, bucket, level, !last, value);
      };
      if (once) {
        auto symbol = getOperation().lookupSymbol<zero::BucketOp>(bucket);
        auto type = RankedTensorType::get({int64_t(symbol.getElements())},
                                          cast<RankedTensorType>(reduction->getResult(0).getType()).getElementType());
        Value sum = add(zero::GradientOp::create(builder, loc, type, bucket, reduction->getOperands()));
        if (last)
          reduction->setOperands(sum);
        else
          reduction->erase();
        continue;
      }
      builder.setInsertionPointAfter(reduction);
      Value sum = add(reduction->getResult(0));
      reduction->getResult(0).replaceAllUsesExcept(sum, sum.getDefiningOp());
    }
    for (train::LossOp loss : losses) {
      OpBuilder builder(loss);
      Value value = loss.getValue();
      const bool reduced = !once && ranks > 1;
      if (reduced) value = train::GlobalSumOp::create(builder, loss.getLoc(), value.getType(), value);
      value = zero::AccumulateOp::create(builder, loss.getLoc(), kLoss, level, !last, value);
      if (last && !reduced) {
        loss->setOperand(0, value);
        continue;
      }
      if (last) train::OutputOp::create(builder, loss.getLoc(), kLoss, kLoss, value);
      loss.erase();
    }
    eraseDead(function);
  }

  int64_t ranks = 1, levels = 0;
  bool once = false;  // gradients are reduced after the last micro-batch only
};

}  // namespace
