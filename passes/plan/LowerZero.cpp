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

namespace {

// The scalar arguments of an optimizer's rule: operands of the update, or constants.
struct RuleScalars {
  SmallVector<unsigned> arguments;  // of the rule, one for each operand
  SmallVector<Operand> operands;
  SmallVector<std::pair<unsigned, double>> constants;
};

// `first`: the number of the rule's first scalar argument.
FailureOr<RuleScalars> scalarsOf(Lowering& l, zero::BucketOp bucket, train::OptimizerOp optimizer, unsigned first) {
  RuleScalars scalars;
  // Groups with the learning rate of the training share its scalars.
  const Lowering::Group group = l.groupOf(bucket);
  const int64_t rateGroup = group.ownRate ? group.index : 0;
  for (auto [i, scalar] : llvm::enumerate(optimizer.getScalars().getAsRange<train::ScalarAttr>())) {
    const unsigned argument = first + static_cast<unsigned>(i);
    const train::ScalarKind kind = scalar.getKind();
    const double value = scalar.getValue().getValueAsDouble();
    if (kind == train::ScalarKind::constant) {
      scalars.constants.push_back({argument, value});
      continue;
    }
    scalars.arguments.push_back(argument);
    // The two that the gradient norm decides are computed on the device.
    if (kind == train::ScalarKind::clip_scale || kind == train::ScalarKind::finite) {
      scalars.operands.push_back({l.normScalars, kind == train::ScalarKind::finite ? 4 : 0, 4, 0, kRead});
      continue;
    }
    std::optional<plan::StepScalar::Kind> planned = kindOf(kind);
    if (!planned)
      return optimizer.emitError() << "the plan format has no step scalar '" << train::stringifyScalarKind(kind) << "'";
    const StepScalar known{*planned, value, rateGroup};
    std::optional<Operand> ofUpdates = l.updateScalar(known);
    scalars.operands.push_back(ofUpdates ? *ofUpdates : Operand{l.scalarBuffer, l.scalarSlot(known) * 4, 4, 0, kRead});
  }
  return scalars;
}

// Copies the rule into the fusion, whose block has the types of its arguments; elements are [rows, columns]. `narrow`:
// the type that the new parameter is rounded to as a further result; null: it is not.
void copyRule(OpBuilder& builder, train::FusionOp fusion, Block& rule, unsigned arguments, const RuleScalars& scalars,
              RankedTensorType full, RankedTensorType narrow) {
  const mlir::Location loc = fusion.getLoc();
  Block& block = fusion.getBody().front();
  IRMapping mapping;
  for (unsigned i = 0; i < arguments; ++i) mapping.map(rule.getArgument(i), block.getArgument(i));
  if (block.getArgument(1).getType() != full)
    mapping.map(rule.getArgument(1), train::CastOp::create(builder, loc, full, block.getArgument(1)).getResult());
  for (auto [i, argument] : llvm::enumerate(scalars.arguments)) {
    Value scalar = block.getArgument(arguments + static_cast<unsigned>(i));
    mapping.map(rule.getArgument(argument), train::BroadcastOp::create(builder, loc, full, scalar).getResult());
  }
  for (auto [argument, value] : scalars.constants) {
    auto splat = DenseElementsAttr::get(full, static_cast<float>(value));
    mapping.map(rule.getArgument(argument), train::ConstantOp::create(builder, loc, splat).getResult());
  }
  for (Operation& inner : rule) {
    if (auto constant = dyn_cast<train::ConstantOp>(inner)) {
      auto splat = cast<DenseElementsAttr>(constant.getValue());
      auto value = DenseElementsAttr::get(full.clone(splat.getElementType()), splat.getSplatValue<Attribute>());
      mapping.map(constant.getResult(), train::ConstantOp::create(builder, loc, value).getResult());
      continue;
    }
    Value rounded;
    if (isa<train::YieldOp>(inner) && narrow)
      rounded = train::CastOp::create(builder, loc, narrow, mapping.lookup(inner.getOperand(0)));
    Operation* clone = builder.clone(inner, mapping);
    if (rounded) clone->insertOperands(clone->getNumOperands(), rounded);
    for (Value result : clone->getResults())
      result.setType(full.clone(cast<RankedTensorType>(result.getType()).getElementType()));
  }
}

}  // namespace

