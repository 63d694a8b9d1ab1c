// sheaf export: the user's ONNX model, or a safetensors file, with the trained weights.
#include <map>
#include <optional>

#include "frontend/onnx/export/Export.h"
#include "ir/Train/ElementTypes.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/OutputPaths.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/exec/CopiedWeights.h"
#include "runtime/exec/SavedState.h"
#include "runtime/exec/WeightFiles.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/Safetensors.h"
#include "runtime/io/SafetensorsShards.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/ModelFiles.h"
#include "tools/sheaf/PlanKinds.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {
namespace {

struct ExportCommandOptions {
  std::string plan, model, weights, state, output;
  frontend::ImportOptions import;  // its loss
  bool keepTraining = false;
};

// The parameters of a plan, with their trained values: of a safetensors file or of a saved state.
class TrainedWeights {
 public:
  static Expected<TrainedWeights> open(const ExportCommandOptions& o) {
    TrainedWeights result;
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readVerifiedPlan(o.plan);
    if (!plan.ok()) return plan.status();
    SHEAF_RETURN_IF_ERROR(requireModel(**plan, o.plan));
    result.plan_ = std::move(*plan);
    for (const plan::Parameter& parameter : result.plan_->parameters()) result.byName_[parameter.name()] = &parameter;
    if (o.state.empty()) {
      Expected<io::Safetensors> file = io::Safetensors::openWeights(o.weights);
      if (!file.ok()) return file.status();
      result.file_ = std::move(*file);
      SHEAF_RETURN_IF_ERROR(result.checkFile(o.weights));
    } else {
      Expected<io::Checkpoint> state =
          io::Checkpoint::openNewest(o.state, [](const std::string& text) { print(cat("warning: ", text, "\n")); });
      if (!state.ok()) return state.status();
      result.state_ = std::move(*state);
      Expected<exec::StateFit> fit = exec::checkState(*result.plan_, *result.state_, "--state");
      if (!fit.ok()) return fit.status();
      if (!fit->initial.empty())
        return Status::error(cat("--state: the state has no parameter ", listText(fit->initial, 5),
                                 "; give the plan of the "
                                 "run that saved it"));
    }
    return result;
  }

  const plan::Plan& plan() const { return *plan_; }
  // Lists the files that the values come from.
  std::vector<NamedFile> inputFiles(const ExportCommandOptions& o) const {
    std::vector<NamedFile> files;
    if (state_)
      for (const std::string& path : io::checkpointFiles(*state_)) files.push_back({"--state", path});
    if (file_) {
      for (const std::string& path : io::weightPaths(o.weights)) files.push_back({"--weights", path});
      for (const MappedFile& file : file_->files()) files.push_back({"--weights", file.path()});
    }
    const exec::WeightFiles initial(*plan_, folderOf(o.plan), "");
    for (const plan::File& file : plan_->files()) files.push_back({"the plan's initial weights", initial.pathOf(file)});
    return files;
  }
  // Null if the weights are those of a state.
  const io::Safetensors* file() const { return file_ ? &*file_ : nullptr; }
  const plan::Parameter* find(const std::string& name) const {
    auto it = byName_.find(name);
    return it == byName_.end() ? nullptr : it->second;
  }

  // All values in the layout of the plan, converted.
  Expected<std::string> values(const plan::Parameter& parameter, io::DataType type) const {
    const uint64_t count = *plan::elementCount(plan::shapeOf(parameter));
    std::string result(count * io::bytesOf(type), '\0');
    auto* out = reinterpret_cast<std::byte*>(result.data());
    if (file_) {
      const io::Tensor& tensor = **exec::tensorOf(parameter, *file_);
      std::vector<std::byte> ordered(tensor.data.size());
      exec::namedToPlan(parameter, tensor.data.data(), io::bytesOf(tensor.type), 0, count, ordered.data());
      SHEAF_RETURN_IF_ERROR(io::convert(tensor.type, ordered.data(), type, out, count));
      return result;
    }
    const io::DataType stored = exactType(parameter);
    for (const io::Checkpoint::Piece& piece : state_->pieces(io::kParameterKind, parameter.name()))
      SHEAF_RETURN_IF_ERROR(io::convert(stored, piece.data.data(), type, out + piece.begin * io::bytesOf(type),
                                        piece.data.size() / io::bytesOf(stored)));
    return result;
  }

