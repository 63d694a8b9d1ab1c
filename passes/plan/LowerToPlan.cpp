// Turns the step into a plan: buffers, and three lists of instructions.
#include "passes/StepModule.h"
#include "passes/plan/Lowering.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_LOWERTOPLAN
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

struct LowerToPlan : impl::LowerToPlanBase<LowerToPlan> {
  using Base::Base;
  void runOnOperation() override;
};

// Lowers one module; split from the pass so that its parts can share state.
struct StepLowering : Lowering {
  using Lowering::Lowering;
  llvm::StringMap<int64_t> files;

  LogicalResult run();
  void createProgram();
  void declareBuckets();
  void declareParameter(zero::BucketOp bucket, int64_t index, train::ParameterOp parameter, int64_t offset);
  int64_t file(StringRef path);
  void declareInputs();
  void analyzeUses();
  void constant(train::ConstantOp op);
};

void StepLowering::createProgram() {
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  program = ProgramOp::create(builder, module.getLoc());
  Block* block = builder.createBlock(&program.getBody());
  head.setInsertionPointToEnd(block);
  OpBuilder tail = OpBuilder::atBlockEnd(block);
  prologue = PrologueOp::create(tail, module.getLoc());
  body = StepOp::create(tail, module.getLoc());
  epilogue = EpilogueOp::create(tail, module.getLoc());
  for (Region* region : {&prologue.getBody(), &body.getBody(), &epilogue.getBody()}) builder.createBlock(region);
  head.setInsertionPoint(prologue);
  section.setInsertionPointToEnd(&body.getBody().front());
  program->setAttr("version", head.getI64IntegerAttr(plan::kPlanVersion));
  program->setAttr("producer", head.getStringAttr("sheaf " SHEAF_VERSION));
  for (auto [from, to] : {std::pair("train.model", "model"),
                          {"train.training", "training"},
                          {"train.decisions", "decisions"},
                          {"train.floor", "floor"}})
    if (Attribute attribute = module->getAttr(from)) program->setAttr(to, attribute);
  program->setAttr("ranks", head.getI64IntegerAttr(ranks));
  program->setAttr("zero", head.getI64IntegerAttr(zero::moduleInteger(module, "zero.stage", 0)));
  program->setAttr("batch", head.getI64IntegerAttr(zero::moduleInteger(module, "train.batch", ranks)));
  program->setAttr("max_threads", head.getI64IntegerAttr(maxThreads));
  program->setAttr("streams", head.getStrArrayAttr({"compute", "communication"}));
  program->setAttr("communicators", head.getI64IntegerAttr(ranks > 1 ? kCommunicators : 0));
  program->setAttr("events", head.getI64IntegerAttr(0));
}

int64_t StepLowering::file(StringRef path) {
  auto [entry, fresh] = files.try_emplace(path, files.size());
  if (fresh) FileOp::create(head, module.getLoc(), path, int64_t(0), int64_t(0));
  return entry->second;
}

void StepLowering::declareParameter(zero::BucketOp bucket, int64_t index, train::ParameterOp parameter,
                                    int64_t offset) {
  auto type = cast<RankedTensorType>(parameter.getType());
  SmallVector<int64_t> source;
  if (auto from = parameter.getSource())
    source = {file(from->getFile().getValue()), from->getOffset(), from->getLength()};
  auto op = ParameterOp::create(head, parameter.getLoc(), parameter.getSymName(), elementTypeOf(type.getElementType()),
                                type.getShape(), parameter.getPermutation().value_or(ArrayRef<int64_t>()),
                                bool(bucket.getOptimizer()), index, offset, source, ElementTypeAttr());
  auto sourceType = parameter->getAttrOfType<TypeAttr>("train.source_type");
  if (sourceType && sourceType.getValue() != type.getElementType())
    op.setSourceType(elementTypeOf(sourceType.getValue()));
  if (auto value = parameter.getValue()) op->setAttr("value", *value);
}

