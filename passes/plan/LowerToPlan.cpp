// Turns the step and the evaluation into a plan: buffers, and lists of instructions.
#include "ir/Plan/StepWorkAttribute.h"
#include "ir/Train/Outputs.h"
#include "ir/Train/ParameterNames.h"
#include "llvm/ADT/StringSet.h"
#include "passes/plan/Edits.h"
#include "passes/plan/Finish.h"
#include "passes/plan/Lowering.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

// Lowers one module.
struct StepLowering {
  StepLowering(ModuleOp module, const LowerOptions& options)
      : l(module, options), options(options), module(module), step(l.from.step), plan(l.builder.plan()) {}

  FailureOr<Draft> run();
  void setHeader();
  void setTurns();
  LogicalResult setTraining();
  void declareOrigin();
  void declareParameters();
  void declareCopied();
  void setSource(train::SourceAttr from, plan::Parameter& parameter);
  void declareInputs(func::FuncOp function);
  int64_t input(func::FuncOp function, unsigned argument);
  void declareUnneededInputs();
  void constant(train::ConstantOp op);
  void loss(train::LossOp op);
  void output(train::OutputOp op);
  LogicalResult lower(func::FuncOp function, plan::InstructionList& list);

  Lowering l;
  const LowerOptions& options;
  ModuleOp module;
  func::FuncOp step;
  plan::Plan& plan;
  SmallVector<func::FuncOp> parts;  // a step of several micro-batches has them, before the body
  llvm::StringMap<int64_t> files, inputs;
  llvm::DenseMap<Attribute, int64_t> constants;  // buffers by value: the evaluation reads those of the step
};

template <typename List>
void addAll(ArrayAttr strings, List& to) {
  for (auto one : strings.getAsRange<StringAttr>()) *to.Add() = one.str();
}

void StepLowering::setHeader() {
  plan.set_version(plan::kPlanVersion);
  plan.set_producer("sheaf " SHEAF_VERSION);
  if (auto model = module->getAttrOfType<StringAttr>("train.model")) plan.set_model(model.str());
  if (auto decisions = module->getAttrOfType<ArrayAttr>("train.decisions"))
    addAll(decisions, *plan.mutable_decisions());
  plan.set_ranks(l.from.ranks);
  plan.set_zero_stage(static_cast<int32_t>(zero::moduleInteger(module, "zero.stage", 0)));
  plan.set_batch(zero::moduleInteger(module, "train.batch", l.from.ranks));
  plan.set_max_threads(static_cast<uint32_t>(options.maxThreads));
  for (const char* stream : {"compute", "communication"}) plan.add_streams(stream);
  plan.set_communicators(l.from.ranks > 1 ? kCommunicators : 0);
  plan.mutable_memory();
  const zero::Sharding& sharding = l.from.sharding;
  if (!sharding.hasNodes) return;
  if (sharding.nodes() > 1) plan.add_streams("network");
  plan.set_ranks_per_node(sharding.perNode);
  plan.set_network_stage(static_cast<int32_t>(zero::moduleInteger(module, "zero.network_stage", 0)));
}

void StepLowering::setTurns() {
  if (parts.empty()) return;
  for (func::FuncOp part : parts) plan.add_parts()->set_name(part.getName().str());
  const int64_t microBatches = zero::moduleInteger(module, "train.micro_batches", 1);
  const plan::MicroBatchGroups groups(microBatches);
  auto add = [&](int64_t first, int64_t end) {
    for (int64_t micro = 0; micro < end; ++micro) {
      plan::Turn& turn = *plan.add_turns();
      turn.set_part(static_cast<uint32_t>(first + groups.partOf(micro)));
      turn.set_micro_batch(static_cast<uint32_t>(micro));
    }
  };
  const int64_t counts = zero::partsOf(module, zero::kCountPrefix).size();
  // Each pass of counts takes all micro-batches, after the passes that it needs.
  for (int64_t first = 0; first < counts; first += groups.parts()) add(first, microBatches);
  add(counts, microBatches - 1);
  plan.set_micro_batches(microBatches);
  const auto dealing = module->getAttrOfType<StringAttr>("zero.dealing");
  plan.set_dealing(*plan::valueOf<plan::Dealing>(std::string_view(dealing.getValue())));
}