  // The type of a parameter's exact values in the file or the state: f32 where there were master weights.
  io::DataType exactType(const plan::Parameter& parameter) const {
    if (file_) return (*exec::tensorOf(parameter, *file_))->type;
    for (const io::SavedParameter& saved : state_->manifest().parameters)
      if (saved.name == parameter.name()) return saved.type;
    return io::dataTypeOf(parameter.type());
  }

 private:
  Status checkFile(const std::string& path) const {
    for (const plan::Parameter& parameter : plan_->parameters()) {
      Expected<const io::Tensor*> found = exec::tensorOf(parameter, *file_);
      if (!found.ok()) return Status::error(cat(path, ": ", found.status().message()));
      const io::Tensor* tensor = *found;
      if (!tensor)
        return Status::error(cat(path, " has no tensor '", parameter.name(),
                                 "', a parameter of the plan; give the file that `sheaf-run --save` wrote"));
      if (tensor->shape != exec::namedShape(parameter))
        return Status::error(cat(path, ": tensor '", parameter.name(), "' has shape ", shapeText(tensor->shape),
                                 ", the plan's parameter has ", shapeText(exec::namedShape(parameter))));
      if (!io::convertible(tensor->type, io::DataType::F32))
        return Status::error(cat(path, ": tensor '", parameter.name(), "' is ", io::nameOf(tensor->type),
                                 "; weights are floating-point numbers"));
    }
    return {};
  }

  std::unique_ptr<plan::Plan> plan_;
  std::map<std::string, const plan::Parameter*> byName_;
  std::optional<io::Safetensors> file_;  // one of these
  std::optional<io::Checkpoint> state_;
};

Status writeSafetensors(const TrainedWeights& trained, const std::string& plan, const std::string& path) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const plan::Parameter& parameter : trained.plan().parameters())
    entries.push_back({parameter.name(), trained.exactType(parameter), exec::namedShape(parameter)});
  exec::WeightFiles files(trained.plan(), folderOf(plan), "");
  Expected<exec::CopiedWeights> copied =
      exec::CopiedWeights::find(trained.plan(), files, trained.file(), nullptr,
                                [](const std::string& text) { print(cat("warning: ", text, "\n")); });
  if (!copied.ok()) return copied.status();
  for (const auto& entry : copied->entries()) entries.push_back(entry);
  Expected<io::SafetensorsWriter> writer = io::SafetensorsWriter::create(path, entries, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  for (const plan::Parameter& parameter : trained.plan().parameters()) {
    const io::DataType type = trained.exactType(parameter);
    Expected<std::string> values = trained.values(parameter, type);
    if (!values.ok()) return values.status();
    std::vector<std::byte> named(values->size());
    exec::planToNamed(parameter, reinterpret_cast<const std::byte*>(values->data()), io::bytesOf(type), named.data());
    SHEAF_RETURN_IF_ERROR(writer->write(named));
  }
  for (const plan::Parameter* tensor : copied->tensors())
    SHEAF_RETURN_IF_ERROR(
        copied->read(*tensor, [&](std::span<const std::byte> bytes) { return writer->write(bytes); }));
  return writer->commit();
}

