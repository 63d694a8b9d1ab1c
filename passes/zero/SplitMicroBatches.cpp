// Cuts a step of several micro-batches into the functions that its turns run.
#include "ir/Train/Outputs.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "passes/zero/Passes.h"
#include "runtime/plan/MicroBatches.h"

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
    groups = plan::MicroBatchGroups(count);
    const bool powerOfTwo = llvm::isPowerOf2_64(ranks);
    if (reduce == "each" && !powerOfTwo && groups.levels > 0) {
      module.emitError() << "--reduce each needs a power of two of ranks, not " << ranks
                         << ", or an odd number of micro-batches, not " << count
                         << ": these would not add up in the order of one tree; give --reduce last";
      return signalPassFailure();
    }
    const bool automaticallyOnce = reduce == "auto" && (!powerOfTwo || zero::effectiveStage(module) < 2);
    once = ranks > 1 && groups.levels > 0 && (reduce == "last" || automaticallyOnce);
    Builder b(&getContext());
    module->setAttr("zero.dealing", b.getStringAttr(once ? "by_rank" : "by_micro_batch"));
    if (failed(refuseGatheredRows(step)) || failed(splitCounts(step))) return signalPassFailure();
    for (int64_t number = 0; number + 1 < groups.parts(); ++number)
      accumulate(copyOf(step, zero::kAccumulatePrefix, number), partOf(number));
    accumulate(step, partOf(groups.parts() - 1));
  }

 private:
  // Describes the micro-batches of a part.
  struct Part {
    int64_t level;    // the levels that they add
    bool endsGroup;   // they are the last ones of their groups
    bool firstGroup;  // and these are the first one
    bool last;        // or the last one
  };
  Part partOf(int64_t number) const {
    const bool ends = number >= groups.levels;
    return {std::min(number, groups.levels), ends, ends && number == groups.levels, number + 1 == groups.parts()};
  }

  // Adds a micro-batch's value to a sum, which `overRanks` sums over the ranks when it is time: before or after the
  // micro-batches of a group are added. Returns the sum over all micro-batches in the last part.
  Value add(OpBuilder& builder, Location loc, StringRef name, const Part& part, Value value,
            llvm::function_ref<Value(Value)> overRanks) {
    const bool chained = groups.count > 1;
    if (!once) value = overRanks(value);
    // The first group's sum starts the chain: as the level above the group's, unless it is not reduced yet.
    const bool keep = !part.endsGroup || (chained && part.firstGroup && !once);
    if (part.level > 0 || keep) value = zero::AccumulateOp::create(builder, loc, name, part.level, keep, value);
    if (!part.endsGroup) return value;
    if (once) value = overRanks(value);
    if (!chained || (part.firstGroup && !once)) return value;
    return zero::AccumulateOp::create(builder, loc, value.getType(), name, groups.levels, /*start=*/part.firstGroup,
                                      /*chain=*/!part.firstGroup, /*keep=*/!part.last, value);
  }

  static func::FuncOp copyOf(func::FuncOp step, StringRef prefix, int64_t number) {
    func::FuncOp copy = step.clone();
    copy.setName((prefix + Twine(number)).str());
    step->getParentOfType<ModuleOp>().insert(step, copy);
    return copy;
  }

  static LogicalResult refuseGatheredRows(func::FuncOp step) {
    for (auto gather : step.getOps<train::GatherRowsOp>())
      return gather.emitError(
          "needs rows of the whole batch, which a micro-batch does not have: leave out --micro-batches");
    return success();
  }

  // Collects what a value is computed from, up to other sums over the batch; failure if that is more than inputs,
  // constants, such sums, and parameters that are not trained.
  LogicalResult collect(Value root, llvm::DenseSet<Operation*>& slice) {
    SmallVector<Value> pending{root};
    while (!pending.empty()) {
      Operation* op = pending.pop_back_val().getDefiningOp();
      if (!op || !slice.insert(op).second) continue;
      const bool reads = isa<zero::ParametersOp, zero::AllGatherOp>(op);
      const bool known = op->getDialect()->getNamespace() != "zero" || isa<zero::ViewOp>(op) || (reads && isFrozen(op));
      if (!known || isa<train::GatherRowsOp>(op)) return failure();
      if (!isa<train::GlobalSumOp>(op)) llvm::append_range(pending, op->getOperands());
    }
    return success();
  }

  bool isFrozen(Operation* reads) {
    auto name = reads->getAttrOfType<FlatSymbolRefAttr>("bucket");
    auto bucket = getOperation().lookupSymbol<zero::BucketOp>(name.getValue());
    return bucket && !bucket.getOptimizer();
  }

  // A pass over all micro-batches that computes sums over the global batch. Its slice is what they are computed from.
  struct CountPass {
    SmallVector<train::GlobalSumOp> sums;
    llvm::DenseSet<Operation*> slice;
  };

  // The pass that computes a sum, and the name under which it is kept.
  struct Count {
    size_t pass;
    std::string name;
  };

  // Computes the sums over the global batch that the step needs before its first micro-batch. A sum of what another sum
  // changes, such as a variance after its mean, needs a pass after that one's.
  LogicalResult splitCounts(func::FuncOp step) {
    llvm::DenseMap<Operation*, Count> counts;
    std::vector<CountPass> passes;
    for (auto sum : step.getOps<train::GlobalSumOp>()) {
      llvm::DenseSet<Operation*> slice;
      if (failed(collect(sum.getOperand(), slice)))
        return sum.emitError(
            "needs a sum over the global batch of what the model computes, which a micro-batch cannot "
            "know: leave out --micro-batches; if it is a batch norm, --batch-norm local normalizes by "
            "each piece's own moments");
      size_t pass = 0;
      for (Operation* op : slice)
        if (auto other = counts.find(op); other != counts.end()) pass = std::max(pass, other->second.pass + 1);
      std::string name = ("count " + Twine(counts.size())).str();
      counts[sum] = {pass, std::move(name)};
      if (pass == passes.size()) passes.emplace_back();
      passes[pass].sums.push_back(sum);
      passes[pass].slice.insert(slice.begin(), slice.end());
    }
    auto total = [&](OpBuilder& builder, Operation* sum) -> Value {
      return zero::AccumulatedOp::create(builder, sum->getLoc(), sum->getResult(0).getType(), counts[sum].name);
    };
    int64_t parts = 0;
    for (CountPass& pass : passes)
      for (int64_t number = 0; number < groups.parts(); ++number) {
        func::FuncOp part = step.cloneWithoutRegions();
        part.setName((zero::kCountPrefix + Twine(parts++)).str());
        getOperation().insert(step, part);
        Block* block = part.addEntryBlock();
        IRMapping mapping;
        mapping.map(step.getArguments(), block->getArguments());
        OpBuilder builder = OpBuilder::atBlockEnd(block);
        for (Operation& op : step.getBody().front()) {
          if (!pass.slice.contains(&op)) continue;
          if (isa<train::GlobalSumOp>(op))
            mapping.map(op.getResult(0), total(builder, &op));
          else
            builder.clone(op, mapping);
        }
        for (train::GlobalSumOp sum : pass.sums) {
          const std::string& name = counts[sum].name;
          Location loc = sum.getLoc();
          Value all = add(builder, loc, "terms of " + name, partOf(number), mapping.lookup(sum.getOperand()),
                          [&](Value term) { return train::GlobalSumOp::create(builder, loc, term.getType(), term); });
          if (partOf(number).last) zero::AccumulateOp::create(builder, loc, name, int64_t{0}, /*keep=*/true, all);
        }
        for (auto gather : llvm::make_early_inc_range(block->getOps<zero::AllGatherOp>()))
          zero::ReleaseOp::create(builder, step.getLoc(), gather.getResult());
        func::ReturnOp::create(builder, step.getLoc());
        for (int64_t i = int64_t(part.getNumArguments()) - 1; i >= 0; --i)
          if (part.getArgument(i).use_empty()) (void)part.eraseArgument(i);
      }
    for (auto& [sum, where] : counts) {
      OpBuilder builder(sum);
      sum->getResult(0).replaceAllUsesWith(total(builder, sum));
      sum->erase();
    }
    eraseDead(step);
    return success();
  }

  void accumulate(func::FuncOp function, const Part& part) {
    SmallVector<Operation*> reductions, after;
    SmallVector<train::LossOp> losses;
    for (Operation& op : function.getBody().front()) {
      if (isa<zero::AllReduceOp, zero::ReduceScatterOp>(op)) reductions.push_back(&op);
      if (isa<zero::SquareSumOp, zero::GradientNormOp, zero::UpdateOp, zero::GatherUpdatedOp>(op)) after.push_back(&op);
      if (auto loss = dyn_cast<train::LossOp>(op)) losses.push_back(loss);
    }
    if (!part.last)
      for (Operation* op : llvm::reverse(after)) op->erase();
    for (Operation* reduction : reductions) accumulateGradient(reduction, part);
    for (train::LossOp loss : losses) {
      OpBuilder builder(loss);
      // A loss that is reduced once is lowered as that of a step of one micro-batch.
      const bool reduced = ranks > 1 && (!once || groups.count > 1);
      Value value = add(builder, loss.getLoc(), kLoss, part, loss.getValue(), [&](Value term) -> Value {
        return reduced ? train::GlobalSumOp::create(builder, loss.getLoc(), term.getType(), term) : term;
      });
      if (part.last && !reduced) {
        loss->setOperand(0, value);
        continue;
      }
      if (part.last) train::OutputOp::create(builder, loss.getLoc(), kLoss, kLoss, value);
      loss.erase();
    }
    eraseDead(function);
  }

  void accumulateGradient(Operation* reduction, const Part& part) {
    OpBuilder builder(reduction);
    Location loc = reduction->getLoc();
    StringRef bucket = reduction->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue();
    Value result = reduction->getResult(0), value = result;
    SmallVector<OpOperand*> uses;
    for (OpOperand& use : result.getUses()) uses.push_back(&use);
    if (once) {
      auto symbol = getOperation().lookupSymbol<zero::BucketOp>(bucket);
      auto type = RankedTensorType::get({int64_t(symbol.getElements())},
                                        cast<RankedTensorType>(result.getType()).getElementType());
      value = zero::GradientOp::create(builder, loc, type, bucket, reduction->getOperands());
    }
    Value sum = add(builder, loc, bucket, part, value, [&](Value term) {
      if (once) reduction->setOperands(term);
      builder.setInsertionPointAfter(reduction);
      return result;
    });
    for (OpOperand* use : uses) use->set(sum);
    if (once && !part.endsGroup) reduction->erase();
  }

  int64_t ranks = 1;
  plan::MicroBatchGroups groups{1};
  bool once = false;  // gradients are reduced after the last micro-batch of a group only
};

}  // namespace
