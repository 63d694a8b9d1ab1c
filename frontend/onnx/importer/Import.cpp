// The driver: what the step consists of, its inputs and loss, and the module's clean-up.
#include "frontend/onnx/importer/Import.h"

#include <deque>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/importer/Labels.h"
#include "frontend/onnx/survey/Surveyor.h"
#include "frontend/onnx/training/TrainingInfo.h"
#include "ir/Train/BatchNorm.h"
#include "ir/Train/Outputs.h"
#include "ir/Train/ParameterNames.h"
#include "ir/Train/StopGradient.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Whether a gradient can pass from a result of the op to this operand.
bool passesGradient(OpOperand& use) {
  Operation* op = use.getOwner();
  auto isFloatTensor = [](Type type) { return isa<FloatType>(getElementTypeOrSelf(type)); };
  if (!isFloatTensor(use.get().getType())) return false;
  if (isa<train::LossOp, UnrealizedConversionCastOp>(op)) return true;  // the latter stands in for a node in a survey
  return isa<train::Differentiable>(op) && llvm::any_of(op->getResultTypes(), isFloatTensor);
}

// "--freeze '.*' freezes all 6 parameters". `unnamed`: so many more are not named by --train.
std::string whyAllAreFrozen(const ImportOptions& options, int64_t frozen, int64_t unnamed) {
  auto given = [](const char* option, const std::vector<std::string>& patterns) {
    std::vector<std::string> all;
    for (const std::string& pattern : patterns) all.push_back(cat(option, " '", pattern, "'"));
    return llvm::join(all, " ");
  };
  const std::string freeze = given("--freeze", options.freeze);
  const bool several = options.freeze.size() > 1;
  if (options.train.empty() && frozen == 1) return freeze + " freezes the only parameter";
  if (options.train.empty())
    return cat(freeze, several ? " freeze all " : " freezes all ", counted(frozen, "parameter"));
  return cat(freeze, several ? " freeze" : " freezes", " all that ", given("--train", options.train), " names, ",
             counted(frozen, "parameter"), unnamed ? cat("; it does not name the other ", unnamed) : "");
}

}  // namespace

// A subgraph may yield a value of its surroundings.
void forEachInput(const onnx::NodeProto& node, llvm::function_ref<void(StringRef)> visit) {
  for (const std::string& name : node.input()) visit(name);
  for (const onnx::AttributeProto& attribute : node.attribute())
    if (attribute.has_g()) {
      for (const onnx::NodeProto& inner : attribute.g().node()) forEachInput(inner, visit);
      for (const onnx::ValueInfoProto& output : attribute.g().output()) visit(output.name());
    }
}

std::vector<std::string> Importer::outputs() const {
  std::vector<std::string> names;
  for (const onnx::ValueInfoProto& output : model.graph().output())
    if (!model.artifacts() || !model.artifacts()->outputs.contains(output.name())) names.push_back(output.name());
  return names;
}

std::vector<std::string> Importer::results() const {
  std::vector<std::string> names;
  if (options.form != Form::kOutputs) names.push_back(lossName);
  if (evaluates())
    llvm::append_range(names, outputs());
  else if (model.artifacts())
    for (const TrainingArtifacts::Gradient& gradient : model.artifacts()->gradients) names.push_back(gradient.value);
  return names;
}

void Importer::markNeeded(const std::vector<std::string>& outputs) {
  llvm::StringMap<int> producer;
  for (auto [i, node] : llvm::enumerate(nodes))
    for (const std::string& name : node->output()) producer.try_emplace(name, int(i));
  needed.assign(nodes.size(), false);
  std::deque<std::string> pending(outputs.begin(), outputs.end());
  while (!pending.empty()) {
    auto it = producer.find(pending.front());
    pending.pop_front();
    if (it == producer.end() || needed[it->second]) continue;
    needed[it->second] = true;
    forEachInput(*nodes[it->second], [&](StringRef name) { pending.push_back(name.str()); });
  }
}