void StepLowering::declareBuckets() {
  SymbolTable symbols(module);
  int64_t index = 0;
  llvm::DenseMap<StringRef, Type> gradientTypes;
  for (Operation& op : step.getBody().front())
    if (isa<zero::AllReduceOp, zero::ReduceScatterOp>(op))
      gradientTypes[op.getAttrOfType<FlatSymbolRefAttr>("bucket").getValue()] =
          cast<RankedTensorType>(op.getResult(0).getType()).getElementType();
  for (auto bucket : module.getOps<zero::BucketOp>()) {
    BucketStorage& storage = buckets[bucket.getSymName()];
    storage.op = bucket;
    storage.index = index;
    storage.elements = bucket.getElements();
    storage.width = widthOf(bucket.getElementType());
    storage.parametersSharded = stage == 3;
    storage.statesSharded = stage >= 1;
    int64_t whole = storage.elements * storage.width;
    StringRef name = bucket.getSymName();
    storage.parameters =
        buffer((name + ".parameters").str(), plan::PARAMETERS, storage.parametersSharded ? whole / ranks : whole, true);
    SmallVector<Attribute> stateNames;
    storage.gradientType = bucket.getElementType();
    if (bucket.getOptimizer()) {
      auto optimizer = symbols.lookup<train::OptimizerOp>(*bucket.getOptimizer());
      storage.gradientType = gradientTypes.lookup(name);
      // The optimizer computes in f32: where parameters are narrower, it keeps them in f32 too.
      storage.master = !bucket.getElementType().isF32();
      SmallVector<StringAttr> states(optimizer.getStates().getAsRange<StringAttr>());
      if (storage.master) states.insert(states.begin(), head.getStringAttr("master"));
      for (StringAttr state : states) {
        stateNames.push_back(state);
        storage.states.push_back(buffer((name + "." + state.getValue()).str(), plan::OPTIMIZER,
                                        storage.elements * 4 / (storage.statesSharded ? ranks : 1), true));
      }
      storage.gradient = buffer((name + ".gradients").str(), stage >= 2 ? plan::GATHERED : plan::GRADIENTS,
                                storage.elements * widthOf(storage.gradientType));
    }
    bool own = storage.gradientType == bucket.getElementType();
    BucketOp::create(
        head, bucket.getLoc(), name, elementTypeOf(bucket.getElementType()), storage.elements, storage.parameters,
        storage.parametersSharded, storage.states, head.getArrayAttr(stateNames), storage.statesSharded,
        bool(bucket.getOptimizer()), storage.master,
        own ? ElementTypeAttr() : ElementTypeAttr::get(head.getContext(), elementTypeOf(storage.gradientType)),
        groupOf(bucket).index);
    for (auto [symbol, offset] : llvm::zip(bucket.getParameters().getAsRange<FlatSymbolRefAttr>(), bucket.getOffsets()))
      declareParameter(bucket, index, symbols.lookup<train::ParameterOp>(symbol.getValue()), offset);
    ++index;
  }
}

void StepLowering::declareInputs() {
  for (auto [i, argument] : llvm::enumerate(step.getArguments())) {
    auto type = cast<RankedTensorType>(argument.getType());
    StringRef name = step.getArgAttrOfType<StringAttr>(i, "train.name").getValue();
    InputOp::create(head, module.getLoc(), name, elementTypeOf(type.getElementType()), type.getShape());
    locations[argument] = {buffer(name, plan::ACTIVATIONS, bytesOf(argument))};
    instruction<ReadInputOp>(module.getLoc(), kComputeStream, name, {operand(argument, kWrite)}, int64_t(i));
  }
}

// Positions of ops, and the last reader of every value, through the views that share its bytes.
void StepLowering::analyzeUses() {
  Block& block = step.getBody().front();
  for (auto [i, op] : llvm::enumerate(block)) position[&op] = i;
  auto note = [&](Value v) {
    int64_t last = -1;
    for (Operation* user : v.getUsers()) {
      last = std::max(last, position[user]);
      if (isa<train::ReshapeOp, train::SliceOp, train::GlobalSumOp, train::ConcatOp>(user))
        last = std::max(last, lastUse.lookup(user->getResult(0)));
    }
    lastUse[v] = last;
  };
  for (Operation& op : llvm::reverse(block))
    for (Value v : op.getResults()) note(v);
}

