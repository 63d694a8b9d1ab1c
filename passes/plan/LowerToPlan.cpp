// Turns the step and the evaluation into a plan: buffers, and lists of instructions.
#include "ir/Train/Outputs.h"
#include "ir/Train/ParameterNames.h"
#include "llvm/ADT/StringSet.h"
#include "passes/StepModule.h"
#include "passes/plan/Lowering.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

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
  llvm::StringMap<int64_t> files, inputs;
  llvm::DenseMap<Attribute, Value> constants;  // buffers by value: the evaluation reads those of the step
  int64_t outputs = 0;
  SmallVector<func::FuncOp> parts;  // of a step of several micro-batches, before the body

  LogicalResult run();
  void createProgram();
  void setTurns();
  void declareOrigin();
  void declareBuckets();
  void declareParameter(zero::BucketOp bucket, int64_t index, train::ParameterOp parameter, int64_t offset);
  int64_t file(StringRef path);
  void declareInputs(func::FuncOp function);
  int64_t input(func::FuncOp function, unsigned argument);
  void analyzeUses(Block& block);
  void constant(train::ConstantOp op);
  LogicalResult lower(func::FuncOp function);
  void output(train::OutputOp op);
  void declareUnneededInputs();
  void declareCopied();
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
  SmallVector<Region*> sections{&prologue.getBody(), &body.getBody(), &epilogue.getBody()};
  for (func::FuncOp part : parts) {
    OpBuilder before(body);
    sections.push_back(&PartOp::create(before, module.getLoc(), part.getName()).getBody());
  }
  if (zero::evaluationOf(module)) {
    evaluation = EvaluationOp::create(tail, module.getLoc());
    sections.push_back(&evaluation.getBody());
  }
  for (Region* region : sections) builder.createBlock(region);
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
  setTurns();
  program->setAttr("max_threads", head.getI64IntegerAttr(maxThreads));
  SmallVector<StringRef> streams{"compute", "communication", "network"};
  if (!sharding.hasNodes || sharding.nodes() == 1) streams.pop_back();
  program->setAttr("streams", head.getStrArrayAttr(streams));
  program->setAttr("communicators", head.getI64IntegerAttr(ranks > 1 ? kCommunicators : 0));
  if (sharding.hasNodes) {
    program->setAttr("ranks_per_node", head.getI64IntegerAttr(sharding.perNode));
    program->setAttr("network_zero", head.getI64IntegerAttr(zero::moduleInteger(module, "zero.network_stage", 0)));
  }
  program->setAttr("events", head.getI64IntegerAttr(0));
}

void StepLowering::setTurns() {
  if (parts.empty()) return;
  const int64_t microBatches = zero::moduleInteger(module, "train.micro_batches", 1);
  const plan::MicroBatchGroups groups(microBatches);
  SmallVector<int64_t> turns;
  auto add = [&](int64_t first, int64_t end) {
    for (int64_t micro = 0; micro < end; ++micro) turns.append({first + groups.partOf(micro), micro});
  };
  const int64_t counts = zero::partsOf(module, zero::kCountPrefix).size();
  if (counts > 0) add(0, microBatches);
  add(counts, microBatches - 1);
  program->setAttr("micro_batches", head.getI64IntegerAttr(microBatches));
  program->setAttr("dealing", module->getAttr("zero.dealing"));
  program->setAttr("turns", head.getDenseI64ArrayAttr(turns));
}

// The options are known to the tool that compiles.
void StepLowering::declareOrigin() {
  auto of = [&](StringRef name) { return module->getAttrOfType<DictionaryAttr>(name); };
  auto step = of("train.origin"), evaluation = of("train.evaluation_origin");
  DictionaryAttr any = step ? step : evaluation;
  if (!any) return;
  OriginOp::create(head, module.getLoc(), any.getAs<IntegerAttr>("leaves").getInt(), head.getArrayAttr({}));
  for (auto [function, origin] : {std::pair("step", step), std::pair("evaluation", evaluation)})
    if (origin)
      OriginProgramOp::create(head, module.getLoc(), function, origin.getAs<ArrayAttr>("names"),
                              origin.getAs<ArrayAttr>("hashes"));
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
  auto op = ParameterOp::create(
      head, parameter.getLoc(), train::nameOf(parameter.getSymName()), elementTypeOf(type.getElementType()),
      type.getShape(), parameter.getPermutation().value_or(ArrayRef<int64_t>()), bool(bucket.getOptimizer()), index,
      offset, source, ElementTypeAttr(), parameter->getAttrOfType<ArrayAttr>(train::kAliasesAttr));
  auto sourceType = parameter->getAttrOfType<TypeAttr>("train.source_type");
  if (sourceType && sourceType.getValue() != type.getElementType())
    op.setSourceType(elementTypeOf(sourceType.getValue()));
  if (auto value = parameter.getValue()) op->setAttr("value", *value);
}