LogicalResult Lowering::lowerUpdate(zero::UpdateOp op) {
  BucketStorage& storage = buckets[op.getBucket()];
  SymbolTable symbols(module);
  auto optimizer = symbols.lookup<train::OptimizerOp>(*storage.op.getOptimizer());
  int64_t n = cast<RankedTensorType>(op.getGradient().getType()).getNumElements();

  // The update as a fusion over [rows, columns] of the elements; scalars are broadcast.
  int64_t columns = 32;
  while (columns < 1024 && n % (columns * 2) == 0) columns *= 2;
  int64_t rows = n / columns, block = std::max<int64_t>(1, std::min<int64_t>(rows, 16384 / columns));
  Type element = head.getF32Type();
  auto full = RankedTensorType::get({rows, columns}, element), one = RankedTensorType::get({1, 1}, element);
  auto narrow = storage.master ? full.clone(storage.op.getElementType()) : RankedTensorType();

  // What the rule knows as the parameter is the master weight where there is one; the parameter is its rounding.
  const Operand parameter =
      partOf(storage.parameters, storage.elements * storage.width, sharding.parts(3), sharding.parts(1), kWrite);
  SmallVector<Operand> values;  // parameter or master weight, then states
  if (!storage.master) values.push_back(parameter);
  for (Value state : storage.states) values.push_back({state, 0, n * 4, 0, kWrite});
  const auto arguments = static_cast<unsigned>(1 + values.size());
  SmallVector<Operand> operands(values);
  for (Operand& value : operands) value.access = kRead;
  operands.insert(operands.begin() + 1, operand(op.getGradient(), kRead));
  FailureOr<RuleScalars> scalars = scalarsOf(*this, storage.op, optimizer, arguments);
  if (failed(scalars)) return failure();
  operands.append(scalars->operands);
  SmallVector<Type> types(arguments, full);
  types[1] = full.clone(storage.gradientType);
  types.append(scalars->operands.size(), one);

  // The fusion's operands are placeholders; only its region and the addresses matter.
  OpBuilder builder(op);
  SmallVector<Value> placeholders;
  for (Type type : types)
    placeholders.push_back(
        train::ConstantOp::create(builder, op.getLoc(), DenseElementsAttr::get(cast<ShapedType>(type), 0.0f)));
  SmallVector<Type> results(values.size(), full);
  if (narrow) results.push_back(narrow);
  SmallVector<int64_t> elementwise = llvm::to_vector(llvm::seq<int64_t>(0, arguments));
  auto fusion = train::FusionOp::create(builder, op.getLoc(), results, placeholders, rows, columns, block, elementwise,
                                        /*pitches=*/DenseI64ArrayAttr());
  Block* body = builder.createBlock(&fusion.getBody());
  body->addArguments(types, SmallVector<mlir::Location>(types.size(), op.getLoc()));
  copyRule(builder, fusion, optimizer.getBody().front(), arguments, *scalars, full, narrow);
  operands.append(values);
  if (storage.master) operands.push_back(parameter);
  launch(fusion, operands, ("update " + op.getBucket()).str(), storage.index + 1);
  fusion.erase();
  for (Value placeholder : placeholders) placeholder.getDefiningOp()->erase();
  return success();
}

bool Lowering::skipsUpdates() {
  return llvm::any_of(module.getOps<train::OptimizerOp>(), [](train::OptimizerOp rule) {
    return llvm::any_of(rule.getScalars().getAsRange<train::ScalarAttr>(),
                        [](train::ScalarAttr scalar) { return scalar.getKind() == train::ScalarKind::finite; });
  });
}

