// Lowers the `zero` dialect: buckets' storage, collectives, norms and updates.
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/IRMapping.h"
#include "passes/plan/Lowering.h"
#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

// The kinds that the runtime computes have the same words in the plan.
std::optional<plan::StepScalar::Kind> kindOf(train::ScalarKind kind) {
  return plan::valueOf<plan::StepScalar::Kind>(train::stringifyScalarKind(kind));
}

plan::Collective::Phase phaseOf(train::Phase phase) {
  return phase == train::Phase::forward ? plan::Collective::FORWARD : plan::Collective::BACKWARD;
}

}  // namespace

// Padding between and after members takes part in reductions and norms: it must be zero.
void Lowering::zeroPadding(BucketStorage& storage) {
  int64_t end = 0, width = widthOf(storage.gradientType);
  auto gap = [&](int64_t begin, int64_t until) {
    if (begin < until)
      call(storage.op.getLoc(), plan::ZeroCall(),
           {{storage.gradient, begin * width, (until - begin) * width, 0, kWrite}});
  };
  SymbolTable symbols(module);
  for (auto [symbol, offset] :
       llvm::zip(storage.op.getParameters().getAsRange<FlatSymbolRefAttr>(), storage.op.getOffsets())) {
    gap(end, offset);
    auto type = symbols.lookup<train::ParameterOp>(symbol.getValue()).getType();
    end = offset + cast<RankedTensorType>(type).getNumElements();
  }
  gap(end, storage.elements);
}

// The gradients of a bucket's members that are not computed in their place are copied there.
void Lowering::fillGradient(mlir::Location loc, BucketStorage& storage, OperandRange gradients) {
  const int64_t width = widthOf(storage.gradientType);
  for (auto [i, gradient] : llvm::enumerate(gradients)) {
    int64_t offset = storage.op.getOffsets()[i] * width, bytes = bytesOf(gradient);
    Location at = locate(gradient);
    if (at.buffer == storage.gradient && at.offset == offset) continue;
    auto type = cast<RankedTensorType>(gradient.getType());
    copy(loc, operand(gradient, kRead), {storage.gradient, offset, bytes, 0, kWrite}, width, {type.getNumElements()},
         {1}, {1});
  }
  zeroPadding(storage);
}

void Lowering::collective(const BucketStorage& bucket, plan::CollectiveOp op, mlir::Location loc,
                          plan::Collective::Phase phase, const Operand& source, const Operand& destination) {
  const int64_t shard = bucket.elements / ranks;
  zero::BucketOp symbol = bucket.op;
  StringRef name = symbol.getSymName();
  const plan::ElementType type = elementTypeOf(op == plan::ALL_GATHER ? symbol.getElementType() : bucket.gradientType);
  auto append = [&]<typename OpTy>(int64_t communicator, int64_t count) {
    instruction<OpTy>(loc, kCommunicationStream, name, {source, destination}, communicator, type, count, name, phase);
  };
  if (op == plan::ALL_GATHER)
    append.operator()<AllGatherOp>(kGathers, shard);
  else if (op == plan::REDUCE_SCATTER)
    append.operator()<ReduceScatterOp>(kReductions, shard);
  else
    append.operator()<AllReduceOp>(kReductions, bucket.elements);
}

int64_t Lowering::scalarSlot(const StepScalar& scalar) {
  auto known = llvm::find(scalars, scalar);
  if (known != scalars.end()) return known - scalars.begin();
  scalars.push_back(scalar);
  return scalars.size() - 1;
}

Lowering::Group Lowering::groupOf(zero::BucketOp bucket) {
  auto groups = module->getAttrOfType<ArrayAttr>("train.groups");
  if (!groups || !bucket.getOptimizer()) return {};
  for (auto [i, group] : llvm::enumerate(groups.getAsRange<DictionaryAttr>()))
    if (group.getAs<FlatSymbolRefAttr>("optimizer") == bucket.getOptimizerAttr())
      return {static_cast<int64_t>(i), group.contains("learning_rate")};
  return {};
}