void StepLowering::declareBuckets() {
  SymbolTable symbols(module);
  int64_t index = 0;
  llvm::DenseMap<StringRef, Type> gradientTypes;
  for (func::FuncOp function : zero::functionsOf(module))
    for (Operation& op : function.getBody().front())
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
    const int64_t parameterParts = sharding.parts(3), stateParts = sharding.parts(1);
    int64_t whole = storage.elements * storage.width;
    StringRef name = bucket.getSymName();
    storage.parameters = buffer((name + ".parameters").str(), plan::PARAMETERS, whole / parameterParts, true);
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
        storage.states.push_back(
            buffer((name + "." + state.getValue()).str(), plan::OPTIMIZER, storage.elements * 4 / stateParts, true));
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

// An evaluation may have put some of them into buckets.
void StepLowering::declareCopied() {
  auto all = module->getAttrOfType<ArrayAttr>("train.copied");
  if (!all) return;
  llvm::StringSet<> known;
  for (auto parameter : module.getOps<train::ParameterOp>()) known.insert(train::nameOf(parameter.getSymName()));
  for (auto entry : all.getAsRange<DictionaryAttr>()) {
    StringRef name = entry.getAs<StringAttr>("name").getValue();
    if (known.contains(name)) continue;
    auto type = cast<RankedTensorType>(entry.getAs<TypeAttr>("type").getValue());
    auto permutation = entry.getAs<DenseI64ArrayAttr>("permutation");
    SmallVector<int64_t> source;
    if (auto from = entry.getAs<train::SourceAttr>("source"))
      source = {file(from.getFile().getValue()), from.getOffset(), from.getLength()};
    auto op = CopiedOp::create(head, module.getLoc(), name, elementTypeOf(type.getElementType()), type.getShape(),
                               permutation ? permutation.asArrayRef() : ArrayRef<int64_t>(),
                               bool(entry.get("constant")), source, entry.getAs<ArrayAttr>("aliases"));
    if (auto value = entry.getAs<ElementsAttr>("value")) op->setAttr("value", value);
  }
}

// The step and the evaluation share inputs by name.
int64_t StepLowering::input(func::FuncOp function, unsigned argument) {
  StringRef name = function.getArgAttrOfType<StringAttr>(argument, "train.name").getValue();
  auto [entry, fresh] = inputs.try_emplace(name, inputs.size());
  auto type = cast<RankedTensorType>(function.getArgument(argument).getType());
  auto has = [&](StringRef attribute) { return bool(function.getArgAttr(argument, attribute)); };
  if (fresh)
    InputOp::create(head, module.getLoc(), name, elementTypeOf(type.getElementType()), type.getShape(),
                    has("train.whole"), has("train.row_mask"), has("train.row_index"),
                    function.getArgAttrOfType<IntegerAttr>(argument, "train.classes"),
                    function.getArgAttrOfType<IntegerAttr>(argument, "train.ignored_label"), has("train.tokens"),
                    has("train.perplexity"), has("train.ids"), has("train.shifted"));
  return entry->second;
}

// Those of the model that no section reads.
void StepLowering::declareUnneededInputs() {
  SmallVector<Attribute> names;
  if (auto all = module->getAttrOfType<ArrayAttr>(train::kModelInputsAttr))
    for (auto name : all.getAsRange<StringAttr>())
      if (!inputs.contains(name.getValue())) names.push_back(name);
  if (!names.empty()) program->setAttr("unneeded_inputs", head.getArrayAttr(names));
}

void StepLowering::declareInputs(func::FuncOp function) {
  for (auto [i, argument] : llvm::enumerate(function.getArguments())) {
    StringRef name = function.getArgAttrOfType<StringAttr>(i, "train.name").getValue();
    const int64_t index = input(function, i);
    locations[argument] = {buffer(name, plan::ACTIVATIONS, bytesOf(argument))};
    instruction<ReadInputOp>(module.getLoc(), kComputeStream, name, {operand(argument, kWrite)}, index);
  }
}

// Positions of ops, and the last reader of every value, through the views that share its bytes.
void StepLowering::analyzeUses(Block& block) {
  for (auto [i, op] : llvm::enumerate(block)) position[&op] = i;
  // The loss is judged with the gradient norm.
  int64_t judged = -1;
  for (auto norm : block.getOps<zero::GradientNormOp>()) judged = position[norm];
  auto note = [&](Value v) {
    int64_t last = -1;
    for (Operation* user : v.getUsers()) {
      last = std::max(last, position[user]);
      if (isa<train::LossOp, train::OutputOp>(user) && skipsUpdates()) last = std::max(last, judged);
      if (isa<train::ReshapeOp, train::SliceOp, train::GlobalSumOp, train::GatherRowsOp, train::ConcatOp,
              zero::AccumulateOp>(user))
        last = std::max(last, lastUse.lookup(user->getResult(0)));
    }
    lastUse[v] = last;
  };
  for (Operation& op : llvm::reverse(block))
    for (Value v : op.getResults()) note(v);
}

void StepLowering::constant(train::ConstantOp op) {
  Value& known = constants[op.getValue()];
  if (known && (evaluates() || !parts.empty())) {
    locations[op.getResult()] = {known};
    return;
  }
  Value store = known = buffer("constant", plan::CONSTANTS, bytesOf(op.getResult()), true);
  locations[op.getResult()] = {store};
  ConstantOp::create(head, op.getLoc(), store, ArrayRef<int64_t>(), op.getValue());
}

void StepLowering::output(train::OutputOp op) {
  const auto kind = plan::valueOf<plan::OutputKind>(std::string_view(op.getKind()));
  auto type = cast<RankedTensorType>(op.getValue().getType());
  Operand value = operand(op.getValue(), kRead);
  if (value.bytes != bytesOf(op.getValue())) {
    // The host takes dense rows.
    Location from = locate(op.getValue());
    const int64_t width = widthOf(type.getElementType()), columns = from.rowBytes / width;
    const int64_t rows = type.getNumElements() / columns;
    Operand dense{buffer("output", plan::ACTIVATIONS, bytesOf(op.getValue())), 0, bytesOf(op.getValue()), 0, kWrite};
    copy(op.getLoc(), value, dense, width, {rows, columns}, {from.rowStride / width, 1}, {columns, 1});
    value = dense;
    value.access = kRead;
  }
  int64_t tensor = 0;
  if (*kind == plan::TENSOR) {
    OutputOp::create(head, op.getLoc(), op.getName(), elementTypeOf(type.getElementType()), type.getShape(),
                     int64_t(op.getAxis()), int64_t(op.getBlocks()));
    tensor = outputs++;
  }
  instruction<WriteOutputOp>(op.getLoc(), kComputeStream, op.getName(), {value}, *kind, tensor);
  if (*kind == plan::LOSS && skipsUpdates()) judgedLoss = value;
}

LogicalResult StepLowering::run() {
  for (StringRef prefix : {zero::kCountPrefix, zero::kAccumulatePrefix})
    llvm::append_range(parts, zero::partsOf(module, prefix));
  createProgram();
  declareOrigin();
  for (func::FuncOp function : parts) analyzeUses(function.getBody().front());
  for (func::FuncOp function : zero::functionsOf(module)) analyzeUses(function.getBody().front());
  declareBuckets();
  declareCopied();
  scalarBuffer = buffer("scalars", plan::ACTIVATIONS, 0);
  normScalars = buffer("norm_scalars", plan::ACTIVATIONS, 8);
  if (failed(declareLossScale())) return failure();
  for (auto [part, function] : llvm::zip(program.getBody().front().getOps<PartOp>(), parts)) {
    section.setInsertionPointToEnd(&part.getBody().front());
    placeGradients(function);
    if (failed(lower(function))) return failure();
  }
  section.setInsertionPointToEnd(&body.getBody().front());
  if (!parts.empty()) placeGradients(step);
  if (step && failed(lower(step))) return failure();
  advanceLossScale();
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
  if (scalars.empty()) section.setInsertionPointToStart(&body.getBody().front());
  computeUpdateScalars();
  for (auto [part, function] : llvm::zip(program.getBody().front().getOps<PartOp>(), parts)) {
    section.setInsertionPointToStart(&part.getBody().front());
    if (!function.getBody().front().getOps<train::LossScaleOp>().empty()) computeUpdateScalar(0);
  }
  if (evaluation) {
    section.setInsertionPointToEnd(&evaluation.getBody().front());
    if (failed(lower(zero::evaluationOf(module)))) return failure();
  }
  declareUnneededInputs();
  if (sharding.hasNodes) {
    SmallVector<Attribute> axes;
    for (auto [axis, kind] : communicators) axes.push_back(head.getStringAttr(plan::word(axis)));
    program->setAttr("communicators", head.getI64IntegerAttr(axes.size()));
    program->setAttr("communicator_axes", head.getArrayAttr(axes));
  }
  for (auto buffer : llvm::make_early_inc_range(program.getBody().front().getOps<BufferOp>()))
    if (buffer->use_empty()) buffer.erase();
  return success();
}

// Appends a function's instructions to the current section.
LogicalResult StepLowering::lower(func::FuncOp function) {
  declareInputs(function);

  // The partial norms of all buckets lie side by side, each rank's in a row.
  for (auto norm : function.getOps<zero::GradientNormOp>()) {
    normPartials = int64_t(norm.getPartials().size());
    const int64_t count = normPartials * leaves;
    Value partials = buffer("norm_partials", plan::ACTIVATIONS, ranks * count * 8);
    for (auto [i, partial] : llvm::enumerate(norm.getPartials()))
      locations[partial] = {partials, int64_t(i) * 8, ranks > 1 ? count * 8 : 0};
  }
  for (Operation& op : llvm::make_early_inc_range(function.getBody().front())) {
    if (isa<func::ReturnOp>(op)) break;
    if (auto constantOp = dyn_cast<train::ConstantOp>(op)) {
      if (!constantOp->use_empty()) constant(constantOp);
    } else if (auto loss = dyn_cast<train::LossOp>(op)) {
      Operand value = operand(loss.getValue(), kRead);
      if (ranks > 1) {
        Operand global{buffer("loss", plan::ACTIVATIONS, 4), 0, 4, 0, kWrite};
        sumOverRanks(op.getLoc(), "loss", plan::F32, 1, value, global);
        value = global;
        value.access = kRead;
      }
      instruction<WriteOutputOp>(op.getLoc(), ranks > 1 ? kCommunicationStream : kComputeStream, "loss", {value},
                                 plan::LOSS, int64_t(0));
      if (skipsUpdates()) judgedLoss = value;
    } else if (auto result = dyn_cast<train::OutputOp>(op)) {
      output(result);
    } else if (op.getDialect()->getNamespace() == "zero") {
      if (failed(lowerZero(&op))) return failure();
    } else if (failed(lowerOp(&op))) {
      return failure();
    }
  }
  return success();
}

void LowerToPlan::runOnOperation() {
  ModuleOp module = getOperation();
  if (zero::functionsOf(module).empty()) return;
  StepLowering lowering(module, zero::stepOf(module));
  lowering.ranks = zero::ranksOf(module);
  lowering.leaves = zero::moduleInteger(module, "train.leaves", 1);
  lowering.stage = zero::effectiveStage(module);
  lowering.sharding = zero::shardingOf(module);
  lowering.maxThreads = maxThreads;
  lowering.cpu = cpu;
  lowering.gpu = gpu;
  if (failed(lowering.run())) return signalPassFailure();
  for (Operation& op : llvm::make_early_inc_range(*module.getBody()))
    if (!isa<ProgramOp>(op)) op.erase();
  module->removeAttr(train::kModelInputsAttr);
  for (StringRef name :
       {"train.model", "train.training", "train.groups", "train.decisions", "train.copied", "train.floor",
        "train.origin", "train.evaluation_origin", "train.ranks", "train.batch", "train.micro_batches", "zero.stage",
        "zero.dealing", "zero.ranks_per_node", "zero.network_stage"})
    module->removeAttr(name);
}

}  // namespace
}  // namespace sheaf::plan_ir