void StepLowering::constant(train::ConstantOp op) {
  Value store = buffer("constant", plan::CONSTANTS, bytesOf(op.getResult()), true);
  locations[op.getResult()] = {store};
  ConstantOp::create(head, op.getLoc(), store, ArrayRef<int64_t>(), op.getValue());
}

LogicalResult StepLowering::run() {
  createProgram();
  analyzeUses();
  declareBuckets();
  scalarBuffer = buffer("scalars", plan::ACTIVATIONS, 0);
  normScalars = buffer("norm_scalars", plan::ACTIVATIONS, 8);
  declareInputs();

  // The partial norms of all buckets lie side by side, each rank's in a row.
  for (auto norm : step.getOps<zero::GradientNormOp>()) {
    int64_t count = norm.getPartials().size();
    Value partials = buffer("norm_partials", plan::ACTIVATIONS, ranks * count * 8);
    for (auto [i, partial] : llvm::enumerate(norm.getPartials()))
      locations[partial] = {partials, int64_t(i) * 8, ranks > 1 ? count * 8 : 0};
  }
  for (Operation& op : llvm::make_early_inc_range(step.getBody().front())) {
    if (isa<func::ReturnOp>(op)) break;
    if (auto constantOp = dyn_cast<train::ConstantOp>(op)) {
      if (!constantOp->use_empty()) constant(constantOp);
    } else if (auto loss = dyn_cast<train::LossOp>(op)) {
      Operand value = operand(loss.getValue(), kRead);
      if (ranks > 1) {
        Operand global{buffer("loss", plan::ACTIVATIONS, 4), 0, 4, 0, kWrite};
        instruction<AllReduceOp>(op.getLoc(), kCommunicationStream, "loss", {value, global}, kReductions, plan::F32,
                                 int64_t(1), "", plan::Collective::FORWARD);
        value = global;
        value.access = kRead;
      }
      instruction<WriteOutputOp>(op.getLoc(), ranks > 1 ? kCommunicationStream : kComputeStream, "loss", {value},
                                 plan::LOSS);
    } else if (op.getDialect()->getNamespace() == "zero") {
      if (failed(lowerZero(&op))) return failure();
    } else if (failed(lowerOp(&op))) {
      return failure();
    }
  }
  auto scalarOp = scalarBuffer.getDefiningOp<BufferOp>();
  if (scalars.empty()) {
    scalarOp.erase();
  } else {
    scalarOp.setBytes(scalars.size() * 4);
    for (const StepScalar& scalar : scalars)
      ScalarOp::create(head, module.getLoc(), scalar.kind, APFloat(scalar.value), scalar.group);
    section.setInsertionPointToStart(&body.getBody().front());
    instruction<ReadScalarsOp>(module.getLoc(), kComputeStream, "step scalars",
                               {{scalarBuffer, 0, int64_t(scalars.size()) * 4, 0, kWrite}});
  }
  for (auto buffer : llvm::make_early_inc_range(program.getBody().front().getOps<BufferOp>()))
    if (buffer->use_empty()) buffer.erase();
  return success();
}

void LowerToPlan::runOnOperation() {
  ModuleOp module = getOperation();
  auto step = module.lookupSymbol<func::FuncOp>("step");
  if (!step) return;
  StepLowering lowering(module, step);
  lowering.ranks = zero::ranksOf(module);
  lowering.stage = zero::effectiveStage(module);
  lowering.maxThreads = maxThreads;
  lowering.cpu = cpu;
  lowering.gpu = gpu;
  if (failed(lowering.run())) return signalPassFailure();
  for (Operation& op : llvm::make_early_inc_range(*module.getBody()))
    if (!isa<ProgramOp>(op)) op.erase();
  for (StringRef name : {"train.model", "train.training", "train.groups", "train.decisions", "train.floor",
                         "train.ranks", "train.batch", "zero.stage"})
    module->removeAttr(name);
}

}  // namespace
}  // namespace sheaf::plan_ir