LogicalResult Lowering::lowerUpdate(zero::UpdateOp op) {
  BucketStorage& storage = buckets[op.getBucket()];
  SymbolTable symbols(module);
  auto optimizer = symbols.lookup<train::OptimizerOp>(*storage.op.getOptimizer());
  int64_t n = cast<RankedTensorType>(op.getGradient().getType()).getNumElements();
  bool sharded = n != storage.elements;

  // The update as a fusion over [rows, columns] of the elements; scalars are broadcast.
  int64_t columns = 32;
  while (columns < 1024 && n % (columns * 2) == 0) columns *= 2;
  int64_t rows = n / columns, block = std::max<int64_t>(1, std::min<int64_t>(rows, 16384 / columns));
  Type element = head.getF32Type();
  auto full = RankedTensorType::get({rows, columns}, element), one = RankedTensorType::get({1, 1}, element);
  auto narrow = full.clone(storage.op.getElementType()), gradient = full.clone(storage.gradientType);

  OpBuilder builder(op);
  // What the rule knows as the parameter is the master weight where there is one; the parameter is its rounding.
  int64_t stride = sharded && !storage.parametersSharded ? n * storage.width : 0;
  Operand parameter{storage.parameters, 0, n * storage.width, stride, kWrite};
  SmallVector<Operand> values;  // parameter or master weight, then states
  if (!storage.master) values.push_back(parameter);
  for (Value state : storage.states) values.push_back({state, 0, n * 4, 0, kWrite});
  int64_t arguments = 1 + values.size();
  SmallVector<Type> types(arguments, full);
  types[1] = gradient;
  SmallVector<Operand> operands(values);
  for (Operand& value : operands) value.access = kRead;
  operands.insert(operands.begin() + 1, operand(op.getGradient(), kRead));
  SmallVector<std::pair<unsigned, double>> constants;
  // Groups with the learning rate of the training share its scalars.
  const Group group = groupOf(storage.op);
  const int64_t rateGroup = group.ownRate ? group.index : 0;
  Block& rule = optimizer.getBody().front();
  SmallVector<unsigned> scalarArguments;
  for (auto [i, scalar] : llvm::enumerate(optimizer.getScalars().getAsRange<train::ScalarAttr>())) {
    const unsigned argument = arguments + i;
    const train::ScalarKind kind = scalar.getKind();
    const double value = scalar.getValue().getValueAsDouble();
    if (kind == train::ScalarKind::constant) {
      constants.push_back({argument, value});
      continue;
    }
    scalarArguments.push_back(argument);
    types.push_back(one);
    // The two that the gradient norm decides are computed on the device.
    if (kind == train::ScalarKind::clip_scale || kind == train::ScalarKind::finite) {
      operands.push_back({normScalars, kind == train::ScalarKind::finite ? 4 : 0, 4, 0, kRead});
      continue;
    }
    std::optional<plan::StepScalar::Kind> planned = kindOf(kind);
    if (!planned)
      return optimizer.emitError() << "the plan format has no step scalar '" << train::stringifyScalarKind(kind) << "'";
    const StepScalar known{*planned, value, rateGroup};
    std::optional<Operand> ofUpdates = updateScalar(known);
    operands.push_back(ofUpdates ? *ofUpdates : Operand{scalarBuffer, scalarSlot(known) * 4, 4, 0, kRead});
  }

  // The fusion's operands are placeholders; only its region and the addresses matter.
  SmallVector<Value> placeholders;
  for (Type type : types)
    placeholders.push_back(
        train::ConstantOp::create(builder, op.getLoc(), DenseElementsAttr::get(cast<ShapedType>(type), 0.0f)));
  SmallVector<Type> results(values.size(), full);
  if (storage.master) results.push_back(narrow);
  SmallVector<int64_t> elementwise = llvm::to_vector(llvm::seq<int64_t>(0, arguments));
  auto fusion = train::FusionOp::create(builder, op.getLoc(), results, placeholders, rows, columns, block, elementwise,
                                        /*pitches=*/DenseI64ArrayAttr());
  Block* block0 = builder.createBlock(&fusion.getBody());
  SmallVector<mlir::Location> locs(types.size(), op.getLoc());
  block0->addArguments(types, locs);
  IRMapping mapping;
  for (int64_t i = 0; i < arguments; ++i) mapping.map(rule.getArgument(i), block0->getArgument(i));
  if (gradient != full)
    mapping.map(rule.getArgument(1),
                train::CastOp::create(builder, op.getLoc(), full, block0->getArgument(1)).getResult());
  for (auto [i, argument] : llvm::enumerate(scalarArguments))
    mapping.map(rule.getArgument(argument),
                train::BroadcastOp::create(builder, op.getLoc(), full, block0->getArgument(arguments + i)).getResult());
  for (auto [argument, value] : constants)
    mapping.map(
        rule.getArgument(argument),
        train::ConstantOp::create(builder, op.getLoc(), DenseElementsAttr::get(full, float(value))).getResult());
  for (Operation& inner : rule) {
    if (auto constant = dyn_cast<train::ConstantOp>(inner)) {
      auto splat = cast<DenseElementsAttr>(constant.getValue());
      auto type = RankedTensorType::get({rows, columns}, splat.getElementType());
      mapping.map(constant.getResult(),
                  train::ConstantOp::create(builder, op.getLoc(),
                                            DenseElementsAttr::get(type, splat.getSplatValue<Attribute>()))
                      .getResult());
      continue;
    }
    Value rounded;
    if (isa<train::YieldOp>(inner) && storage.master)
      rounded = train::CastOp::create(builder, op.getLoc(), narrow, mapping.lookup(inner.getOperand(0)));
    Operation* clone = builder.clone(inner, mapping);
    if (rounded) clone->insertOperands(clone->getNumOperands(), rounded);
    for (Value result : clone->getResults())
      result.setType(RankedTensorType::get({rows, columns}, cast<RankedTensorType>(result.getType()).getElementType()));
  }
  operands.append(values);
  if (storage.master) operands.push_back(parameter);
  launch(fusion, operands, ("update " + op.getBucket()).str(), storage.index + 1);
  fusion.erase();
  for (Value placeholder : placeholders) placeholder.getDefiningOp()->erase();
  return success();
}

