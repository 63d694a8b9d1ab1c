#include "frontend/onnx/importer/Model.h"

#include "frontend/onnx/importer/Utf8.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "ir/Train/ElementTypes.h"
#include "llvm/ADT/SmallSet.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Location.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::frontend {

// The versions of ONNX's operator set whose definitions the handlers follow.
static constexpr int64_t kOldestOpset = 7, kNewestOpset = 28;

std::optional<int64_t> elementCount(ArrayRef<int64_t> shape) {
  if (int64_t(shape.size()) > kMaxRank) return std::nullopt;
  int64_t count = 1;
  bool empty = false;
  for (int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    if (dim == 0)
      empty = true;
    else if (count > kMaxGlobalElements / dim)
      return std::nullopt;
    else
      count *= dim;
  }
  return empty ? 0 : count;
}

Type elementType(MLIRContext* context, int32_t dataType) {
  const plan::ElementFacts& facts = train::factsOfOnnx(dataType);
  return facts.isElement() ? train::elementType(context, facts.type) : Type();
}

StringRef dataTypeName(int32_t dataType) {
  static constexpr StringRef names[] = {"UNDEFINED", "FLOAT",  "UINT8",     "INT8",       "UINT16",  "INT16",
                                        "INT32",     "INT64",  "STRING",    "BOOL",       "FLOAT16", "DOUBLE",
                                        "UINT32",    "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16"};
  return dataType >= 0 && dataType < int32_t(std::size(names)) ? names[dataType] : "a type of newer ONNX";
}

bool isFloatType(int32_t dataType) {
  return train::factsOfOnnx(dataType).isFloat();
}

std::string describe(const onnx::ValueInfoProto& value) {
  if (!value.type().has_tensor_type()) return "'" + value.name() + "'";
  const auto& tensor = value.type().tensor_type();
  std::string text = "'" + value.name() + "' " + dataTypeName(tensor.elem_type()).str() + "[";
  for (int i = 0; i < tensor.shape().dim_size(); ++i) {
    const auto& dim = tensor.shape().dim(i);
    text += (i ? "," : "") + (dim.has_dim_value() ? std::to_string(dim.dim_value()) : dim.dim_param());
  }
  return text + "]";
}