int exportOnnxModel(const TrainedWeights& weights, const ExportCommandOptions& o) {
  auto context = makeContext();
  DiagnosticPrinter printer(*context);
  frontend::TrainedParameters trained;
  for (const plan::Parameter& parameter : weights.plan().parameters()) trained.names.insert(parameter.name());
  trained.values = [&](llvm::StringRef name, mlir::FloatType type, int64_t count) -> mlir::FailureOr<std::string> {
    const plan::Parameter& parameter = *weights.find(name.str());
    auto error = [&] {
      return mlir::emitError(mlir::UnknownLoc::get(context.get())) << "parameter '" << name << "': ";
    };
    if (int64_t(*plan::elementCount(plan::shapeOf(parameter))) != count)
      return error() << "the plan's has shape " << shapeText(plan::shapeOf(parameter)) << ", the model's " << count
                     << " elements; give the model that the plan was compiled from";
    Expected<std::string> bytes = weights.values(parameter, io::dataTypeOf(train::planType(type)));
    if (!bytes.ok()) return error() << bytes.status().message();
    return std::move(*bytes);
  };
  if (mlir::failed(frontend::exportOnnx(*context, o.model, o.output, {o.import.loss, o.keepTraining}, trained)))
    return kFailed;
  note(cat("wrote ", writtenPath(o.output), ": ", counted(trained.names.size(), "parameter"),
           o.keepTraining ? "" : "; Dropout and BatchNormalization in evaluation mode"));
  return kDone;
}

int exportTrained(ExportCommandOptions& o, const options::Given&) {
  if (o.weights.empty() == o.state.empty())
    return misuse("give the trained weights by either --weights W.safetensors or --state DIR");
  const bool safetensors = o.output.ends_with(".safetensors");
  if (!safetensors && o.model.empty())
    return misuse(
        "give the model that the plan was compiled from by --model MODEL.onnx, or an output that ends in "
        ".safetensors");
  if (!safetensors)
    if (Status status = keepModelFiles(o.model, o.output); !status.ok()) return misuse(status.message());
  Expected<TrainedWeights> trained = TrainedWeights::open(o);
  if (!trained.ok()) return fail(trained.status().message());
  const std::vector<NamedFile> outputs{{"-o", o.output}, {"the data of -o", o.output + ".data"}};
  if (Status status = checkOutputPaths(outputs, trained->inputFiles(o)); !status.ok()) return misuse(status.message());
  if (!safetensors) return exportOnnxModel(*trained, o);
  Status written = writeSafetensors(*trained, o.plan, o.output);
  if (!written.ok()) return fail(written.message());
  note(cat("wrote ", writtenPath(o.output), ": ", counted(trained->plan().parameters_size(), "parameter")));
  return kDone;
}

}  // namespace

Command exportCommand() {
  using O = ExportCommandOptions;
  using Row = options::Rows<O>;
  options::Table table{
      "sheaf export",
      "Writes the ONNX model, or a safetensors file, with the trained weights.",
      {"sheaf export OUT.plan --weights W.safetensors|--state DIR --model MODEL.onnx -o TRAINED.onnx"},
      Row::positional<&O::plan>("OUT.plan"),
      {},
      "The written model has the nodes and names of --model. The trained values replace its initializers, also those "
      "that an exporter folded or merged; what was external data lies in TRAINED.onnx.data. Dropout and "
      "BatchNormalization are turned to evaluation. An output that ends in .safetensors gets the weights alone, under "
      "the names and in the shapes of the module that was exported, as `load_state_dict` takes them."};
  table.sections = {
      {"Options",
       {Row::text<&O::output>("-o", "TRAINED.onnx|W.safetensors", "File to write.")
            .writes({"onnx", "safetensors"})
            .alsoWrites(".data")
            .required("name the file to write, .onnx or .safetensors"),
        Row::text<&O::model>(
            "--model", "MODEL.onnx",
            "The model that the plan was compiled from, or another export of the same module: for inference, "
            "say, without the loss."),
        Row::text<&O::weights>(
            "--weights", "W.safetensors",
            "Trained weights, as `sheaf-run --save` writes them: a file, an index of files, or a folder."),
        Row::text<&O::state>("--state", "DIR", "Trained weights of a saved state: the newest in this folder."),
        Row::text<&O::import, &frontend::ImportOptions::loss>(
            "--loss", "LOSS",
            "The --loss that was given to sheaf compile. Needed only if it uses parameters on which the only scalar "
            "output of --model (without one: any of its outputs) does not depend."),
        Row::flag<&O::keepTraining>("--keep-training", "Leave Dropout and BatchNormalization in training mode.")}}};
  return command(std::move(table), exportTrained);
}

}  // namespace sheaf::tool