void Lowering::lowerNorm(zero::GradientNormOp op) {
  const int64_t count = int64_t(op.getPartials().size()) * leaves;  // a rank's
  Value partials = op.getPartials().empty() ? Value() : locate(op.getPartials().front()).buffer;
  if (ranks > 1)
    instruction<AllGatherOp>(op.getLoc(), kCommunicationStream, "gradient norm",
                             {{partials, 0, count * 8, count * 8, kRead}, {partials, 0, ranks * count * 8, 0, kWrite}},
                             kGathers, plan::F64, count, "", plan::Collective::UPDATE);
  locations[op.getNorm()] = {buffer("gradient_norm", plan::ACTIVATIONS, 8)};
  locations[op.getScalars()] = {normScalars};
  SmallVector<Operand> operands{
      {partials, 0, ranks * count * 8, 0, kRead}, operand(op.getNorm(), kWrite), {normScalars, 0, 8, 0, kWrite}};
  auto training = module->getAttrOfType<DictionaryAttr>("train.training");
  auto limitAttribute = training ? training.getAs<FloatAttr>("clip_norm") : FloatAttr();
  const double limit = limitAttribute ? limitAttribute.getValueAsDouble() : 0;
  // Rules multiply by the clip scale for the loss scale's sake, too.
  const bool clip = op.getClip() && (!lossScale || limit > 0);
  if (clip) {
    int64_t slot = scalarSlot({plan::StepScalar::MAX_NORM, limit});
    operands.push_back({scalarBuffer, slot * 4, 4, 0, kRead});
  }
  if (lossScale) operands.push_back(updateScalar(plan::UpdateScalarCall()));
  call(op.getLoc(),
       plan::GradientNormCall{
           .ranks = ranks * leaves, .buckets = count / leaves, .clip = clip, .scaled = lossScale.has_value()},
       operands);
  instruction<WriteOutputOp>(op.getLoc(), kComputeStream, "gradient norm", {operand(op.getNorm(), kRead)},
                             plan::GRADIENT_NORM, int64_t(0));
  if (lossScale)
    instruction<WriteOutputOp>(op.getLoc(), kComputeStream, "loss scale", {updateScalar(plan::UpdateScalarCall())},
                               plan::LOSS_SCALE, int64_t(0));
}