std::string listNames(ArrayRef<std::string> names, size_t most) {
  std::string text;
  for (const std::string& name : names.take_front(most)) text += (text.empty() ? "'" : ", '") + name + "'";
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

std::string didYouMean(const std::vector<std::string>& names, StringRef name) {
  // Names of a letter or two are near to all others of the kind.
  constexpr size_t kLeast = 3;
  std::string near;
  for (const std::string& other : names)
    if (near.empty() && name.equals_insensitive(other)) near = other;
  if (near.empty() && name.size() >= kLeast) near = nearest(name.str(), names);
  return near.empty() || near == name ? "" : "; did you mean '" + near + "'?";
}

namespace {

// Graphs and tensors, those in attributes of nodes included. They are nested only as deep as protobuf parses them.
struct GraphsAndTensors {
  std::vector<const onnx::GraphProto*> graphs;
  std::vector<const onnx::TensorProto*> tensors;

  GraphsAndTensors() = default;
  explicit GraphsAndTensors(const onnx::ModelProto& model) {
    add(model.graph());
    add(model.functions());
    add(model.training_info());
  }

  void add(const onnx::GraphProto& graph) {
    graphs.push_back(&graph);
    for (const onnx::TensorProto& tensor : graph.initializer()) tensors.push_back(&tensor);
    add(graph.node());
  }
  void add(const onnx::FunctionProto& function) {
    for (const onnx::AttributeProto& attribute : function.attribute_proto()) add(attribute);
    add(function.node());
  }
  void add(const onnx::TrainingInfoProto& training) {
    add(training.initialization());
    add(training.algorithm());
  }
  void add(const onnx::NodeProto& node) {
    for (const onnx::AttributeProto& attribute : node.attribute()) add(attribute);
  }
  void add(const onnx::AttributeProto& attribute) {
    if (attribute.has_t()) tensors.push_back(&attribute.t());
    for (const onnx::TensorProto& tensor : attribute.tensors()) tensors.push_back(&tensor);
    if (attribute.has_g()) add(attribute.g());
    add(attribute.graphs());
  }
  template <typename T>
  void add(const google::protobuf::RepeatedPtrField<T>& list) {
    for (const T& item : list) add(item);
  }
};

StringRef nameOf(const std::string& input) {
  return input;
}
StringRef nameOf(const onnx::ValueInfoProto& input) {
  return input.name();
}

// Returns a name that inputs and nodes define twice; `names` are those of the initializers.
template <typename Inputs, typename Nodes>
std::optional<StringRef> definedTwice(const Inputs& inputs, const Nodes& nodes, llvm::StringSet<> names = {}) {
  llvm::StringSet<> own;
  for (const auto& input : inputs) {
    if (!own.insert(nameOf(input)).second) return nameOf(input);
    names.insert(nameOf(input));  // an initializer of that name is its default
  }
  for (const onnx::NodeProto& node : nodes)
    for (const std::string& output : node.output())
      if (!output.empty() && !names.insert(output).second) return StringRef(output);
  return std::nullopt;
}

}  // namespace

Location Model::location() const {
  return FileLineColLoc::get(context, filePath, 0, 0);
}

std::unique_ptr<Model> Model::load(MLIRContext& context, StringRef path) {
  std::unique_ptr<Model> model(new Model(context));
  model->filePath = path.str();
  model->name = llvm::sys::path::filename(path).str();
  Expected<MappedFile> file = MappedFile::open(path.str());
  if (!file.ok()) {
    emitError(model->location()) << "cannot read the model: " << file.status().message();
    return nullptr;
  }
  model->file = std::move(*file);
  if (failed(model->parse()) || failed(checkUtf8(model->location(), model->model)) || failed(model->check()))
    return nullptr;
  auto artifacts = TrainingArtifacts::adopt(model->location(), path, model->model);
  if (failed(artifacts)) return nullptr;
  model->trainingArtifacts = std::move(*artifacts);
  model->separateMerged();
  if (failed(model->hoistWeights())) return nullptr;
  model->indexValues();
  model->noteLinks();
  return model;
}

std::unique_ptr<Model> Model::of(MLIRContext& context, onnx::ModelProto proto, StringRef name) {
  std::unique_ptr<Model> model(new Model(context));
  model->filePath = model->name = name.str();
  model->model = std::move(proto);
  if (failed(model->check())) return nullptr;
  model->indexValues();
  return model;
}

void Model::indexValues() {
  for (const auto* list : {&graph().value_info(), &graph().input(), &graph().output()})
    for (const onnx::ValueInfoProto& value : *list) valueInfo.try_emplace(value.name(), &value);
}

StringRef Model::contents() const {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Caches of models consist of links, so links are followed. The note shows which files a model of another author reads.
void Model::noteLinks() const {
  constexpr size_t kNamed = 4;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(pathOf("."), error);
  if (error) return;
  std::set<std::string> seen;
  std::vector<std::string> leave;
  const GraphsAndTensors contents(model);
  for (const onnx::TensorProto* tensor : contents.tensors) {
    if (tensor->data_location() != onnx::TensorProto::EXTERNAL) continue;
    ScopedDiagnosticHandler quiet(context, [](Diagnostic&) {});  // a constant is refused where it is read
    const auto where = source(*tensor);
    if (failed(where) || !seen.insert((*where)->file).second) continue;
    const std::filesystem::path target = std::filesystem::canonical(pathOf((*where)->file), error);
    const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), target.begin(), target.end());
    if (!error && end != folder.end()) leave.push_back((*where)->file + "' (" + target.string() + ")");
  }
  if (leave.empty()) return;
  std::string text;
  for (const std::string& file : ArrayRef(leave).take_front(kNamed)) text += (text.empty() ? "'" : ", '") + file;
  if (leave.size() > kNamed) text += " and " + std::to_string(leave.size() - kNamed) + " more";
  emitRemark(location()) << "external data are read through links that lead out of the model's folder: " << text;
}

LogicalResult Model::parse() {
  std::string rest;
  bool wellFormed = cutRawData(contents(), rest, spans);
  if (wellFormed && rest.size() > size_t(INT32_MAX))
    return emitError(location()) << "is larger than 2 GiB without its weights; export its constants as external data";
  if (!wellFormed || !model.ParseFromArray(rest.data(), int(rest.size())))
    return emitError(location()) << "is not an ONNX model, or is truncated; export it again";
  if (!model.has_graph() || model.graph().node().empty())
    return emitError(location()) << "holds no graph; export it again";
  for (int i = 0; i < model.graph().initializer_size(); ++i) spanOf[&model.graph().initializer(i)] = i;
  return success();
}

StringRef Model::rawBytes(const onnx::TensorProto& tensor) const {
  auto it = spanOf.find(&tensor);
  if (it == spanOf.end()) return tensor.raw_data();
  const RawSpan& span = spans[it->second];
  return span.length < 0 ? StringRef() : contents().substr(span.offset, span.length);
}