// The tool states the training in the module's attribute `train.training`.
LogicalResult StepLowering::setTraining() {
  auto given = module->getAttrOfType<DictionaryAttr>("train.training");
  if (!given) return success();
  plan::Training& to = *plan.mutable_training();
  auto text = [](DictionaryAttr from, StringRef name) {
    auto attribute = from.getAs<StringAttr>(name);
    return attribute ? attribute.str() : std::string();
  };
  auto real = [](DictionaryAttr from, StringRef name) {
    auto attribute = from.getAs<FloatAttr>(name);
    return attribute ? attribute.getValueAsDouble() : 0;
  };
  to.set_optimizer(text(given, "optimizer"));
  to.set_learning_rate(real(given, "learning_rate"));
  if (given.contains("schedule")) {
    Expected<plan::Schedule> schedule = plan::parseSchedule(text(given, "schedule"));
    if (!schedule.ok()) return module.emitError() << "train.training: " << schedule.status().message();
    *to.mutable_schedule() = std::move(*schedule);
  }
  if (given.contains("loss_scale")) {
    Expected<std::optional<plan::LossScale>> scale = plan::parseLossScale(text(given, "loss_scale"));
    if (!scale.ok()) return module.emitError() << "train.training: loss scale: " << scale.status().message();
    if (*scale) *to.mutable_loss_scale() = std::move(**scale);
  }
  if (auto groups = given.getAs<ArrayAttr>("groups"))
    for (auto entry : groups.getAsRange<DictionaryAttr>()) {
      plan::ParameterGroup& group = *to.add_groups();
      group.set_name(text(entry, "name"));
      group.set_settings(text(entry, "settings"));
      if (entry.contains("learning_rate")) group.set_learning_rate(real(entry, "learning_rate"));
    }
  to.set_clip_norm(real(given, "clip_norm"));
  to.set_on_nan(plan::valueOf<plan::Training::OnNan>(text(given, "on_nan")).value_or(plan::Training::STOP));
  if (auto seed = given.getAs<IntegerAttr>("seed")) to.set_seed(seed.getInt());
  to.set_reduce_order(
      plan::valueOf<plan::Training::ReduceOrder>(text(given, "reduce_order")).value_or(plan::Training::TREE));
  return success();
}

// The options are known to the tool that compiles.
void StepLowering::declareOrigin() {
  using Parts = google::protobuf::RepeatedPtrField<plan::Origin::Part>;
  auto declare = [&](StringRef name, Parts* (plan::Origin::*parts)()) {
    auto origin = module->getAttrOfType<DictionaryAttr>(name);
    if (!origin) return;
    plan.mutable_origin()->set_leaves(origin.getAs<IntegerAttr>("leaves").getInt());
    for (auto [piece, hash] : llvm::zip(origin.getAs<ArrayAttr>("names").getAsRange<StringAttr>(),
                                        origin.getAs<ArrayAttr>("hashes").getAsRange<StringAttr>())) {
      uint64_t value = 0;
      hash.getValue().getAsInteger(16, value);
      plan::Origin::Part& part = *(plan.mutable_origin()->*parts)()->Add();
      part.set_name(piece.str());
      part.set_hash(value);
    }
  };
  declare("train.evaluation_origin", &plan::Origin::mutable_evaluation);
  declare("train.origin", &plan::Origin::mutable_step);
}

void StepLowering::setSource(train::SourceAttr from, plan::Parameter& parameter) {
  if (!from) return;
  auto [entry, fresh] = files.try_emplace(from.getFile().getValue(), files.size());
  if (fresh) plan.add_files()->set_path(from.getFile().str());
  plan::Source& source = *parameter.mutable_source();
  source.set_file(static_cast<uint32_t>(entry->second));
  source.set_offset(from.getOffset());
  source.set_length(from.getLength());
}

void setTensor(plan::Parameter& made, RankedTensorType type, ArrayRef<int64_t> permutation, ArrayAttr aliases) {
  made.set_type(elementTypeOf(type.getElementType()));
  made.mutable_shape()->Add(type.getShape().begin(), type.getShape().end());
  made.mutable_permutation()->Add(permutation.begin(), permutation.end());
  if (aliases) addAll(aliases, *made.mutable_aliases());
}

void StepLowering::declareParameters() {
  SymbolTable symbols(module);
  for (auto& [name, storage] : l.places.buckets)
    for (auto [symbol, offset] :
         llvm::zip(storage.op.getParameters().getAsRange<FlatSymbolRefAttr>(), storage.op.getOffsets())) {
      auto parameter = symbols.lookup<train::ParameterOp>(symbol.getValue());
      auto type = cast<RankedTensorType>(parameter.getType());
      plan::Parameter& made = *plan.add_parameters();
      made.set_name(train::nameOf(parameter.getSymName()).str());
      setTensor(made, type, parameter.getPermutation().value_or(ArrayRef<int64_t>()),
                parameter->getAttrOfType<ArrayAttr>(train::kAliasesAttr));
      made.set_trainable(bool(storage.op.getOptimizer()));
      made.set_bucket(static_cast<uint32_t>(storage.index));
      made.set_offset(offset);
      setSource(parameter.getSource().value_or(train::SourceAttr()), made);
      auto sourceType = parameter->getAttrOfType<TypeAttr>("train.source_type");
      if (sourceType && sourceType.getValue() != type.getElementType())
        made.set_source_type(elementTypeOf(sourceType.getValue()));
      l.builder.draft.parameterValues.push_back(parameter.getValue().value_or(ElementsAttr()));
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
    plan::Parameter& made = *plan.add_copied();
    made.set_name(name.str());
    auto permutation = entry.getAs<DenseI64ArrayAttr>("permutation");
    setTensor(made, cast<RankedTensorType>(entry.getAs<TypeAttr>("type").getValue()),
              permutation ? permutation.asArrayRef() : ArrayRef<int64_t>(), entry.getAs<ArrayAttr>("aliases"));
    made.set_constant(bool(entry.get("constant")));
    setSource(entry.getAs<train::SourceAttr>("source"), made);
    l.builder.draft.copiedValues.push_back(entry.getAs<ElementsAttr>("value"));
  }
}