LogicalResult Lowering::lowerZero(Operation* op) {
  BucketStorage* storage = nullptr;
  if (auto symbol = op->getAttrOfType<FlatSymbolRefAttr>("bucket")) storage = &buckets[symbol.getValue()];
  int64_t whole = storage ? storage->elements * storage->width : 0, shard = whole / ranks;
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](zero::ParametersOp p) {
        locations[p.getResult()] = {storage->parameters};
        return success();
      })
      .Case([&](zero::AllGatherOp g) {
        Value gathered = buffer((g.getBucket() + ".gathered").str(), plan::GATHERED, whole);
        locations[g.getResult()] = {gathered};
        collective(*storage, plan::ALL_GATHER, op->getLoc(), phaseOf(g.getPhase()),
                   {storage->parameters, 0, shard, 0, kRead}, {gathered, 0, whole, 0, kWrite});
        return success();
      })
      .Case([&](zero::ReleaseOp) { return success(); })
      .Case([&](zero::ViewOp v) {
        Location at = locate(v.getBucket());
        at.offset += int64_t(v.getOffset()) * widthOf(cast<RankedTensorType>(v.getType()).getElementType());
        locations[v.getResult()] = at;
        return success();
      })
      .Case<zero::AllReduceOp, zero::ReduceScatterOp>([&](auto reduce) {
        int64_t width = widthOf(storage->gradientType), wholeGradient = storage->elements * width;
        // A sum over micro-batches is whole already.
        if (!reduce.getGradients().front().template getDefiningOp<zero::AccumulateOp>())
          fillGradient(op->getLoc(), *storage, reduce.getGradients());
        Operand source{storage->gradient, 0, wholeGradient, 0, kRead};
        if (ranks == 1 || stage == 0) {
          locations[reduce.getResult()] = {storage->gradient};
          if (ranks > 1)
            collective(*storage, plan::ALL_REDUCE, op->getLoc(), plan::Collective::BACKWARD, source,
                       {storage->gradient, 0, wholeGradient, 0, kWrite});
          return success();
        }
        int64_t shardGradient = wholeGradient / ranks;
        Location at{storage->gradient, 0, shardGradient};
        auto sum = op->hasOneUse() ? dyn_cast<zero::AccumulateOp>(*op->user_begin()) : zero::AccumulateOp();
        if (sum && sum.getKeep() && sum.getLevel() == 0)
          at = {levelOf(sum.getSum(), 0, plan::GRADIENTS, shardGradient)};
        else if (stage >= 2)
          at = {buffer((storage->op.getSymName() + ".reduced").str(), plan::GRADIENTS, shardGradient)};
        locations[reduce.getResult()] = at;
        collective(*storage, plan::REDUCE_SCATTER, op->getLoc(), plan::Collective::BACKWARD, source,
                   {at.buffer, 0, shardGradient, at.shardStride, kWrite});
        return success();
      })
      .Case([&](zero::GradientOp g) {
        fillGradient(op->getLoc(), *storage, g.getGradients());
        locations[g.getResult()] = {storage->gradient};
        return success();
      })
      .Case([&](zero::AccumulateOp a) {
        lowerAccumulate(a);
        return success();
      })
      .Case([&](zero::AccumulatedOp a) {
        locations[a.getResult()] = {levelOf(a.getSum(), 0, plan::ACTIVATIONS, bytesOf(a.getResult()))};
        return success();
      })
      .Case([&](zero::SquareSumOp s) {
        Location at = locate(s.getGradient());
        // At stage 0 the gradient is whole: the rank sums its own part of it, as at every other stage.
        // A rank's part are the shards of its leaves; each is summed from its own start.
        int64_t bytes = storage->elements / ranks * widthOf(storage->gradientType), leafBytes = bytes / leaves;
        Location to = locate(s.getResult());
        plan::SquareSumCall sum{.n = storage->elements / ranks / leaves, .type = elementTypeOf(s.getGradient())};
        for (int64_t leaf = 0; leaf < leaves; ++leaf)
          call(op->getLoc(), sum,
               {{at.buffer, at.offset + leaf * leafBytes, leafBytes, stage == 0 ? bytes : at.shardStride, kRead},
                {to.buffer, to.offset + leaf * normPartials * 8, 8, to.shardStride, kWrite}});
        return success();
      })
      .Case([&](zero::GradientNormOp n) {
        lowerNorm(n);
        return success();
      })
      .Case([&](zero::UpdateOp u) { return lowerUpdate(u); })
      .Case([&](zero::GatherUpdatedOp) {
        collective(*storage, plan::ALL_GATHER, op->getLoc(), plan::Collective::UPDATE,
                   {storage->parameters, 0, shard, shard, kRead}, {storage->parameters, 0, whole, 0, kWrite});
        return success();
      })
      .Default([](Operation* other) { return other->emitError("cannot be lowered to a plan"); });
}

}  // namespace sheaf::plan_ir
