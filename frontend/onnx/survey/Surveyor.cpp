#include "frontend/onnx/survey/Surveyor.h"

#include "frontend/onnx/ops/Softmax.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "runtime/base/Decisions.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// For dimensions that are not bound; most models take sequences of this length.
constexpr int64_t kAssumedSize = 64;
// As deep as functions and subgraphs are looked into where they are not imported.
constexpr int kMaxDepth = 32;
// Nodes that are looked at there: functions may call each other many times over.
constexpr int64_t kMaxScanned = 1 << 16;

std::string operatorName(const onnx::NodeProto& node) {
  bool plain = node.domain().empty() || node.domain() == "ai.onnx";
  return (plain ? "" : node.domain() + ".") + node.op_type();
}

std::string nodeName(const onnx::NodeProto& node) {
  return node.name().empty() && node.output_size() ? node.output(0) : node.name();
}

bool isUnknown(StringRef name, const Scope& scope) {
  for (const Scope* s = &scope; s; s = s->parent)
    if (auto it = s->values.find(name); it != s->values.end()) return it->second.unknown;
  return false;
}

void add(Survey::Parameters& total, ArrayRef<int64_t> shape, Type element) {
  int64_t elements = elementCount(shape).value_or(0);
  ++total.count;
  total.elements += elements;
  total.bytes += elements * ((element.getIntOrFloatBitWidth() + 7) / 8);
}

}  // namespace

Surveyor::Surveyor(MLIRContext& context, Survey& survey)
    : survey(survey), handler(&context, [this, &survey](Diagnostic& diagnostic) {
        std::string text = diagnostic.str();
        if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
          survey.notes.push_back(text);
        else if (importing)
          errors.push_back(text);
        else if (!llvm::is_contained(survey.obstacles, text))  // found again at every input
          survey.obstacles.push_back(text);
      }) {}

void Surveyor::unsupported(const onnx::NodeProto& node, int64_t opset) {
  std::string name = operatorName(node);
  for (Survey::Operator& known : survey.unsupported)
    if (known.name == name && known.opset == opset) return void(++known.count);
  survey.unsupported.push_back({name, opset, 1, nodeName(node), whyUnsupported(node.domain(), node.op_type()).str()});
}

void Surveyor::addRefusedNode(const onnx::NodeProto& node, StringRef error) {
  // The message without the node's name, which differs from node to node.
  std::string name = operatorName(node), text = error.str();
  if (size_t colon = text.find("): "); StringRef(text).starts_with("node '") && colon != std::string::npos)
    text = text.substr(colon + 3);
  // With sizes that were made up, shapes may not fit together.
  if (assumed) text += " (perhaps because sizes were assumed)";
  for (Survey::Operator& known : survey.refused)
    if (known.name == name && known.why == text) return void(++known.count);
  survey.refused.push_back({name, 0, 1, nodeName(node), text});
}

void Surveyor::importNode(Importer& importer, const onnx::NodeProto& node, Scope& scope, int64_t ordinal) {
  if (importer.isTooLarge()) {  // this has been said
    for (const std::string& output : node.output())
      if (!output.empty()) scope.values[output] = GraphValue{{}, std::nullopt, true};
    return;
  }
  bool known = true;
  forEachInput(node, [&](StringRef name) { known &= !isUnknown(name, scope); });
  bool imported = false;
  if (known) {
    // An outer node's errors are its own: those of the nodes in its body have been noted.
    std::vector<std::string> outer = std::move(errors);
    bool wasImporting = std::exchange(importing, true);
    errors.clear();
    imported = succeeded(importer.importOne(node, scope, ordinal));
    importing = wasImporting;
    if (!errors.empty()) addRefusedNode(node, errors.front());  // others follow from it
    errors = std::move(outer);
  } else {
    scan(importer, node, scope.function, 0);
  }
  for (const std::string& output : node.output()) {
    auto value = scope.values.find(output);
    bool defined = imported && value != scope.values.end() && !value->second.unknown;
    if (!output.empty() && !defined) scope.values[output] = standIn(importer, node, output, scope);
  }
}

void Surveyor::scan(const Importer& importer, const onnx::NodeProto& node, const onnx::FunctionProto* function,
                    int depth) {
  if (depth == kMaxDepth || ++scanned > kMaxScanned) return;
  Scope scope;
  scope.function = function;
  int64_t opset = importer.opsetOf(node, scope);
  const onnx::FunctionProto* called = importer.functionOf(node);
  if (called)
    for (const onnx::NodeProto& inner : called->node()) scan(importer, inner, called, depth + 1);
  else if (!importer.inTable(node, opset))
    unsupported(node, opset);
  for (const onnx::AttributeProto& attribute : node.attribute())
    if (attribute.has_g())
      for (const onnx::NodeProto& inner : attribute.g().node()) scan(importer, inner, function, depth + 1);
}