std::string Importer::whyUnmade(StringRef name) const {
  if (initializers.contains(name) || isMadeByNode(name)) return "";
  std::vector<std::string> names = namesOfValues();
  for (const onnx::ValueInfoProto* input : dataInputs) {
    if (input->name() == name) return "";
    names.push_back(input->name());
  }
  for (const auto& initializer : initializers) names.push_back(initializer.first().str());
  llvm::erase_if(names, [&](const std::string& other) { return other == name; });
  return "nothing makes '" + name.str() + "', which is not an input, an initializer or an output of a node" +
         didYouMean(names, name);
}

LogicalResult Importer::checkMade() const {
  llvm::StringSet<> made;
  for (const onnx::NodeProto* node : nodes)
    for (const std::string& name : node->output()) made.insert(name);
  for (const onnx::ValueInfoProto* input : dataInputs) made.insert(input->name());
  auto isMade = [&](StringRef name) { return name.empty() || made.contains(name) || initializers.contains(name); };
  for (const std::string& name : results())
    if (!isMade(name)) return emitError(model.location()) << "output '" << name << "': " << whyUnmade(name);
  for (auto [i, node] : llvm::enumerate(nodes))
    for (const std::string& name : node->input())
      if (needed[i] && !isMade(name))
        return emitError(locationOf(*node, int64_t(i) + 1))
               << "node '" << (node->name().empty() && node->output_size() ? node->output(0) : node->name()) << "' ("
               << node->op_type() << "): " << whyUnmade(name);
  return success();
}

LogicalResult Importer::prepare() {
  const onnx::GraphProto& graph = model.graph();
  auto error = [&] { return emitError(model.location()); };
  if (options.ranks < 1) return error() << "--ranks must be at least 1";
  if (options.batch < 0) return error() << "--batch must be positive";
  for (const onnx::NodeProto& node : graph.node()) nodes.push_back(&node);
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers[tensor.name()] = &tensor;
  std::vector<const onnx::ValueInfoProto*> inputs;
  for (const onnx::ValueInfoProto& input : graph.input()) inputs.push_back(&input);
  if (training) {
    for (const onnx::NodeProto& node : training->nodes()) nodes.push_back(&node);
    for (const onnx::TensorProto* tensor : training->initializers()) initializers.try_emplace(tensor->name(), tensor);
  }
  // An initializer that is also an input has a default that nothing overrides here.
  llvm::StringSet<> names;
  if (training) inputs.insert(inputs.end(), training->inputs().begin(), training->inputs().end());
  for (const onnx::ValueInfoProto* input : inputs)
    if (!initializers.contains(input->name()) && names.insert(input->name()).second) dataInputs.push_back(input);

  if (options.form == Form::kOutputs || succeeded(chooseLoss()))
    markNeeded(results());
  else if (surveyor)
    lossName.clear(), markNeeded(surveyor->outputs(*this));
  else
    return failure();
  std::vector<const onnx::NodeProto*> used;
  for (auto [i, node] : llvm::enumerate(nodes))
    if (needed[i]) used.push_back(node);
  if (!surveyor && failed(checkMade())) return failure();
  if (training)
    for (const onnx::NodeProto* node : used)
      for (const std::string& input : node->input())
        if (llvm::is_contained(training->others(), input))
          return error() << "training_info: update_binding changes '" << input
                         << "', which the loss reads but which no Gradient operator names";
  if (failed(parameters.analyse(model, used, initializers, options))) return failure();
  if (training) parameters.trainOnly(training->variables());
  warnOfTraps(model, used, parameters);
  detached = Detached(model, used);
  if (const auto missing = detached.missing(); !missing.empty() && !evaluates())
    emitWarning(model.location())
        << "the model detaches values (Tensor.detach), and the exporter's optimizer has removed "
        << "or merged others (" << listNames(missing, 4)
        << "): gradients may pass, or stop, where they do not in PyTorch. Export with "
        << "optimize=False";
  // TorchScript's exporter writes no metadata, and now and then a graph whose shapes do not fit.
  const bool torchScript = model.proto().producer_name() == "pytorch" && llvm::all_of(used, [](const auto* node) {
                             return Model::metadata(node->metadata_props(), kFxNode).empty();
                           });
  if (torchScript)
    emit.setMismatchHint(
        ". With these sizes the export is invalid, also for ONNX Runtime: TorchScript's exporter has fixed a size, or "
        "lost a conversion. Export with dynamo=True");
  statedDropout = statedDropoutMode(model, used);
  return success();
}