void Lowering::lowerNorm(zero::GradientNormOp op) {
  const int64_t count = int64_t(op.getPartials().size()) * leaves;  // a rank's
  Value partials = op.getPartials().empty() ? Value() : locate(op.getPartials().front()).buffer;
  if (ranks > 1)
    gather(op.getLoc(), "gradient norm", "", plan::F64, plan::Collective::UPDATE,
           partOf(partials, ranks * count * 8, 1, ranks, kRead), ranks, ranks * count * 8, partials);
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
  if (judgedLoss) operands.push_back(*judgedLoss);
  call(op.getLoc(),
       plan::GradientNormCall{.ranks = ranks * leaves,
                              .buckets = count / leaves,
                              .clip = clip,
                              .scaled = lossScale.has_value(),
                              .judged = judgedLoss.has_value()},
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
  int64_t whole = storage ? storage->elements * storage->width : 0;
  const plan::ElementType type =
      storage ? elementTypeOf(zero::BucketOp(storage->op).getElementType()) : plan::ELEMENT_TYPE_UNSPECIFIED;
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](zero::ParametersOp p) {
        locations[p.getResult()] = {storage->parameters};
        return success();
      })
      .Case([&](zero::AllGatherOp g) {
        Value gathered = buffer((g.getBucket() + ".gathered").str(), plan::GATHERED, whole);
        locations[g.getResult()] = {gathered};
        const int64_t piece = whole / sharding.perNode;
        if (g.getKeep()) storage->secondary = buffer((g.getBucket() + ".secondary").str(), plan::GATHERED, piece);
        Operand own{storage->parameters, 0, whole / sharding.parts(3), 0, kRead};
        if (g.getKept()) own = {storage->secondary, 0, piece, 0, kRead};
        gather(op->getLoc(), g.getBucket(), g.getBucket(), type, phaseOf(g.getPhase()), own,
               g.getKept() ? sharding.perNode : sharding.parts(3), whole, gathered,
               g.getKeep() ? storage->secondary : Value());
        return success();
      })
      .Case([&](zero::ReleaseOp) { return success(); })
      .Case([&](zero::ViewOp v) {
        Location at = locate(v.getBucket());
        at.offset += int64_t(v.getOffset()) * widthOf(cast<RankedTensorType>(v.getType()).getElementType());
        locations[v.getResult()] = at;
        return success();
      })
      .Case<zero::AllReduceOp, zero::ReduceScatterOp>([&](auto) { return lowerReduction(op, *storage); })
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
        // Where the gradient is more than the rank's shard, the rank sums its shard of it, as at every other stage:
        // that are the shards of its leaves, each of which is summed from its own start.
        const int64_t width = widthOf(storage->gradientType), leafElements = storage->elements / ranks / leaves;
        const Operand shard = shardOf(at, storage->elements * width, sharding.parts(1));
        Location to = locate(s.getResult());
        plan::SquareSumCall sum{.n = leafElements, .type = elementTypeOf(s.getGradient())};
        for (int64_t leaf = 0; leaf < leaves; ++leaf)
          call(op->getLoc(), sum,
               {{shard.buffer, shard.offset + leaf * leafElements * width, leafElements * width, shard.stride, kRead,
                 shard.axis},
                {to.buffer, to.offset + leaf * normPartials * 8, 8, to.shardStride, kWrite}});
        return success();
      })
      .Case([&](zero::GradientNormOp n) {
        lowerNorm(n);
        return success();
      })
      .Case([&](zero::UpdateOp u) { return lowerUpdate(u); })
      .Case([&](zero::GatherUpdatedOp g) {
        StringRef name = g.getBucket();
        const int64_t held = sharding.parts(3), parts = sharding.parts(1);
        const Operand own = partOf(storage->parameters, whole, held, parts, kRead);
        if (held == 1)
          gather(op->getLoc(), name, name, type, plan::Collective::UPDATE, own, parts, whole, storage->parameters);
        else
          hop(plan::NETWORK, plan::ALL_GATHER, op->getLoc(), name, name, type, plan::Collective::UPDATE, own,
              {storage->parameters, 0, whole / held, 0, kWrite});
        return success();
      })
      .Default([](Operation* other) { return other->emitError("cannot be lowered to a plan"); });
}

}  // namespace sheaf::plan_ir