// The step and the evaluation share inputs by name.
int64_t StepLowering::input(func::FuncOp function, unsigned argument) {
  StringRef name = function.getArgAttrOfType<StringAttr>(argument, "train.name").getValue();
  auto [entry, fresh] = inputs.try_emplace(name, inputs.size());
  if (!fresh) return entry->second;
  auto type = cast<RankedTensorType>(function.getArgument(argument).getType());
  auto has = [&](StringRef attribute) { return bool(function.getArgAttr(argument, attribute)); };
  plan::Input& made = *plan.add_inputs();
  made.set_name(name.str());
  made.set_type(elementTypeOf(type.getElementType()));
  made.mutable_shape()->Add(type.getShape().begin(), type.getShape().end());
  made.set_whole(has("train.whole"));
  made.set_row_mask(has("train.row_mask"));
  made.set_row_index(has("train.row_index"));
  made.set_tokens(has("train.tokens"));
  made.set_perplexity(has("train.perplexity"));
  made.set_ids(has("train.ids"));
  made.set_shifted(has("train.shifted"));
  if (auto classes = function.getArgAttrOfType<IntegerAttr>(argument, "train.classes"))
    made.set_classes(classes.getInt());
  if (auto ignored = function.getArgAttrOfType<IntegerAttr>(argument, "train.ignored_label"))
    made.set_ignored_label(ignored.getInt());
  return entry->second;
}

// Those of the model that no section reads.
void StepLowering::declareUnneededInputs() {
  if (auto all = module->getAttrOfType<ArrayAttr>(train::kModelInputsAttr))
    for (auto name : all.getAsRange<StringAttr>())
      if (!inputs.contains(name.getValue())) plan.add_unneeded_inputs(name.str());
}

void StepLowering::declareInputs(func::FuncOp function) {
  for (auto [i, argument] : llvm::enumerate(function.getArguments())) {
    StringRef name = function.getArgAttrOfType<StringAttr>(i, "train.name").getValue();
    const int64_t index = input(function, i);
    l.places[argument] = {l.builder.buffer(name, plan::ACTIVATIONS, bytesOf(argument))};
    l.builder.add(kComputeStream, name, {l.places.operand(argument, kWrite)})
        .mutable_input()
        ->set_input(static_cast<uint32_t>(index));
  }
}

void StepLowering::constant(train::ConstantOp op) {
  auto [entry, fresh] = constants.try_emplace(op.getValue(), kNoBuffer);
  // A step of one micro-batch has each constant once.
  const bool shares = l.builder.appendsTo(*plan.mutable_evaluation()) || !parts.empty();
  if (fresh || !shares) {
    entry->second = l.builder.buffer("constant", plan::CONSTANTS, bytesOf(op.getResult()), true);
    plan.add_constants()->set_buffer(static_cast<uint32_t>(entry->second));
    l.builder.draft.constantValues.push_back(op.getValue());
  }
  l.places[op.getResult()] = {entry->second};
}

void StepLowering::loss(train::LossOp op) {
  const bool global = l.from.ranks > 1;
  Operand value = l.places.operand(op.getValue(), kRead);
  if (global) {
    Operand sum{l.builder.buffer("loss", plan::ACTIVATIONS, 4), 0, 4, 0, kWrite};
    l.zero.sumOverRanks("loss", plan::F32, value, sum);
    value = sum;
    value.access = kRead;
  }
  l.builder.write("loss", plan::LOSS, value, 0, global ? kCommunicationStream : kComputeStream);
  if (l.zero.skipsUpdates()) l.zero.judgeLoss(value);
}