// A value of the type that the model states, which depends on the node's inputs; else an unknown one.
GraphValue Surveyor::standIn(Importer& importer, const onnx::NodeProto& node, StringRef output, Scope& scope) {
  GraphValue unknown{{}, std::nullopt, true};
  const onnx::ValueInfoProto* info = scope.root ? importer.model.valueType(output) : nullptr;
  if (!info || !info->type().has_tensor_type() || !info->type().tensor_type().has_shape()) return unknown;
  const auto& tensor = info->type().tensor_type();
  Type element = elementType(importer.builder.getContext(), tensor.elem_type());
  Shape shape;
  for (const auto& dim : tensor.shape().dim()) {
    auto size = importer.sizes.find(dim.dim_param());
    bool symbolic = !dim.has_dim_value() && size != importer.sizes.end();
    shape.push_back(dim.has_dim_value() ? dim.dim_value() : symbolic ? size->second : -1);
    if (shape.back() < 0) return unknown;
  }
  if (!element || !elementCount(shape)) return unknown;
  SmallVector<Value> operands;
  bool wasImporting = std::exchange(importing, true);
  for (const std::string& name : node.input()) {
    if (!name.empty() && isUnknown(name, scope)) unknownDependencies = true;
    GraphValue* value = name.empty() || isUnknown(name, scope) ? nullptr : importer.lookup(name, scope, &node);
    if (value && value->tensor && !value->tensor.constant()) operands.push_back(value->tensor.value());
  }
  importing = wasImporting;
  if (!importing) errors.clear();
  auto type = RankedTensorType::get(shape, element);
  Value value =
      UnrealizedConversionCastOp::create(importer.builder, importer.emit.location(), type, operands).getResult(0);
  return {Tensor(value), std::nullopt};
}

int64_t Surveyor::assume(StringRef dimension, StringRef input) {
  assumed = true;
  survey.unbound.emplace_back(dimension.str(), input.str());
  return kAssumedSize;
}

int64_t Surveyor::assumeBatch(int64_t ranks) {
  survey.batchAssumed = true;
  survey.notes.push_back("--batch is not given: one row a rank is assumed");
  return ranks;
}

std::vector<std::string> Surveyor::outputs(const Importer& importer) {
  std::vector<std::string> names;
  for (const onnx::ValueInfoProto& output : importer.model.graph().output()) {
    names.push_back(output.name());
    const auto& tensor = output.type().tensor_type();
    bool isFloat = isa_and_nonnull<FloatType>(elementType(importer.builder.getContext(), tensor.elem_type()));
    int rank = tensor.shape().dim_size();
    if (!output.type().has_tensor_type() || !isFloat || !tensor.has_shape()) continue;
    if (rank == 0) survey.losses.push_back(output.name());
    // Cross entropies take what goes into a softmax or a sigmoid.
    const std::optional<Squashed> from = squashed(importer.model, output.name());
    const bool binary = from ? from->by == Squashing::sigmoid || from->by == Squashing::logSigmoid
                             : rank >= 2 && tensor.shape().dim(rank - 1).dim_value() == 1;
    if (rank >= 2)
      survey.losses.push_back((binary ? "bce_with_logits(" : "cross_entropy(") +
                              (from ? from->operand : output.name()) + ")");
    if (rank >= 1) survey.losses.push_back("mse(" + output.name() + ")");
  }
  return names;
}

void Surveyor::finish(const Importer& importer, ModuleOp module) {
  std::vector<Model::Source> sources;
  survey.exact = bool(module);
  for (StringRef decision : importer.decisions)
    if (decision.consume_front(kPossibleBuffers)) survey.notes.push_back(decision.str());
  if (module) {
    for (auto parameter : module.getOps<train::ParameterOp>()) {
      auto type = cast<RankedTensorType>(parameter.getType());
      add(parameter.getTrainable() ? survey.trained : survey.frozen, type.getShape(), type.getElementType());
      if (auto source = parameter.getSourceAttr())
        sources.push_back({source.getFile().str(), source.getOffset(), source.getLength()});
    }
  } else {
    llvm::StringSet<> seen;
    for (auto [i, node] : llvm::enumerate(importer.nodes)) {
      if (i >= importer.needed.size() || !importer.needed[i]) continue;
      forEachInput(*node, [&, node = node](StringRef name) {
        const onnx::TensorProto* tensor = importer.initializer(name);
        if (!tensor) return;
        const ParameterRole& role = importer.parameters.role(*tensor, node, -1);
        if (!role.parameter || !seen.insert(role.name).second) return;
        Type element = elementType(importer.builder.getContext(), tensor->data_type());
        add(role.trainable ? survey.trained : survey.frozen, role.shape, element);
        if (auto source = importer.model.source(*tensor); succeeded(source) && *source) sources.push_back(**source);
      });
    }
  }
  noteFiles(importer, sources);
}

void Surveyor::noteFiles(const Importer& importer, const std::vector<Model::Source>& sources) {
  std::map<std::string, Survey::File> files;
  for (const Model::Source& source : sources) {
    Survey::File& file = files[source.file];
    ++file.parameters;
    file.needed = std::max(file.needed, source.offset + source.length);
  }
  for (auto& [name, file] : files) {
    const std::string path = importer.model.pathOf(name);
    file.name = name;
    file.exists = llvm::sys::fs::exists(path);
    const Expected<MappedFile> opened = MappedFile::open(path);
    if (!opened.ok() || !opened->slice(0, uint64_t(file.needed)).ok()) survey.missing.push_back(file);
  }
}

OwningOpRef<ModuleOp> surveyOnnx(MLIRContext& context, StringRef path, const ImportOptions& options, Survey& survey) {
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  Surveyor surveyor(context, survey);
  auto model = Model::load(context, path);
  if (!model) return {};
  survey.nodes = model->graph().node_size();
  survey.opset = model->opset("");
  Importer importer(context, *model, options);
  importer.surveyor = &surveyor;
  OwningOpRef<ModuleOp> module = importer.run();
  if (!module && survey.trainable()) survey.obstacles.push_back("the graph cannot be imported");
  surveyor.finish(importer, module.get());
  return survey.trainable() ? std::move(module) : OwningOpRef<ModuleOp>();
}

}  // namespace sheaf::frontend