FailureOr<Tensor> Importer::importLoss() {
  // Values go with their last use: folded masks are large.
  llvm::StringMap<int64_t> uses;
  for (auto [i, node] : llvm::enumerate(nodes))
    if (needed[i]) forEachInput(*node, [&](StringRef name) { ++uses[name]; });
  for (const std::string& name : results()) ++uses[name];
  for (auto [i, node] : llvm::enumerate(nodes)) {
    if (!needed[i]) continue;
    if (failed(importNode(*node, root, int64_t(i) + 1))) return failure();
    forEachInput(*node, [&](StringRef name) {
      if (--uses[name] == 0) root.values.erase(name);
    });
  }
  if (options.form == Form::kOutputs) return Tensor();
  // A survey that does not get to a loss.
  if (surveyor && (lossName.empty() || surveyor->dependenciesUnknown())) return failure();
  emit.enter(model.location(), "output '" + lossName + "'");
  GraphValue* value = lookup(lossName, root, nullptr);
  if (!value) return failure();
  Tensor loss = value->tensor;
  if (value->unknown) return failure();
  if (!loss) return emit.error() << "is a sequence, not a tensor";
  if (request) {
    if (isTaken(request->target))
      return emit.error() << "the model already has a value named '" << request->target
                          << "'; name the input that --loss adds by target=NAME";
    std::string target;
    const std::optional<train::Place> place = placeOfOutput(request->output, loss);
    loss = buildLoss(*this, *request, loss, rows, place, [&](RankedTensorType type) {
      llvm::raw_string_ostream(target) << type;
      return addArgument(request->target, type);
    });
    if (!loss) return failure();
    decide("loss: " + request->text() + " with the input " + request->target + ": " + target);
  }
  if (!loss.isFloat()) return emit.error() << "the loss is not of a floating-point type, so it has no gradient";
  if (loss.count() != 1)
    return emit.error() << "the loss has the shape " << shapeText(loss.shape()) << ", not that of one number; "
                        << remedyForShape(loss.rank());
  statePerplexity(loss);
  loss = emit.cast(emit.reshape(loss, {}), builder.getF32Type());
  return loss;
}

LogicalResult Importer::finishEvaluation(const Tensor& loss) {
  if (loss) train::LossOp::create(builder, model.location(), emit.materialize(loss));
  for (const std::string& output : outputs()) {
    emit.enter(model.location(), "output '" + output + "'");
    if (output == lossName && !request) continue;
    GraphValue* value = lookup(output, root, nullptr);
    if (!value) return failure();
    if (!value->tensor) {
      decide("output " + output + ": a sequence, which is left out");
      continue;
    }
    train::OutputOp::create(builder, emit.location(), "tensor", output, emit.materialize(value->tensor));
  }
  func::ReturnOp::create(builder, model.location());
  Block& body = step.getBody().front();
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op)) op.erase();
  llvm::StringSet<> read;
  for (auto op : body.getOps<train::ReadOp>()) read.insert(op.getParameter());
  for (auto parameter : llvm::make_early_inc_range(module->getOps<train::ParameterOp>())) {
    parameter->removeDiscardableAttr("train.reason");
    if (!read.contains(parameter.getSymName())) parameter.erase();
  }
  if (llvm::all_of(step.getArguments(), [](Value argument) { return argument.use_empty(); }))
    return emit.error() << "the outputs depend on no input";
  std::string name = "row_mask";
  while (llvm::any_of(dataInputs, [&](const onnx::ValueInfoProto* input) { return input->name() == name; }) ||
         (request && request->target == name))
    name += "_";
  auto attributes = builder.getDictionaryAttr({builder.getNamedAttr("train.name", builder.getStringAttr(name)),
                                               builder.getNamedAttr("train.row_mask", builder.getUnitAttr())});
  return step.insertArgument(step.getNumArguments(), RankedTensorType::get({rows}, builder.getF32Type()), attributes,
                             model.location());
}