// Bytes of one element as stored raw.
static int64_t elementBytes(Type type) {
  return int64_t(train::elementFacts(type).bytes());
}

FailureOr<std::optional<Model::Source>> Model::source(const onnx::TensorProto& tensor) const {
  auto error = [&] { return emitError(location()) << "initializer '" << tensor.name() << "': "; };
  const Type type = elementType(context, tensor.data_type());
  const auto count = elementCount(ArrayRef<int64_t>(tensor.dims().data(), tensor.dims().size()));
  if (!type || !count) return error() << "has an unsupported type (" << dataTypeName(tensor.data_type()) << ") or size";
  const int64_t bytes = *count * elementBytes(type);
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    Source source;
    source.length = bytes;
    for (const onnx::StringStringEntryProto& entry : tensor.external_data()) {
      if (entry.key() == "location") source.file = entry.value();
      int64_t* number = entry.key() == "offset" ? &source.offset : entry.key() == "length" ? &source.length : nullptr;
      if (number && (StringRef(entry.value()).getAsInteger(10, *number) || *number < 0))
        return error() << "external data has " << entry.key() << " '" << entry.value() << "', not a number of bytes";
    }
    bool escapes = llvm::sys::path::is_absolute(source.file) || StringRef(source.file).contains('\0');
    for (auto part = llvm::sys::path::begin(source.file); part != llvm::sys::path::end(source.file); ++part)
      escapes |= *part == "..";
    if (source.file.empty() || escapes)
      return error() << "external data lies at '" << source.file
                     << "', which is not a path within the model's folder (relative, and without '..'); move the file "
                        "into the folder";
    if (source.length != bytes)
      return error() << "external data has " << source.length << " bytes where its shape takes " << bytes;
    if (source.offset > INT64_MAX - bytes) return error() << "external data has an offset out of range";
    return std::optional<Source>(source);
  }
  auto it = spanOf.find(&tensor);
  if (it == spanOf.end() || spans[it->second].length < 0) return std::optional<Source>();
  return std::optional<Source>(Source{name, spans[it->second].offset, spans[it->second].length});
}

std::string Model::pathOf(StringRef externalFile) const {
  SmallString<256> path(llvm::sys::path::parent_path(filePath));
  llvm::sys::path::append(path, externalFile);
  return path.str().str();
}

Expected<StringRef> Model::bytes(const onnx::TensorProto& tensor) const {
  if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return rawBytes(tensor);
  FailureOr<std::optional<Source>> where = std::optional<Source>();
  {
    ScopedDiagnosticHandler quiet(context, [](Diagnostic&) {});
    where = source(tensor);
  }
  if (failed(where) || !*where) return Status::error("its external data are not described as they should be");
  auto [known, fresh] = externalFiles.try_emplace((*where)->file);
  if (fresh || known->second.path().empty()) {
    sheaf::Expected<MappedFile> opened = MappedFile::open(pathOf((*where)->file));
    if (!opened.ok()) return opened.status();
    known->second = std::move(*opened);
  }
  sheaf::Expected<std::span<const std::byte>> slice =
      known->second.slice(uint64_t((*where)->offset), uint64_t((*where)->length));
  if (!slice.ok()) return slice.status();
  return StringRef(reinterpret_cast<const char*>(slice->data()), slice->size());
}

LogicalResult Model::checkFiles() const {
  for (const onnx::TensorProto& tensor : graph().initializer()) {
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) continue;
    auto where = source(tensor);
    if (failed(where)) return failure();
    if (!llvm::sys::fs::exists(pathOf((*where)->file))) continue;
    if (auto stored = bytes(tensor); !stored.ok())
      return emitError(location()) << "initializer '" << tensor.name() << "' takes " << (*where)->length
                                   << " bytes of external data: " << stored.status().message();
  }
  return success();
}

int64_t Model::opset(StringRef domain) const {
  int64_t version = 0;
  auto normal = [](StringRef d) { return d == "ai.onnx" ? StringRef() : d; };
  for (const onnx::OperatorSetIdProto& import : model.opset_import())
    if (normal(import.domain()) == normal(domain)) version = std::max<int64_t>(version, import.version());
  return version;
}

StringRef Model::metadata(const google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& entries,
                          StringRef key) {
  for (const onnx::StringStringEntryProto& entry : entries)
    if (entry.key() == key) return entry.value();
  return {};
}

StringRef Model::valueMetadata(StringRef value, StringRef key) const {
  auto it = valueInfo.find(value);
  return it == valueInfo.end() ? StringRef() : metadata(it->second->metadata_props(), key);
}