void StepLowering::output(train::OutputOp op) {
  const auto kind = plan::valueOf<plan::OutputKind>(std::string_view(op.getKind()));
  auto type = cast<RankedTensorType>(op.getValue().getType());
  Operand value = l.places.operand(op.getValue(), kRead);
  if (const int64_t bytes = bytesOf(op.getValue()); value.bytes != bytes) {
    // The host takes dense rows.
    const Location from = l.places.of(op.getValue());
    const int64_t width = widthOf(type.getElementType()), columns = from.rowBytes / width;
    const int64_t rows = type.getNumElements() / columns;
    Operand dense{l.builder.buffer("output", plan::ACTIVATIONS, bytes), 0, bytes, 0, kWrite};
    l.builder.copy(labelOf(op), value, dense, {width, {rows, columns}, {from.rowStride / width, 1}, {columns, 1}});
    value = dense;
    value.access = kRead;
  }
  int64_t tensor = 0;
  if (*kind == plan::TENSOR) {
    tensor = plan.outputs_size();
    plan::Output& made = *plan.add_outputs();
    made.set_name(op.getName().str());
    made.set_type(elementTypeOf(type.getElementType()));
    made.mutable_shape()->Add(type.getShape().begin(), type.getShape().end());
    made.set_axis(static_cast<uint32_t>(op.getAxis()));
    made.set_blocks(op.getBlocks());
  }
  l.builder.write(op.getName(), *kind, value, tensor);
  if (*kind == plan::LOSS && l.zero.skipsUpdates()) l.zero.judgeLoss(value);
}

FailureOr<Draft> StepLowering::run() {
  for (StringRef prefix : {zero::kCountPrefix, zero::kAccumulatePrefix})
    llvm::append_range(parts, zero::partsOf(module, prefix));
  setHeader();
  setTurns();
  if (failed(setTraining())) return failure();
  if (auto floor = module->getAttrOfType<DictionaryAttr>("train.floor")) {
    FailureOr<plan::StepWork> work = stepWorkOf(module, floor);
    if (failed(work)) return failure();
    *plan.mutable_floor() = std::move(*work);
  }
  declareOrigin();
  const bool judges = l.zero.skipsUpdates();
  for (func::FuncOp function : parts) l.places.analyzeUses(function.getBody().front(), judges);
  for (func::FuncOp function : zero::functionsOf(module)) l.places.analyzeUses(function.getBody().front(), judges);
  l.zero.declareStorage();
  declareParameters();
  declareCopied();
  l.zero.declareScalarBuffers();
  if (failed(l.zero.declareLossScale())) return failure();
  for (auto [part, function] : llvm::zip(*plan.mutable_parts(), parts)) {
    l.zero.placeGradients(function);
    if (failed(lower(function, *part.mutable_instructions()))) return failure();
  }
  if (!parts.empty()) l.zero.placeGradients(step);
  if (step && failed(lower(step, *plan.mutable_body()))) return failure();
  l.zero.advanceLossScale();
  l.zero.computeScalars(parts);
  if (func::FuncOp evaluation = zero::evaluationOf(module))
    if (failed(lower(evaluation, *plan.mutable_evaluation()))) return failure();
  declareUnneededInputs();
  l.zero.declareCommunicators();
  dropUnusedBuffers(plan);
  return std::move(l.builder.draft);
}

LogicalResult StepLowering::lower(func::FuncOp function, plan::InstructionList& list) {
  l.builder.appendTo(list);
  declareInputs(function);
  l.zero.placeNorms(function);
  for (Operation& op : llvm::make_early_inc_range(function.getBody().front())) {
    if (isa<func::ReturnOp>(op)) break;
    if (auto constantOp = dyn_cast<train::ConstantOp>(op)) {
      if (!constantOp->use_empty()) constant(constantOp);
    } else if (auto lossOp = dyn_cast<train::LossOp>(op)) {
      loss(lossOp);
    } else if (auto result = dyn_cast<train::OutputOp>(op)) {
      output(result);
    } else if (op.getDialect()->getNamespace() == "zero") {
      if (failed(l.zero.lower(&op))) return failure();
    } else if (failed(lowerOp(l, &op))) {
      return failure();
    }
  }
  return success();
}

}  // namespace

FailureOr<Draft> lowerToPlan(ModuleOp module, const LowerOptions& options) {
  FailureOr<Draft> draft = StepLowering(module, options).run();
  if (failed(draft)) return failure();
  llvm::DenseSet<Operation*> kernels;
  for (Operation* fusion : draft->fusions) kernels.insert(fusion->getParentOp());
  for (Operation& op : llvm::make_early_inc_range(*module.getBody()))
    if (!kernels.contains(&op)) op.erase();
  module->removeAttr(train::kModelInputsAttr);
  for (StringRef name :
       {"train.model", "train.training", "train.groups", "train.decisions", "train.copied", "train.floor",
        "train.origin", "train.evaluation_origin", "train.ranks", "train.batch", "train.exported_batch",
        "train.micro_batches", "zero.stage", "zero.dealing", "zero.ranks_per_node", "zero.network_stage"})
    module->removeAttr(name);
  return draft;
}

}  // namespace sheaf::plan_ir
