// Lowers updates: the optimizer's rule as a kernel over the elements of a bucket.
#include "mlir/IR/IRMapping.h"
#include "passes/plan/ZeroLowering.h"
#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {

ArrayGrid::ArrayGrid(int64_t elements) : columns(elements % 32 ? elements : 32) {
  while (elements % 32 == 0 && columns < 1024 && elements % (columns * 2) == 0) columns *= 2;
  rows = elements / columns;
  block = std::max<int64_t>(1, std::min<int64_t>(rows, 16384 / columns));
}

ZeroLowering::Group ZeroLowering::groupOf(zero::BucketOp bucket) {
  auto groups = from_.module->getAttrOfType<ArrayAttr>("train.groups");
  if (!groups || !bucket.getOptimizer()) return {};
  for (auto [i, group] : llvm::enumerate(groups.getAsRange<DictionaryAttr>()))
    if (group.getAs<FlatSymbolRefAttr>("optimizer") == bucket.getOptimizerAttr())
      return {static_cast<int64_t>(i), group.contains("learning_rate")};
  return {};
}

// `first`: the number of the rule's first scalar argument.
FailureOr<RuleScalars> ZeroLowering::scalarsOf(zero::BucketOp bucket, train::OptimizerOp optimizer, unsigned first) {
  RuleScalars scalars;
  // Groups with the learning rate of the training share its scalars.
  const Group group = groupOf(bucket);
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
      scalars.operands.push_back({normScalars_, kind == train::ScalarKind::finite ? 4 : 0, 4, 0, kRead});
      continue;
    }
    // The kinds that the runtime computes have the same words in the plan.
    const auto planned = plan::valueOf<plan::StepScalar::Kind>(train::stringifyScalarKind(kind));
    if (!planned)
      return optimizer.emitError() << "the plan format has no step scalar '" << train::stringifyScalarKind(kind) << "'";
    const StepScalar known{*planned, value, rateGroup};
    std::optional<Operand> ofUpdates = updateScalar(known);
    scalars.operands.push_back(ofUpdates ? *ofUpdates : Operand{scalarBuffer_, scalarSlot(known) * 4, 4, 0, kRead});
  }
  return scalars;
}

namespace {

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

LogicalResult ZeroLowering::lowerUpdate(zero::UpdateOp op) {
  BucketStorage& storage = places_.buckets[op.getBucket()];
  SymbolTable symbols(from_.module);
  auto optimizer = symbols.lookup<train::OptimizerOp>(*storage.op.getOptimizer());
  int64_t n = cast<RankedTensorType>(op.getGradient().getType()).getNumElements();

  // The update as a fusion over [rows, columns] of the elements; scalars are broadcast.
  const auto [rows, columns, block] = ArrayGrid(n);
  Type element = Float32Type::get(op.getContext());
  auto full = RankedTensorType::get({rows, columns}, element), one = RankedTensorType::get({1, 1}, element);
  auto narrow = storage.master ? full.clone(storage.op.getElementType()) : RankedTensorType();

  // If there is a master weight, the rule has it in the parameter's place, and the parameter is its rounding.
  const Operand parameter = partOf(storage.parameters, storage.elements * storage.width, from_.sharding.parts(3),
                                   from_.sharding.parts(1), kWrite);
  SmallVector<Operand> values;  // parameter or master weight, then states
  if (!storage.master) values.push_back(parameter);
  for (int64_t state : storage.states) values.push_back({state, 0, n * 4, 0, kWrite});
  const auto arguments = static_cast<unsigned>(1 + values.size());
  SmallVector<Operand> operands(values);
  for (Operand& value : operands) value.access = kRead;
  operands.insert(operands.begin() + 1, places_.operand(op.getGradient(), kRead));
  FailureOr<RuleScalars> scalars = scalarsOf(storage.op, optimizer, arguments);
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
  builder_.launch(fusion, ("update " + op.getBucket()).str(), operands, storage.index + 1);
  fusion.erase();
  for (Value placeholder : placeholders) placeholder.getDefiningOp()->erase();
  return success();
}

}  // namespace sheaf::plan_ir
