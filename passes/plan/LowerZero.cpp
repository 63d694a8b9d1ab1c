// Lowers the `zero` dialect: buckets' storage, gathers, gradients and norms.
#include "llvm/ADT/TypeSwitch.h"
#include "passes/plan/ZeroLowering.h"

using namespace mlir;

namespace sheaf::plan_ir {

void ZeroLowering::declareStorage() {
  SymbolTable symbols(from_.module);
  llvm::DenseMap<StringRef, Type> gradientTypes;
  for (func::FuncOp function : zero::functionsOf(from_.module))
    for (Operation& op : function.getBody().front())
      if (isa<zero::AllReduceOp, zero::ReduceScatterOp>(op))
        gradientTypes[op.getAttrOfType<FlatSymbolRefAttr>("bucket").getValue()] =
            cast<RankedTensorType>(op.getResult(0).getType()).getElementType();
  int64_t index = 0;
  for (auto bucket : from_.module.getOps<zero::BucketOp>()) {
    const StringRef name = bucket.getSymName();
    BucketStorage& storage = places_.buckets[name];
    storage.op = bucket;
    storage.index = index++;
    storage.elements = bucket.getElements();
    storage.width = widthOf(bucket.getElementType());
    storage.gradientType = bucket.getElementType();
    storage.parameters = builder_.buffer((name + ".parameters").str(), plan::PARAMETERS,
                                         storage.elements * storage.width / from_.sharding.parts(3), true);
    plan::Bucket& made = *builder_.plan().add_buckets();
    if (bucket.getOptimizer()) {
      auto optimizer = symbols.lookup<train::OptimizerOp>(*bucket.getOptimizer());
      storage.gradientType = gradientTypes.lookup(name);
      // The optimizer computes in f32: where parameters are narrower, it keeps them in f32 too.
      storage.master = !bucket.getElementType().isF32();
      SmallVector<StringRef> states;
      if (storage.master) states.push_back("master");
      for (auto state : optimizer.getStates().getAsRange<StringAttr>()) states.push_back(state.getValue());
      for (StringRef state : states) {
        storage.states.push_back(builder_.buffer((name + "." + state).str(), plan::OPTIMIZER,
                                                 storage.elements * 4 / from_.sharding.parts(1), true));
        plan::State& declared = *made.add_states();
        declared.set_name(state.str());
        declared.set_buffer(static_cast<uint32_t>(storage.states.back()));
      }
      storage.gradient =
          builder_.buffer((name + ".gradients").str(), from_.stage >= 2 ? plan::GATHERED : plan::GRADIENTS,
                          storage.elements * widthOf(storage.gradientType));
    }
    made.set_name(name.str());
    made.set_type(elementTypeOf(bucket.getElementType()));
    made.set_elements(storage.elements);
    made.set_parameter_buffer(static_cast<uint32_t>(storage.parameters));
    made.set_parameters_sharded(from_.stage == 3);
    made.set_states_sharded(from_.stage >= 1);
    made.set_trainable(bool(bucket.getOptimizer()));
    made.set_master(storage.master);
    if (storage.gradientType != bucket.getElementType()) made.set_gradient_type(elementTypeOf(storage.gradientType));
    made.set_group(static_cast<uint32_t>(groupOf(bucket).index));
  }
}

BucketStorage* ZeroLowering::storageOf(Operation* op) {
  auto symbol = op->getAttrOfType<FlatSymbolRefAttr>("bucket");
  return symbol ? &places_.buckets[symbol.getValue()] : nullptr;
}

CollectiveSite ZeroLowering::siteOf(Operation* op, plan::Collective::Phase phase, Type element) {
  const StringRef bucket = op->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue();
  return {bucket, bucket, elementTypeOf(element), phase};
}

// Padding between and after members takes part in reductions and norms: it must be zero.
void ZeroLowering::zeroPadding(BucketStorage& storage) {
  int64_t end = 0, width = widthOf(storage.gradientType);
  auto gap = [&](int64_t begin, int64_t until) {
    if (begin < until)
      builder_.call(labelOf(storage.op), plan::ZeroCall(),
                    {{storage.gradient, begin * width, (until - begin) * width, 0, kWrite}});
  };
  SymbolTable symbols(from_.module);
  for (auto [symbol, offset] :
       llvm::zip(storage.op.getParameters().getAsRange<FlatSymbolRefAttr>(), storage.op.getOffsets())) {
    gap(end, offset);
    auto type = symbols.lookup<train::ParameterOp>(symbol.getValue()).getType();
    end = offset + cast<RankedTensorType>(type).getNumElements();
  }
  gap(end, storage.elements);
}

// The gradients of a bucket's members that are not computed in their place are copied there.
void ZeroLowering::fillGradient(StringRef label, BucketStorage& storage, OperandRange gradients) {
  const int64_t width = widthOf(storage.gradientType);
  for (auto [i, gradient] : llvm::enumerate(gradients)) {
    int64_t offset = storage.op.getOffsets()[i] * width, bytes = bytesOf(gradient);
    Location at = places_.of(gradient);
    if (at.buffer == storage.gradient && at.offset == offset) continue;
    const int64_t elements = cast<RankedTensorType>(gradient.getType()).getNumElements();
    builder_.copy(label, places_.operand(gradient, kRead), {storage.gradient, offset, bytes, 0, kWrite},
                  {width, {elements}, {1}, {1}});
  }
  zeroPadding(storage);
}

bool ZeroLowering::skipsUpdates() {
  return llvm::any_of(from_.module.getOps<train::OptimizerOp>(), [](train::OptimizerOp rule) {
    return llvm::any_of(rule.getScalars().getAsRange<train::ScalarAttr>(),
                        [](train::ScalarAttr scalar) { return scalar.getKind() == train::ScalarKind::finite; });
  });
}

void ZeroLowering::placeNorms(func::FuncOp function) {
  for (auto norm : function.getOps<zero::GradientNormOp>()) {
    normPartials_ = int64_t(norm.getPartials().size());
    const int64_t count = normPartials_ * from_.leaves;
    const int64_t partials = builder_.buffer("norm_partials", plan::ACTIVATIONS, from_.ranks * count * 8);
    for (auto [i, partial] : llvm::enumerate(norm.getPartials()))
      places_[partial] = {partials, int64_t(i) * 8, from_.ranks > 1 ? count * 8 : 0};
  }
}

void ZeroLowering::lowerNorm(zero::GradientNormOp op) {
  const int64_t ranks = from_.ranks, count = int64_t(op.getPartials().size()) * from_.leaves;  // a rank's
  const int64_t partials = op.getPartials().empty() ? kNoBuffer : places_.of(op.getPartials().front()).buffer;
  if (ranks > 1)
    gather({"gradient norm", "", plan::F64, plan::Collective::UPDATE},
           partOf(partials, ranks * count * 8, 1, ranks, kRead), ranks, ranks * count * 8, partials);
  places_[op.getNorm()] = {builder_.buffer("gradient_norm", plan::ACTIVATIONS, 8)};
  places_[op.getScalars()] = {normScalars_};
  SmallVector<Operand> operands{{partials, 0, ranks * count * 8, 0, kRead},
                                places_.operand(op.getNorm(), kWrite),
                                {normScalars_, 0, 8, 0, kWrite}};
  auto training = from_.module->getAttrOfType<DictionaryAttr>("train.training");
  auto limitAttribute = training ? training.getAs<FloatAttr>("clip_norm") : FloatAttr();
  const double limit = limitAttribute ? limitAttribute.getValueAsDouble() : 0;
  // Rules multiply by the clip scale for the loss scale's sake, too.
  const bool clip = op.getClip() && (!lossScale_ || limit > 0);
  if (clip) operands.push_back({scalarBuffer_, scalarSlot({plan::StepScalar::MAX_NORM, limit}) * 4, 4, 0, kRead});
  if (lossScale_) operands.push_back(lossScale());
  if (judgedLoss_) operands.push_back(*judgedLoss_);
  builder_.call(labelOf(op),
                plan::GradientNormCall{.ranks = ranks * from_.leaves,
                                       .buckets = count / from_.leaves,
                                       .clip = clip,
                                       .scaled = lossScale_.has_value(),
                                       .judged = judgedLoss_.has_value()},
                operands);
  builder_.write("gradient norm", plan::GRADIENT_NORM, places_.operand(op.getNorm(), kRead));
  if (lossScale_) builder_.write("loss scale", plan::LOSS_SCALE, lossScale());
}

void ZeroLowering::lowerSquareSum(zero::SquareSumOp op) {
  const BucketStorage& storage = *storageOf(op);
  const Location at = places_.of(op.getGradient()), to = places_.of(op.getResult());
  // A rank that holds more of the gradient than its shard sums its shard alone, as at every other stage: the shards of
  // its leaves, each of which is summed from its own start.
  const int64_t width = widthOf(storage.gradientType), leafElements = storage.elements / from_.ranks / from_.leaves;
  const Operand shard = shardOf(at, storage.elements * width, from_.sharding.parts(1));
  const plan::SquareSumCall sum{.n = leafElements, .type = elementTypeOf(op.getGradient())};
  for (int64_t leaf = 0; leaf < from_.leaves; ++leaf)
    builder_.call(labelOf(op), sum,
                  {{shard.buffer, shard.offset + leaf * leafElements * width, leafElements * width, shard.stride, kRead,
                    shard.axis},
                   {to.buffer, to.offset + leaf * normPartials_ * 8, 8, to.shardStride, kWrite}});
}

void ZeroLowering::lowerBucketGather(zero::AllGatherOp op) {
  BucketStorage& storage = *storageOf(op);
  const zero::Sharding& sharding = from_.sharding;
  const StringRef name = op.getBucket();
  const int64_t whole = storage.elements * storage.width, piece = whole / sharding.perNode;
  const int64_t gathered = builder_.buffer((name + ".gathered").str(), plan::GATHERED, whole);
  places_[op.getResult()] = {gathered};
  if (op.getKeep()) storage.secondary = builder_.buffer((name + ".secondary").str(), plan::GATHERED, piece);
  Operand own{storage.parameters, 0, whole / sharding.parts(3), 0, kRead};
  if (op.getKept()) own = {storage.secondary, 0, piece, 0, kRead};
  const auto phase = op.getPhase() == train::Phase::forward ? plan::Collective::FORWARD : plan::Collective::BACKWARD;
  gather(siteOf(op, phase, storage.op.getElementType()), own, op.getKept() ? sharding.perNode : sharding.parts(3),
         whole, gathered, op.getKeep() ? storage.secondary : kNoBuffer);
}

void ZeroLowering::lowerGatherUpdated(zero::GatherUpdatedOp op) {
  const BucketStorage& storage = *storageOf(op);
  const int64_t whole = storage.elements * storage.width;
  const int64_t held = from_.sharding.parts(3), parts = from_.sharding.parts(1);
  const Operand own = partOf(storage.parameters, whole, held, parts, kRead);
  const CollectiveSite site = siteOf(op, plan::Collective::UPDATE, zero::BucketOp(storage.op).getElementType());
  if (held == 1)
    gather(site, own, parts, whole, storage.parameters);
  else
    hop(plan::NETWORK, plan::ALL_GATHER, site, own, {storage.parameters, 0, whole / held, 0, kWrite});
}

LogicalResult ZeroLowering::lower(Operation* op) {
  BucketStorage* storage = storageOf(op);
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](zero::ParametersOp p) { return places_[p.getResult()] = {storage->parameters}, success(); })
      .Case([&](zero::AllGatherOp g) { return lowerBucketGather(g), success(); })
      .Case([&](zero::ReleaseOp) { return success(); })
      .Case([&](zero::ViewOp v) {
        Location at = places_.of(v.getBucket());
        at.offset += int64_t(v.getOffset()) * widthOf(cast<RankedTensorType>(v.getType()).getElementType());
        places_[v.getResult()] = at;
        return success();
      })
      .Case<zero::AllReduceOp, zero::ReduceScatterOp>([&](auto) { return lowerReduction(op, *storage), success(); })
      .Case([&](zero::GradientOp g) {
        fillGradient(labelOf(op), *storage, g.getGradients());
        places_[g.getResult()] = {storage->gradient};
        return success();
      })
      .Case([&](zero::AccumulateOp a) { return lowerAccumulate(a), success(); })
      .Case([&](zero::AccumulatedOp a) {
        places_[a.getResult()] = {levelOf(a.getSum(), 0, plan::ACTIVATIONS, bytesOf(a.getResult()))};
        return success();
      })
      .Case([&](zero::SquareSumOp s) { return lowerSquareSum(s), success(); })
      .Case([&](zero::GradientNormOp n) { return lowerNorm(n), success(); })
      .Case([&](zero::UpdateOp u) { return lowerUpdate(u); })
      .Case([&](zero::GatherUpdatedOp g) { return lowerGatherUpdated(g), success(); })
      .Default([](Operation* other) { return other->emitError("cannot be lowered to a plan"); });
}

}  // namespace sheaf::plan_ir