LogicalResult Importer::applyGradients() {
  (*module)->setAttr("train.gradients_given", builder.getUnitAttr());
  const TrainingArtifacts& artifacts = *model.artifacts();
  if (options.optimizer.empty() && !artifacts.optimizerError.empty())
    return emitError(model.location()) << artifacts.optimizerError;
  if (!artifacts.optimizerError.empty())
    decide("nothing in optimizer_model.onnx is used, since --optimizer is given and an error in it: " +
           artifacts.optimizerError);
  if (!artifacts.optimizer.empty())
    (*module)->setAttr("train.default_optimizer", builder.getStringAttr(artifacts.optimizer));
  if (artifacts.clipNorm > 0) {
    (*module)->setAttr("train.default_clip_norm", builder.getF64FloatAttr(artifacts.clipNorm));
    std::string text = "optimizer_model.onnx: clips gradients to a norm of ";
    llvm::raw_string_ostream(text) << llvm::format("%g", artifacts.clipNorm) << ", unless --clip-norm gives another";
    decide(text);
  }
  for (const auto& [name, value] : model.artifacts()->gradients) {
    auto parameter = module->lookupSymbol<train::ParameterOp>(train::symbolOf(name));
    if (!parameter || !parameter.getTrainable()) continue;
    emit.enter(model.location(), "the gradient of '" + name + "'");
    GraphValue* found = lookup(value, root, nullptr);
    if (!found) return failure();
    auto type = cast<RankedTensorType>(parameter.getType());
    if (!found->tensor) return emit.error() << "is not a tensor";
    Tensor gradient = emit.cast(found->tensor, type.getElementType());
    if (!gradient) return failure();
    if (gradient.shape() != type.getShape()) return emit.error() << "has another shape than the parameter";
    train::UpdateOp::create(builder, parameter.getLoc(), parameter.getSymName(), "optimizer",
                            emit.materialize(gradient));
  }
  return success();
}

// Adds one line of decisions with all that is trained and may be a buffer, and with what freezes it. The tools print
// it.
void Importer::listPossibleBuffers() {
  constexpr size_t kNamed = 12;
  std::vector<std::string> buffers, others;
  for (auto parameter : module->getOps<train::ParameterOp>())
    if (parameter.getTrainable()) {
      std::string name = train::nameOf(parameter.getSymName()).str();
      (parameters.mayBeBuffer(name) ? buffers : others).push_back(std::move(name));
    }
  if (buffers.empty()) return;
  const bool one = buffers.size() == 1;
  const std::string text = listNames(buffers, kNamed) + (one ? " is" : " are") + " trained, but may be " +
                           (one ? "a buffer" : "buffers") +
                           ": the file does not say which tensors are parameters, and " +
                           (one ? "this one is not used as weights usually are. To keep it"
                                : "these are not used as weights usually are. To keep them") +
                           ", compile with --freeze '" + freezePattern(buffers, others) + "'";
  decide(llvm::Twine(kPossibleBuffers) + text);
}

