// Groups parameters into flat padded buckets, in order of first use. The layout is the same at every stage.
#include "ir/Train/BatchNorm.h"
#include "passes/zero/Passes.h"
#include "runtime/plan/Types.h"

namespace sheaf::zero {
#define GEN_PASS_DEF_FORMBUCKETS
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero

using namespace mlir;
using namespace sheaf;

namespace {

// Elements per shard are a multiple of this: as large a power of two as costs less than 0.25 % of padding, because the
// update kernels like long rows, but at least the alignment.
int64_t shardGranule(int64_t elements, int64_t ranks, int64_t minimum) {
  int64_t granule = minimum;
  while (granule < 1024 && granule * 2 * ranks * 400 <= elements) granule *= 2;
  return granule;
}

struct FormBuckets : zero::impl::FormBucketsBase<FormBuckets> {
  using Base::Base;

  struct Member {
    train::ParameterOp parameter;
    Type element;
    FlatSymbolRefAttr optimizer;  // null: not updated
    int64_t elements;
  };

  LogicalResult checkNodes(ModuleOp module) {
    const int64_t ranks = zero::ranksOf(module), each = ranksPerNode, within = stage, between = networkStage;
    if (each == 0)
      return between < 0 || between == within
                 ? success()
                 : LogicalResult(module.emitError("a stage between nodes needs nodes: give --ranks-per-node"));
    if (each < 0 || !llvm::isPowerOf2_64(each) || ranks % each)
      return module.emitError() << "nodes of " << each << " ranks do not divide " << ranks
                                << " ranks by a power of two";
    if (between > within)
      return module.emitError() << "the stage between nodes, " << between << ", is above that within them, " << within;
    if (between >= 0 && between != within && (each == 1 || each == ranks))
      return module.emitError() << "two stages need several nodes of several ranks, not " << ranks / each << " of "
                                << each;
    return success();
  }

  void runOnOperation() override {
    ModuleOp module = getOperation();
    const auto functions = zero::functionsOf(module);
    if (functions.empty() || stage < 0 || stage > 3) {
      module.emitError(functions.empty() ? Twine("module has no function @step or @evaluation")
                                         : "ZeRO stage must be 0 to 3, not " + Twine(stage));
      return signalPassFailure();
    }
    if (failed(checkNodes(module))) return signalPassFailure();
    SymbolTable symbols(module);
    llvm::DenseMap<StringAttr, FlatSymbolRefAttr> optimizers;
    for (func::FuncOp function : functions)
      for (auto update : function.getOps<train::UpdateOp>())
        optimizers[update.getParameterAttr().getAttr()] = update.getOptimizerAttr();

    // Order of first use: reads of the step, whose order is the forward pass's, then what only the evaluation reads.
    // Running statistics are only updated by the step.
    SmallVector<Member> members;
    llvm::DenseSet<Operation*> seen;
    int64_t total = 0;
    SmallVector<Operation*> uses;
    for (func::FuncOp function : functions)
      for (Operation& op : function.getBody().front())
        if (isa<train::ReadOp, train::UpdateOp>(op)) uses.push_back(&op);
    for (Operation* use : uses) {
      auto name = use->getAttrOfType<FlatSymbolRefAttr>("parameter");
      auto parameter = symbols.lookup<train::ParameterOp>(name.getValue());
      if (!parameter) {
        use->emitError("names an unknown parameter");
        return signalPassFailure();
      }
      if (!seen.insert(parameter).second) continue;
      if (optimizers.contains(parameter.getSymNameAttr()))
        if (cast<RankedTensorType>(parameter.getType()).getElementType().isF64()) {
          parameter.emitError() << "parameter '" << parameter.getSymName()
                                << "' is of f64, which is not trained: export the model in f32, or --freeze it";
          return signalPassFailure();
        }
      auto type = cast<RankedTensorType>(parameter.getType());
      members.push_back(
          {parameter, type.getElementType(), optimizers.lookup(parameter.getSymNameAttr()), type.getNumElements()});
      total += type.getNumElements() * type.getElementTypeBitWidth() / 8;
    }
    int64_t limit =
        bucketBytes ? int64_t(bucketBytes) : std::clamp<int64_t>(total / 16, leastBytes, zero::kMostBucketBytes);

    // A shard for each leaf: the layout, and with it the order of the norm's sum, does not depend on the number of
    // ranks.
    int64_t shards = zero::ranksOf(module) * zero::moduleInteger(module, "train.leaves", 1), count = 0;
    // Members of different kinds interleave (frozen and trained layers), so each kind has a bucket of its own open.
    llvm::MapVector<std::pair<Type, Attribute>, SmallVector<Member>> open;
    llvm::DenseMap<std::pair<Type, Attribute>, int64_t> bytes;
    OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
    builder.setInsertionPoint(functions.front());
    auto close = [&](ArrayRef<Member> bucket) {
      int64_t width = bucket.front().element.getIntOrFloatBitWidth() / 8,
              align = std::max<int64_t>(1, plan::kAlignment / width);
      SmallVector<int64_t> offsets;
      SmallVector<Attribute> names;
      int64_t end = 0;
      for (Member member : bucket) {
        offsets.push_back(end);
        names.push_back(FlatSymbolRefAttr::get(member.parameter.getSymNameAttr()));
        end = llvm::alignTo(end + member.elements, align);
      }
      int64_t elements = llvm::alignTo(end, shards * shardGranule(end, shards, align));
      StringRef kind = train::isStatistic(bucket.front().parameter) ? "statistics" : "bucket";
      zero::BucketOp::create(builder, module.getLoc(), (kind + Twine(count++)).str(), bucket.front().element,
                             builder.getArrayAttr(names), offsets, elements, bucket.front().optimizer);
    };
    for (const Member& member : members) {
      std::pair<Type, Attribute> kind{member.element, member.optimizer};
      open[kind].push_back(member);
      bytes[kind] += member.elements * member.element.getIntOrFloatBitWidth() / 8;
      if (bytes[kind] < limit) continue;
      close(open[kind]);
      open[kind].clear();
      bytes[kind] = 0;
    }
    for (auto& [kind, bucket] : open)
      if (!bucket.empty()) close(bucket);
    module->setAttr("zero.stage", builder.getI64IntegerAttr(stage));
    if (ranksPerNode > 0) {
      module->setAttr("zero.ranks_per_node", builder.getI64IntegerAttr(ranksPerNode));
      module->setAttr("zero.network_stage", builder.getI64IntegerAttr(networkStage < 0 ? stage : networkStage));
    }
    module->setAttr("zero.bucket_bytes", builder.getI64IntegerAttr(limit));
  }
};

}  // namespace
