#include "frontend/onnx/export/Export.h"

#include "frontend/onnx/importer/Importer.h"
#include "llvm/Support/Path.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/base/AtomicFile.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

// ONNX recommends that external data begins at a multiple of the page size, so that it can be mapped.
constexpr uint64_t kAlignment = 4096;

// Rows and columns exchanged.
std::string transposed(StringRef bytes, int64_t rows, int64_t columns) {
  const size_t size = bytes.size() / std::max<int64_t>(1, rows * columns);
  std::string result(bytes.size(), '\0');
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      std::copy_n(bytes.data() + (r * columns + c) * size, size, result.data() + (c * rows + r) * size);
  return result;
}

void clearValues(onnx::TensorProto& tensor) {
  tensor.clear_float_data();
  tensor.clear_double_data();
  tensor.clear_int32_data();
  tensor.clear_raw_data();
}

const std::string& nameOf(const onnx::ValueInfoProto& output) {
  return output.name();
}
const std::string& nameOf(const std::string& output) {
  return output;
}

// Dropout's third input and BatchNormalization's attribute are cleared. Before opset 14 BatchNormalization is in
// training mode if it has more than one output; running statistics that a node reads, or that are among the `outputs`
// of the nodes' graph or function, are then what they were.
template <typename Outputs>
void turnToEvaluation(Nodes& nodes, const Outputs& outputs) {
  llvm::StringSet<> read;
  for (const onnx::NodeProto& node : nodes) forEachInput(node, [&](StringRef name) { read.insert(name); });
  for (const auto& output : outputs) read.insert(nameOf(output));
  Nodes result;
  for (onnx::NodeProto& node : nodes) {
    for (onnx::AttributeProto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) turnToEvaluation(*attribute.mutable_g()->mutable_node(), attribute.g().output());
    SmallVector<std::pair<std::string, std::string>> statistics;  // result, operand
    if (node.op_type() == "Dropout" && node.domain().empty() && node.input_size() > 2) {
      node.mutable_input()->RemoveLast();
      if (node.input(1).empty()) node.mutable_input()->RemoveLast();
    }
    if (node.op_type() == "BatchNormalization" && node.domain().empty() && node.input_size() == 5) {
      for (int i = node.attribute_size() - 1; i >= 0; --i)
        if (node.attribute(i).name() == "training_mode") node.mutable_attribute()->DeleteSubrange(i, 1);
      for (; node.output_size() > 1; node.mutable_output()->RemoveLast()) {
        const int last = node.output_size() - 1;
        // Outputs: y, mean, variance, and before opset 14 the mean and the variance that a backward pass would need.
        if (read.contains(node.output(last))) statistics.push_back({node.output(last), node.input(4 - last % 2)});
      }
    }
    *result.Add() = std::move(node);
    for (const auto& [name, operand] : statistics) {
      onnx::NodeProto& identity = *result.Add();
      identity.set_op_type("Identity");
      identity.add_input(operand);
      identity.add_output(name);
    }
  }
  nodes.Swap(&result);
}

class Exporter {
 public:
  Exporter(const Model& model, StringRef output, const Parameters& parameters, const TrainedParameters& trained)
      : model(model), output(output), parameters(parameters), trained(trained), copy(model.proto()) {}

  LogicalResult run(const ExportOptions& options) {
    onnx::GraphProto& graph = *copy.mutable_graph();
    // Users first: they are found by the initializers' old names, and the copy's nodes by their index.
    if (failed(giveOwnInitializers(graph))) return failure();
    for (int i = 0; i < model.graph().initializer_size(); ++i) {
      const onnx::TensorProto& original = model.graph().initializer(i);
      auto bytes = valuesOf(parameters.role(original, nullptr, -1), original);
      if (failed(bytes) || failed(place(*graph.mutable_initializer(i), original, *bytes))) return failure();
      if (*bytes) replaced.insert(original.name());
    }
    for (const auto& entry : trained.names)
      if (!found.contains(entry.first()))
        return error() << "has no initializer for the plan's parameter '" << entry.first()
                       << "'; give the model that the plan was compiled from, and the same --loss";
    if (failed(copyExternalConstants(*graph.mutable_node()))) return failure();
    for (onnx::FunctionProto& function : *copy.mutable_functions())
      if (failed(copyExternalConstants(*function.mutable_node()))) return failure();
    for (onnx::TrainingInfoProto& info : *copy.mutable_training_info())
      if (failed(keepTrained(info))) return failure();
    model.restoreConstants(graph);
    if (!options.keepTraining) {
      turnToEvaluation(*graph.mutable_node(), graph.output());
      for (onnx::FunctionProto& function : *copy.mutable_functions())
        turnToEvaluation(*function.mutable_node(), function.output());
    }
    return write();
  }

 private:
  InFlightDiagnostic error() const { return emitError(model.location()); }
  LogicalResult report(const Status& status) const {
    if (!status.ok()) error() << status.message();
    return success(status.ok());
  }