LogicalResult Importer::finish(const Tensor& loss) {
  emit.enter(model.location(), "output '" + lossName + "'");
  emitStatistics(*this, step);
  train::LossOp::create(builder, model.location(), emit.materialize(loss));
  if (model.artifacts() && failed(applyGradients())) return failure();
  func::ReturnOp::create(builder, model.location());

  // Whatever the loss does not depend on, last first; and what a gradient reaches.
  Block& body = step.getBody().front();
  DenseSet<Value> reached;
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(body))) {
    if (isOpTriviallyDead(&op)) {
      op.erase();
      continue;
    }
    bool onPath = isa<train::LossOp>(op) || llvm::any_of(op.getResults(), [&](Value v) { return reached.contains(v); });
    if (!onPath) continue;
    for (OpOperand& operand : op.getOpOperands())
      if (passesGradient(operand)) reached.insert(operand.get());
  }
  llvm::StringMap<std::pair<bool, int64_t>> uses;  // by parameter: whether a gradient arrives, how many uses
  for (auto read : body.getOps<train::ReadOp>()) {
    int64_t count = std::distance(read->use_begin(), read->use_end());
    uses[read.getParameter()] = {reached.contains(read.getResult()), count};
  }
  // Where gradients are given, they say what is trained.
  if (model.artifacts())
    for (auto& entry : uses) entry.second.first = false;
  llvm::StringSet<> followed;
  for (auto update : body.getOps<train::UpdateOp>()) {
    if (train::isStatistic(update))
      followed.insert(update.getParameter());
    else
      uses[update.getParameter()].first = true;
  }
  int64_t trainable = 0, frozen = 0, unnamed = 0;  // frozen by --freeze, not named by --train
  for (auto parameter : llvm::make_early_inc_range(module->getOps<train::ParameterOp>())) {
    auto reason = parameter->getAttrOfType<StringAttr>("train.reason");
    parameter->removeDiscardableAttr("train.reason");
    if (followed.contains(parameter.getSymName())) continue;
    std::string because = reason ? ", " + reason.str() : "";
    frozen += reason && reason.getValue() == kNamedByFreeze;
    unnamed += reason && reason.getValue() == kNotNamedByTrain;
    auto it = uses.find(parameter.getSymName());
    if (it == uses.end()) {
      decide(parameter.getSymName() + ": not needed by the loss");
      parameter.erase();
      continue;
    }
    if (parameter.getTrainable() && !it->second.first) {
      parameter.setTrainable(false);
      because = ", no gradient reaches it";
    }
    if (it->second.second > 1) because += ", tied (" + std::to_string(it->second.second) + " uses)";
    trainable += parameter.getTrainable();
    decide(parameter.getSymName() + (parameter.getTrainable() ? ": trainable" : ": frozen") + because);
  }
  listPossibleBuffers();
  warnOfIdleDropouts(*this);
  if (trainable == 0) {
    if (frozen > 0) return emit.error() << "nothing is trainable: " << whyAllAreFrozen(options, frozen, unnamed);
    auto error = emit.error() << "nothing is trainable: the loss depends on no parameter that may change. ";
    for (auto stop : body.getOps<train::StopGradientOp>())
      if (reached.contains(stop.getResult()))
        if (auto name = dyn_cast<NameLoc>(stop.getLoc()))
          return error << "The gradient stops at node '" << name.getName().getValue()
                       << "' (Tensor.detach): no parameter is used after it";
    return error << "The model's weights must be initializers of floating-point type, not inputs or constants; see "
                    "--train";
  }
  for (int64_t i = int64_t(step.getNumArguments()) - 1; i >= 0; --i)
    if (step.getArgument(i).use_empty()) {
      decide("input " + step.getArgAttrOfType<StringAttr>(i, "train.name").getValue() + ": not needed by the loss");
      (void)step.eraseArgument(i);
    }
  if (step.getNumArguments() == 0) return emit.error() << "the loss depends on no input";
  return success();
}

