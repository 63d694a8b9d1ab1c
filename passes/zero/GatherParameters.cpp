// Replaces reads of parameters by views into their bucket, gathered per visit at stage 3.
#include <cmath>
#include <limits>

#include "llvm/Support/Regex.h"
#include "passes/zero/Passes.h"
#include "runtime/base/Text.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_GATHERPARAMETERS
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

// Members of a fusion stand next to each other and nothing may come between them.
Operation* groupHead(Operation* op) {
  Attribute group = op->getAttr("train.group");
  while (group && op->getPrevNode() && op->getPrevNode()->getAttr("train.group") == group) op = op->getPrevNode();
  return op;
}
Operation* groupTail(Operation* op) {
  Attribute group = op->getAttr("train.group");
  while (group && op->getNextNode() && op->getNextNode()->getAttr("train.group") == group) op = op->getNextNode();
  return op;
}

// Gives every consumer of a reshaped parameter a reshape of its own, next to it: a reshape is a view and must not carry
// one visit's gathered bytes into another.
void sinkReshapes(Value value) {
  for (OpOperand& use : llvm::make_early_inc_range(value.getUses())) {
    auto reshape = dyn_cast<train::ReshapeOp>(use.getOwner());
    if (!reshape || reshape->hasAttr("train.group")) continue;
    for (OpOperand& inner : llvm::make_early_inc_range(reshape->getUses())) {
      OpBuilder builder(groupHead(inner.getOwner()));
      inner.set(builder.clone(*reshape)->getResult(0));
    }
    reshape.erase();
  }
}

// Other buckets that may be used between two uses of a visit.
constexpr int64_t kMaxDistance = 2;

struct Use {
  int64_t position;
  Operation* consumer;  // what computes with the parameter
  OpOperand* operand;   // the operand that names the read
  int64_t bucket;
};