  // The trained values of an initializer, in its own shape; nothing if it is not a parameter of the plan.
  FailureOr<std::optional<std::string>> valuesOf(const ParameterRole& role, const onnx::TensorProto& tensor) {
    // Of a folded look-up of rows the parameter has other rows than the initializer.
    auto count = role.rows ? elementCount(role.shape)
                           : elementCount(ArrayRef<int64_t>(tensor.dims().data(), tensor.dims().size()));
    auto type = dyn_cast_or_null<FloatType>(elementType(model.location().getContext(), tensor.data_type()));
    if (!trained.names.contains(role.name) || !type || !count) return std::optional<std::string>();
    auto bytes = trained.values(role.name, type, *count);
    if (failed(bytes)) return failure();
    found.insert(role.name);
    if (role.rows) {
      const size_t size = bytes->size() / std::max<int64_t>(role.shape[0], 1);
      std::string rows;
      for (int64_t row : *role.rows) rows += bytes->substr(row * size, size);
      return std::optional<std::string>(std::move(rows));
    }
    return std::optional<std::string>(role.viewTransposed ? transposed(*bytes, role.shape[0], role.shape[1])
                                                          : std::move(*bytes));
  }

  // Parameters that were merged because they had equal values part again: they do no longer.
  LogicalResult giveOwnInitializers(onnx::GraphProto& graph) {
    llvm::StringMap<const onnx::TensorProto*> initializers;
    for (const onnx::TensorProto& tensor : model.graph().initializer()) initializers[tensor.name()] = &tensor;
    llvm::StringMap<bool> given;
    SmallVector<onnx::TensorProto> more;
    for (int n = 0; n < graph.node_size(); ++n) {
      const onnx::NodeProto& user = model.graph().node(n);
      for (int i = 0; i < user.input_size(); ++i) {
        const onnx::TensorProto* tensor = initializers.lookup(user.input(i));
        if (!tensor) continue;
        const ParameterRole& role = parameters.role(*tensor, &user, i);
        if (role.name.empty() || role.name == parameters.role(*tensor, nullptr, -1).name) continue;
        auto [known, first] = given.try_emplace(role.name, false);
        if (first) {
          auto bytes = valuesOf(role, *tensor);
          if (failed(bytes)) return failure();
          known->second = bytes->has_value();
          if (*bytes) {
            onnx::TensorProto own = *tensor;
            own.set_name(role.name);
            if (failed(place(own, *tensor, *bytes))) return failure();
            more.push_back(std::move(own));
            // What the exporter said of the merged one (that it is a parameter) holds for each.
            for (const onnx::ValueInfoProto& info : model.graph().value_info())
              if (info.name() == tensor->name()) (*graph.add_value_info() = info).set_name(role.name);
          }
        }
        if (known->second) graph.mutable_node(n)->set_input(i, role.name);
      }
    }
    for (onnx::TensorProto& tensor : more) *graph.add_initializer() = std::move(tensor);
    return success();
  }

  // An initialization of what is trained would replace it.
  LogicalResult keepTrained(onnx::TrainingInfoProto& info) {
    auto& bindings = *info.mutable_initialization_binding();
    for (int i = bindings.size() - 1; i >= 0; --i)
      if (replaced.contains(bindings[i].key())) bindings.DeleteSubrange(i, 1);
    if (bindings.empty()) info.clear_initialization();
    if (info.has_initialization() && failed(copyExternalConstants(*info.mutable_initialization()))) return failure();
    return info.has_algorithm() ? copyExternalConstants(*info.mutable_algorithm()) : success();
  }