LogicalResult Importer::listCopied() {
  llvm::StringSet<> known, used;
  for (auto parameter : module->getOps<train::ParameterOp>()) {
    known.insert(train::nameOf(parameter.getSymName()));
    if (auto aliases = parameter->getAttrOfType<ArrayAttr>(train::kAliasesAttr))
      for (auto alias : aliases.getAsRange<StringAttr>()) known.insert(alias.getValue());
  }
  for (const onnx::NodeProto& node : model.graph().node())
    forEachInput(node, [&](StringRef name) { used.insert(name); });
  SmallVector<Attribute> copied;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    const ParameterRole& role = parameters.role(tensor, nullptr, -1);
    const bool isUsed = used.contains(tensor.name());
    const Type type = elementType(builder.getContext(), tensor.data_type());
    if (!type || !parameters.isOfModule(model, tensor, isUsed) || known.contains(role.name)) continue;
    emit.enter(model.location(), "initializer '" + tensor.name() + "'");
    FailureOr<Initial> initial = Initial{};
    if (elementCount(role.shape) != 0) initial = initialOf(role, tensor);
    if (failed(initial)) return failure();
    known.insert(role.name);
    NamedAttrList entry;
    entry.set("name", builder.getStringAttr(role.name));
    entry.set("type", TypeAttr::get(RankedTensorType::get(role.shape, type)));
    if (role.permutation) entry.set("permutation", builder.getDenseI64ArrayAttr(*role.permutation));
    if (initial->source) entry.set("source", initial->source);
    if (initial->value) entry.set("value", initial->value);
    if (!role.parameter && isUsed) entry.set("constant", builder.getUnitAttr());
    if (!role.aliases.empty())
      entry.set("aliases", builder.getStrArrayAttr(SmallVector<StringRef>(role.aliases.begin(), role.aliases.end())));
    copied.push_back(entry.getDictionary(builder.getContext()));
  }
  if (!copied.empty()) (*module)->setAttr("train.copied", builder.getArrayAttr(copied));
  return success();
}

LogicalResult Importer::readTrainingForm() {
  if (!model.proto().training_info_size() || !options.loss.empty() || !options.optimizer.empty() ||
      options.form == Form::kOutputs)
    return success();
  auto form = TrainingForm::read(model);
  if (failed(form)) return failure();
  training = std::move(*form);
  return success();
}

const Parameters* Importer::analyse() {
  return succeeded(readTrainingForm()) && succeeded(prepare()) ? &parameters : nullptr;
}

OwningOpRef<ModuleOp> Importer::run() {
  if (failed(readTrainingForm())) return {};
  module = ModuleOp::create(model.location());
  builder.setInsertionPointToEnd(module->getBody());
  step = func::FuncOp::create(builder, model.location(), "step", builder.getFunctionType({}, {}));
  builder.setInsertionPointToEnd(step.addEntryBlock());
  emit.enter(model.location(), "the model");
  if (failed(prepare()) || failed(bindDimensions())) return {};
  if (training && failed(runInitialization(*this))) return {};
  auto loss = importLoss();
  if (failed(loss) || failed(evaluates() ? finishEvaluation(*loss) : finish(*loss))) return {};
  if (training && !evaluates() && failed(emitOptimizers(*this, *training, *module))) return {};
  // Initializers of a training algorithm may be its state.
  if (!training && !evaluates() && failed(listCopied())) return {};
  (*module)->setAttr("train.ranks", builder.getI64IntegerAttr(leaves()));
  if (leaves() != options.pieces()) (*module)->setAttr("train.widen_to", builder.getI64IntegerAttr(options.pieces()));
  if (options.microBatches > 1)
    (*module)->setAttr("train.micro_batches", builder.getI64IntegerAttr(options.microBatches));
  (*module)->setAttr("train.batch", builder.getI64IntegerAttr(batch));
  if (exportedRows > 0) (*module)->setAttr("train.exported_batch", builder.getI64IntegerAttr(exportedRows));
  (*module)->setAttr("train.model", builder.getStringAttr(model.path()));
  SmallVector<StringRef> names;
  for (const onnx::ValueInfoProto* input : dataInputs) names.push_back(input->name());
  (*module)->setAttr(train::kModelInputsAttr, builder.getStrArrayAttr(names));
  SmallVector<StringRef> texts(decisions.begin(), decisions.end());
  (*module)->setAttr("train.decisions", builder.getStrArrayAttr(texts));
  return std::move(module);
}

OwningOpRef<ModuleOp> importOnnx(MLIRContext& context, StringRef path, const ImportOptions& options) {
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  // The first error ends the import; what else the same node reports follows from it.
  bool refused = false;
  ScopedDiagnosticHandler first(&context, [&](Diagnostic& diagnostic) {
    return success(diagnostic.getSeverity() == DiagnosticSeverity::Error && std::exchange(refused, true));
  });
  auto model = Model::load(context, path);
  if (!model || failed(model->checkFiles())) return {};
  return Importer(context, *model, options).run();
}

}  // namespace sheaf::frontend