struct GatherParameters : zero::impl::GatherParametersBase<GatherParameters> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    for (func::FuncOp function : zero::functionsOf(module))
      if (failed(gather(module, function))) return signalPassFailure();
  }

  LogicalResult gather(ModuleOp module, func::FuncOp step) {
    bool gather = zero::effectiveStage(module) == 3, training = step == zero::stepOf(module);
    // A secondary shard is what comes over the network, on its way to the other ranks of the node.
    const zero::Sharding sharding = zero::shardingOf(module);
    const bool twoHops = sharding.parts(3) > sharding.perNode && sharding.perNode > 1;

    SmallVector<zero::BucketOp> buckets(module.getOps<zero::BucketOp>());
    llvm::DenseMap<StringAttr, std::pair<int64_t, int64_t>> places;  // parameter -> bucket, offset
    for (auto [b, bucket] : llvm::enumerate(buckets))
      for (auto [name, offset] : llvm::zip(bucket.getParameters().getAsRange<FlatSymbolRefAttr>(), bucket.getOffsets()))
        places[name.getAttr()] = {b, offset};

    SmallVector<train::ReadOp> reads(step.getOps<train::ReadOp>());
    for (auto read : reads) sinkReshapes(read.getResult());

    llvm::DenseMap<Operation*, int64_t> positions;
    // All of the evaluation is a forward pass.
    int64_t lossPosition = training ? 0 : std::numeric_limits<int64_t>::max();
    for (auto [i, op] : llvm::enumerate(step.getBody().front())) {
      positions[&op] = i;
      if (training && isa<train::LossOp>(op)) lossPosition = i;
    }
    SmallVector<Use> uses;
    for (auto read : reads)
      for (OpOperand& use : read->getUses()) {
        Operation* consumer = use.getOwner();
        if (isa<train::ReshapeOp>(consumer) && !consumer->hasAttr("train.group") && consumer->hasOneUse())
          consumer = *consumer->user_begin();
        uses.push_back({positions[consumer], consumer, &use, places.lookup(read.getParameterAttr().getAttr()).first});
      }
    llvm::stable_sort(uses, [](const Use& a, const Use& b) { return a.position < b.position; });

    std::string complaint;
    llvm::Regex wanted(keep);
    if (!keep.empty() && !wanted.isValid(complaint)) return module.emitError("--keep " + keep + ": " + complaint);
    // Buckets are in the order of their first use. What is kept is kept for the backward pass.
    int64_t firstKept = std::llround(double(buckets.size()) * (1 - (training ? double(keepPart) : 0)));
    int64_t firstSecondary = std::llround(double(firstKept) * (1 - (training && twoHops ? double(secondaryPart) : 0)));
    bool matched = keep.empty() || !training;
    for (int64_t b = 0; b < int64_t(buckets.size()); ++b) {
      bool kept = b >= firstKept, secondary = twoHops && training && b >= firstSecondary && b < firstKept;
      zero::AllGatherOp before;  // of the same bucket
      for (auto name : buckets[b].getParameters().getAsRange<FlatSymbolRefAttr>())
        if (training && !keep.empty() && wanted.match(name.getValue())) kept = matched = true;
      auto type = RankedTensorType::get({int64_t(buckets[b].getElements())}, buckets[b].getElementType());
      SmallVector<Use*> visit;
      llvm::DenseSet<int64_t> between;
      auto finish = [&] {
        if (visit.empty()) return;
        // Of two consumers in one group the later one's reshape stands before the group.
        Operation* first = groupHead(viewPoint(*visit.front()));
        for (Use* use : ArrayRef(visit).drop_front())
          if (Operation* at = groupHead(viewPoint(*use)); positions[at] < positions[first]) first = at;
        OpBuilder builder(first);
        Location loc = visit.front()->consumer->getLoc();
        StringRef name = buckets[b].getSymName();
        Value storage;
        if (gather) {
          if (secondary && before && !before.getKept()) before.setKeep(true);
          before = zero::AllGatherOp::create(
              builder, loc, type, name,
              visit.front()->position <= lossPosition ? train::Phase::forward : train::Phase::backward,
              /*keep=*/false, /*kept=*/secondary && before);
          storage = before;
        } else {
          storage = zero::ParametersOp::create(builder, loc, type, name);
        }
        llvm::DenseMap<Value, Value> views;
        for (Use* use : visit) {
          Value read = use->operand->get();
          Value& view = views[read];
          auto parameter = cast<train::ReadOp>(read.getDefiningOp()).getParameterAttr().getAttr();
          if (!view)
            view =
                zero::ViewOp::create(builder, read.getLoc(), read.getType(), storage, places.lookup(parameter).second);
          use->operand->set(view);
        }
        if (gather) {
          builder.setInsertionPointAfter(groupTail(visit.back()->consumer));
          zero::ReleaseOp::create(builder, loc, storage);
        }
        visit.clear();
      };
      for (Use& use : uses) {
        if (use.bucket != b) {
          between.insert(use.bucket);
          continue;
        }
        if (gather && !kept && int64_t(between.size()) > kMaxDistance) finish();
        between.clear();
        visit.push_back(&use);
      }
      finish();
    }
    if (!matched) return matchesNothing(module, buckets);
    for (auto read : reads)
      if (read->use_empty()) read.erase();
    return success();
  }

  LogicalResult matchesNothing(ModuleOp module, ArrayRef<zero::BucketOp> buckets) {
    std::vector<std::string> names;
    for (zero::BucketOp bucket : buckets)
      for (auto name : bucket.getParameters().getAsRange<FlatSymbolRefAttr>()) names.push_back(name.getValue().str());
    const std::string near = sheaf::nearest(keep, names);
    return module.emitError("--keep " + keep + " matches no parameter: there are " + sheaf::listText(names) +
                            (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }

  // Where the view must exist: before the consumer, and before its reshape if there is one.
  static Operation* viewPoint(const Use& use) {
    Operation* owner = use.operand->getOwner();
    return owner->isBeforeInBlock(use.consumer) ? owner : use.consumer;
  }
};

}  // namespace