  // What is external data besides the model's own initializers: constants of nodes, and initializers of their graphs.
  LogicalResult copyExternalConstant(onnx::TensorProto& tensor) {
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return success();
    const onnx::TensorProto original = tensor;
    return place(tensor, original, std::nullopt);
  }
  LogicalResult copyExternalConstants(onnx::GraphProto& graph) {
    for (onnx::TensorProto& tensor : *graph.mutable_initializer())
      if (failed(copyExternalConstant(tensor))) return failure();
    return copyExternalConstants(*graph.mutable_node());
  }
  LogicalResult copyExternalConstants(Nodes& nodes) {
    for (onnx::NodeProto& node : nodes)
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.has_t() && failed(copyExternalConstant(*attribute.mutable_t()))) return failure();
        for (onnx::TensorProto& tensor : *attribute.mutable_tensors())
          if (failed(copyExternalConstant(tensor))) return failure();
        if (attribute.has_g() && failed(copyExternalConstants(*attribute.mutable_g()))) return failure();
        for (onnx::GraphProto& graph : *attribute.mutable_graphs())
          if (failed(copyExternalConstants(graph))) return failure();
      }
    return success();
  }

  // Stores new values, or the original's, where the original had them: in the model or next to it.
  LogicalResult place(onnx::TensorProto& tensor, const onnx::TensorProto& original,
                      const std::optional<std::string>& bytes) {
    if (original.data_location() != onnx::TensorProto::EXTERNAL) {
      if (bytes) clearValues(tensor);
      if (bytes)
        tensor.set_raw_data(*bytes);
      else if (StringRef raw = model.rawBytes(original); !raw.empty())
        tensor.set_raw_data(raw.str());
      return success();
    }
    if (bytes) return placeExternally(tensor, *bytes);
    if (failed(model.source(original))) return failure();
    const Expected<StringRef> stored = model.bytes(original);
    if (!stored.ok()) return error() << "initializer '" << original.name() << "': " << stored.status().message();
    return placeExternally(tensor, *stored);
  }

  LogicalResult placeExternally(onnx::TensorProto& tensor, StringRef bytes) {
    if (!data) {
      auto created = AtomicFile::create(dataPath());
      if (!created.ok()) return report(created.status());
      data.emplace(std::move(*created));
    }
    const uint64_t offset = llvm::alignTo(data->size(), kAlignment);
    const std::string padding(offset - data->size(), '\0');
    for (StringRef part : {StringRef(padding), bytes})
      if (failed(report(data->write(std::as_bytes(std::span(part.data(), part.size())))))) return failure();
    clearValues(tensor);
    tensor.clear_external_data();
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    auto entry = [&](StringRef key, const std::string& value) {
      onnx::StringStringEntryProto& added = *tensor.add_external_data();
      added.set_key(key.str());
      added.set_value(value);
    };
    entry("location", llvm::sys::path::filename(dataPath()).str());
    entry("offset", std::to_string(offset));
    entry("length", std::to_string(bytes.size()));
    return success();
  }

  LogicalResult write() {
    if (copy.ByteSizeLong() > size_t(INT32_MAX))
      return error() << "with the trained weights it would be larger than 2 GiB; export it with external data";
    auto file = AtomicFile::create(output.str());
    if (!file.ok()) return report(file.status());
    std::string bytes = copy.SerializeAsString();
    if (failed(report(file->write(std::as_bytes(std::span(bytes)))))) return failure();
    // The data first: a model without its data is worse than data without a model.
    if (data && failed(report(data->commit()))) return failure();
    return report(file->commit());
  }

  std::string dataPath() const { return (output + ".data").str(); }

  const Model& model;
  StringRef output;
  const Parameters& parameters;
  const TrainedParameters& trained;
  llvm::StringSet<> found;     // of the trained parameters
  llvm::StringSet<> replaced;  // initializers with trained values
  onnx::ModelProto copy;
  std::optional<AtomicFile> data;  // OUTPUT.data, once something goes there
};

}  // namespace

static void addExternalFile(const Model& model, const onnx::TensorProto& tensor, std::vector<std::string>& files) {
  if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return;
  auto source = model.source(tensor);
  if (succeeded(source) && *source && !llvm::is_contained(files, (*source)->file)) files.push_back((*source)->file);
}

static void addExternalFiles(const Model& model, const onnx::GraphProto& graph, std::vector<std::string>& files);

static void addExternalFiles(const Model& model, const Nodes& nodes, std::vector<std::string>& files) {
  for (const onnx::NodeProto& node : nodes)
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_t()) addExternalFile(model, attribute.t(), files);
      for (const onnx::TensorProto& tensor : attribute.tensors()) addExternalFile(model, tensor, files);
      if (attribute.has_g()) addExternalFiles(model, attribute.g(), files);
      for (const onnx::GraphProto& graph : attribute.graphs()) addExternalFiles(model, graph, files);
    }
}

static void addExternalFiles(const Model& model, const onnx::GraphProto& graph, std::vector<std::string>& files) {
  for (const onnx::TensorProto& tensor : graph.initializer()) addExternalFile(model, tensor, files);
  addExternalFiles(model, graph.node(), files);
}

std::vector<std::string> externalFiles(MLIRContext& context, StringRef path) {
  std::vector<std::string> files;
  auto model = Model::load(context, path);
  if (!model) return files;
  addExternalFiles(*model, model->graph(), files);
  for (const onnx::FunctionProto& function : model->proto().functions())
    addExternalFiles(*model, function.node(), files);
  for (const onnx::TrainingInfoProto& info : model->proto().training_info()) {
    addExternalFiles(*model, info.initialization(), files);
    addExternalFiles(*model, info.algorithm(), files);
  }
  return files;
}

LogicalResult exportOnnx(MLIRContext& context, StringRef path, StringRef output, const ExportOptions& options,
                         const TrainedParameters& trained) {
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  auto model = Model::load(context, path);
  if (!model) return failure();
  ImportOptions import;
  import.loss = options.loss;
  if (import.loss.empty()) {
    // A model for inference has no loss: all that its outputs need is taken.
    ScopedDiagnosticHandler quiet(&context, [](Diagnostic&) { return success(); });
    if (!Importer(context, *model, import).analyse()) import.form = Form::kOutputs;
  }
  Importer importer(context, *model, import);
  const Parameters* parameters = importer.analyse();
  return success(parameters && succeeded(Exporter(*model, output, *parameters, trained).run(options)));
}

}  // namespace sheaf::frontend