LogicalResult Model::check() {
  if (opset("") == 0 && llvm::any_of(graph().node(), [](auto& n) { return n.domain().empty(); }))
    return emitError(location()) << "imports no version of ONNX's operator set; export it again";
  // Operators may have changed their meaning since.
  if (opset("") > 0 && opset("") < kOldestOpset)
    emitWarning(location()) << "uses opset " << opset("") << "; operators are taken as of opset " << kOldestOpset
                            << ", though some had another meaning before. Convert the model with "
                               "onnx.version_converter, or export it again";
  if (opset("") > kNewestOpset)
    emitWarning(location()) << "uses opset " << opset("") << "; opsets after " << kNewestOpset
                            << " are taken as that one";
  if (failed(checkRanks())) return failure();
  for (const onnx::TensorProto& tensor : graph().initializer())
    if (failed(checkTensor(tensor))) return failure();
  if (graph().sparse_initializer_size())
    return emitError(location()) << "has sparse initializers, which are not supported; make them dense";
  return checkNames();
}

LogicalResult Model::checkRanks() const {
  auto check = [&](StringRef name, int64_t rank) -> LogicalResult {
    if (rank <= kMaxRank) return success();
    const std::string what = name.empty() ? "a tensor in an attribute of a node" : "the tensor '" + name.str() + "'";
    return emitError(location()) << what << " has " << rank << " dimensions; at most " << kMaxRank << " are supported";
  };
  const GraphsAndTensors contents(model);
  for (const onnx::TensorProto* tensor : contents.tensors)
    if (failed(check(tensor->name(), tensor->dims_size()))) return failure();
  for (const onnx::GraphProto* graph : contents.graphs)
    for (const auto* list : {&graph->input(), &graph->output(), &graph->value_info()})
      for (const onnx::ValueInfoProto& value : *list)
        if (failed(check(value.name(), value.type().tensor_type().shape().dim_size()))) return failure();
  return success();
}

// ONNX's graphs are in single static assignment form. A subgraph may give a name of its surroundings another meaning.
LogicalResult Model::checkNames() const {
  auto refuse = [&](StringRef name, const Twine& where) {
    return emitError(location()) << "defines the value '" << name << "' twice" << where
                                 << "; inputs, initializers and results of nodes must have different names";
  };
  GraphsAndTensors contents;
  contents.add(graph());
  contents.add(model.functions());
  for (const onnx::GraphProto* graph : contents.graphs) {
    const std::string where = graph == &this->graph() ? "" : " in the subgraph '" + graph->name() + "'";
    llvm::StringSet<> names;
    for (const onnx::TensorProto& tensor : graph->initializer())
      if (!names.insert(tensor.name()).second)
        return emitError(location()) << "has two initializers named '" << tensor.name() << "'" << where;
    if (auto name = definedTwice(graph->input(), graph->node(), std::move(names))) return refuse(*name, where);
  }
  for (const onnx::FunctionProto& function : model.functions())
    if (auto name = definedTwice(function.input(), function.node()))
      return refuse(*name, " in the function '" + function.name() + "'");
  return success();
}

LogicalResult Model::checkTensor(const onnx::TensorProto& tensor) const {
  auto error = [&] { return emitError(location()) << "initializer '" << tensor.name() << "': "; };
  Type type = elementType(context, tensor.data_type());
  if (!type) return error() << "elements of type " << dataTypeName(tensor.data_type()) << " are not supported";
  if (tensor.has_segment()) return error() << "segmented tensors are not supported";
  auto count = elementCount(ArrayRef<int64_t>(tensor.dims().data(), tensor.dims().size()));
  if (!count || *count > kMaxElements) return error() << "has a negative dimension or too many elements";
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) return source(tensor);
  int64_t bytes = *count * elementBytes(type);
  auto it = spanOf.find(&tensor);
  int64_t raw =
      it == spanOf.end() ? (tensor.has_raw_data() ? int64_t(tensor.raw_data().size()) : -1) : spans[it->second].length;
  if (raw >= 0 && raw != bytes) return error() << "has " << raw << " bytes where its shape takes " << bytes;
  if (raw >= 0) return success();
  int64_t values = tensor.data_type() == onnx::TensorProto::FLOAT    ? tensor.float_data_size()
                   : tensor.data_type() == onnx::TensorProto::DOUBLE ? tensor.double_data_size()
                   : tensor.data_type() == onnx::TensorProto::INT64  ? tensor.int64_data_size()
                                                                     : tensor.int32_data_size();
  if (values != *count) return error() << "has " << values << " elements where its shape takes " << *count;
  return success();
}

}  // namespace sheaf::frontend
