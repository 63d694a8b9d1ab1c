#include "frontend/onnx/training/TrainingArtifacts.h"

#include <cmath>
#include <map>
#include <span>

#include "OrtCheckpoint_generated.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/IR/Diagnostics.h"
#include "runtime/base/MappedFile.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

constexpr StringRef kAccumulated = "_grad.accumulation.out";

bool isMicrosoft(const onnx::NodeProto& node, StringRef op) {
  return node.domain() == "com.microsoft" && node.op_type() == op;
}

std::string siblingPath(StringRef path, StringRef name) {
  SmallString<256> result(llvm::sys::path::parent_path(path));
  llvm::sys::path::append(result, name);
  return result.str().str();
}

class ArtifactsReader {
 public:
  ArtifactsReader(Location location, StringRef path, onnx::ModelProto& model)
      : location(location), path(path), graph(*model.mutable_graph()) {
    for (const onnx::ValueInfoProto& input : graph.input()) inputs[input.name()] = &input;
    for (const onnx::NodeProto& node : graph.node())
      for (const std::string& output : node.output()) producers[output] = &node;
  }

  FailureOr<std::unique_ptr<TrainingArtifacts>> run() {
    for (const onnx::NodeProto& node : graph.node())
      if (isMicrosoft(node, "AdamWOptimizer") || isMicrosoft(node, "SGDOptimizerV2"))
        return error() << "is the optimizer of ONNX Runtime's training artifacts; give training_model.onnx of the same "
                          "folder: its optimizer_model.onnx is read automatically";
    findGradients();
    if (result->gradients.empty()) return std::unique_ptr<TrainingArtifacts>();
    if (failed(findLoss()) || failed(makeInitializers())) return failure();
    readOptimizer();
    useInputOfMaxPool();
    return std::move(result);
  }

 private:
  InFlightDiagnostic error() const { return emitError(location); }

  // `X_grad.accumulation.out`, made by an accumulator of (buffer, gradient, whether to reset), of artifacts; or
  // `X_grad` as an output, of what ORTModule keeps.
  void findGradients() {
    bool yields = llvm::any_of(graph.node(), [](auto& node) { return isMicrosoft(node, "YieldOp"); });
    for (const onnx::ValueInfoProto& output : graph.output()) {
      StringRef name = output.name();
      const onnx::NodeProto* producer = producers.lookup(name);
      if (name.consume_back(kAccumulated) && producer && isMicrosoft(*producer, "InPlaceAccumulatorV2") &&
          producer->input_size() > 1 && inputs.contains(name)) {
        result->gradients.push_back({name.str(), producer->input(1)});
        result->outputs.insert(output.name());
        for (int i = 0; i < producer->input_size(); ++i)
          if (i != 1) accumulatorInputs.insert(producer->input(i));
      } else if (yields && name.consume_back("_grad") && inputs.contains(name)) {
        result->gradients.push_back({name.str(), output.name()});
        result->outputs.insert(output.name());
      }
    }
  }

  LogicalResult findLoss() {
    SmallVector<std::string> losses;
    for (const onnx::NodeProto& node : graph.node())
      if (isMicrosoft(node, "YieldOp")) losses.append(node.input().begin(), node.input().end());
    if (losses.empty())
      for (const onnx::ValueInfoProto& output : graph.output())
        if (!StringRef(output.name()).ends_with(kAccumulated) && output.type().tensor_type().shape().dim_size() == 0)
          losses.push_back(output.name());
    if (losses.size() != 1)
      return error()
             << "is a training graph with " << losses.size()
             << " scalar outputs besides its gradients; it must have one, the loss. Make it again with one loss";
    result->loss = losses[0];
    return success();
  }

  // Parameters: what has a gradient, and what the checkpoint holds.
  LogicalResult makeInitializers() {
    MappedFile file;
    std::map<std::string, const ort::Tensor*> stored;
    if (failed(readCheckpoint(file, stored))) return failure();
    llvm::StringSet<> parameters;
    for (const TrainingArtifacts::Gradient& gradient : result->gradients) parameters.insert(gradient.parameter);
    for (const auto& [name, tensor] : stored) parameters.insert(name);
    for (const onnx::ValueInfoProto& input : graph.input()) {
      if (!parameters.contains(input.name())) continue;
      onnx::TensorProto& tensor = *graph.add_initializer();
      tensor.set_name(input.name());
      tensor.set_data_type(input.type().tensor_type().elem_type());
      for (const auto& dim : input.type().tensor_type().shape().dim()) {
        if (dim.dim_value() < 1) return error() << "parameter '" << input.name() << "' has no fixed shape";
        tensor.add_dims(dim.dim_value());
      }
      auto it = stored.find(input.name());
      if (it == stored.end())
        result->unstored.insert(input.name());
      else if (failed(place(tensor, *it->second, file)))
        return failure();
    }
    google::protobuf::RepeatedPtrField<onnx::ValueInfoProto> data;
    for (onnx::ValueInfoProto& input : *graph.mutable_input())
      if (!parameters.contains(input.name()) && !accumulatorInputs.contains(input.name()))
        *data.Add() = std::move(input);
    graph.mutable_input()->Swap(&data);
    return success();
  }

  LogicalResult readCheckpoint(MappedFile& file, std::map<std::string, const ort::Tensor*>& stored) {
    const std::string name = siblingPath(path, "checkpoint");
    if (!llvm::sys::fs::exists(name)) return success();
    auto refuse = [&](const Twine& why) { return error() << name << ": " << why; };
    Expected<MappedFile> opened = MappedFile::open(name);
    if (!opened.ok()) return error() << opened.status().message();
    file = std::move(*opened);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(file.bytes().data());
    // FlatBuffers offsets are 31 bits.
    if (file.bytes().empty() || file.bytes().size() > size_t(INT32_MAX))
      return refuse("is empty or larger than 2 GiB; make the artifacts again");
    flatbuffers::Verifier verifier(bytes, file.bytes().size());
    if (!ort::VerifyCheckpointBuffer(verifier))
      return refuse("is not a checkpoint of ONNX Runtime 1.17 or later, or is damaged; make the artifacts again");
    if (const auto* groups = ort::GetCheckpoint(bytes)->optimizer_groups())
      for (const ort::OptimizerGroup* group : *groups)
        if (group->step() > 0)
          emitWarning(location) << name << ": holds the state of an optimizer after step " << group->step()
                                << ", which is not read: training starts with new states, at the run's learning rate";
    const ort::ModuleState* state = ort::GetCheckpoint(bytes)->module_state();
    if (!state || state->is_nominal_state())
      return refuse("it was saved without parameter values (nominal checkpoint)");
    if (state->has_external_data()) return refuse("keeps its data in another file, which is not supported");
    for (const auto* list : {state->requires_grad_params(), state->frozen_params()}) {
      if (!list) continue;
      for (const ort::Tensor* tensor : *list)
        if (tensor->name() && tensor->raw_data()) stored[tensor->name()->str()] = tensor;
    }
    return success();
  }

  LogicalResult place(onnx::TensorProto& tensor, const ort::Tensor& from, const MappedFile& file) {
    std::vector<int64_t> dims;
    if (from.dims()) dims.assign(from.dims()->begin(), from.dims()->end());
    if (dims != std::vector<int64_t>(tensor.dims().begin(), tensor.dims().end()) ||
        from.data_type() != tensor.data_type())
      return error() << "parameter '" << tensor.name()
                     << "' has another shape or type than in the checkpoint; both "
                        "must be of the same artifacts";
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    auto entry = [&](StringRef key, const std::string& value) {
      onnx::StringStringEntryProto& added = *tensor.add_external_data();
      added.set_key(key.str());
      added.set_value(value);
    };
    entry("location", "checkpoint");
    entry("offset", std::to_string(reinterpret_cast<const std::byte*>(from.raw_data()->data()) - file.bytes().data()));
    entry("length", std::to_string(from.raw_data()->size()));
    return success();
  }

  // Reads optimizer_model.onnx: one optimizer for all parameters, and possibly clipping by the norm of all gradients.
  // An evaluation and --optimizer do not need the file, so an error in it is kept, and reported when it is used.
  void readOptimizer() {
    const std::string name = siblingPath(path, "optimizer_model.onnx");
    if (!llvm::sys::fs::exists(name)) return;
    auto refuse = [&](const Twine& why) {
      result->clipNorm = 0;
      result->optimizerError = llvm::json::fixUTF8((name + why).str());
    };
    Expected<MappedFile> file = MappedFile::open(name);
    if (!file.ok()) return refuse(": " + file.status().message());
    onnx::ModelProto model;
    const size_t size = file->bytes().size();
    if (size > size_t(INT32_MAX) || !model.ParseFromArray(file->bytes().data(), int(size)))
      return refuse(" is not an ONNX model; make the artifacts again, or give --optimizer");
    const onnx::NodeProto *optimizer = nullptr, *clip = nullptr;
    for (const onnx::NodeProto& node : model.graph().node()) {
      const bool updates = isMicrosoft(node, "AdamWOptimizer") || isMicrosoft(node, "SGDOptimizerV2");
      const onnx::NodeProto*& slot = updates ? optimizer : clip;
      if (!updates && !isMicrosoft(node, "InplaceClipGradNorm"))
        return refuse(" has a node " + node.op_type() +
                      ", which is not supported (AdamWOptimizer, SGDOptimizerV2 and InplaceClipGradNorm are); give "
                      "--optimizer, and --clip-norm if it clips gradients");
      if (slot)
        return refuse(" has the nodes " + slot->op_type() + " and " + node.op_type() + "; only one " +
                      (updates ? "optimizer" : "InplaceClipGradNorm") +
                      " is supported; give --optimizer, --clip-norm if it clips gradients, and --group for other "
                      "settings of some parameters");
      slot = &node;
    }
    if (!optimizer)
      return refuse(" has no optimizer that is supported (AdamWOptimizer, SGDOptimizerV2); give --optimizer");
    if (clip && failed(readClipping(*clip, *optimizer, refuse))) return;
    readRule(*optimizer, refuse);
  }

  using Refuse = llvm::function_ref<void(const Twine&)>;

  static double number(const onnx::NodeProto& node, StringRef key, double otherwise) {
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (attribute.name() == key)
        return attribute.type() == onnx::AttributeProto::INT ? double(attribute.i()) : double(attribute.f());
    return otherwise;
  }

  // The first attribute that is not in `known`, and might change what the node computes; null if there is none.
  static const onnx::AttributeProto* unknownAttribute(const onnx::NodeProto& node, ArrayRef<StringRef> known) {
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (!llvm::is_contained(known, attribute.name())) return &attribute;
    return nullptr;
  }

  LogicalResult readClipping(const onnx::NodeProto& clip, const onnx::NodeProto& optimizer, Refuse refuse) {
    auto fail = [&](const Twine& why) { return refuse(": InplaceClipGradNorm " + why), failure(); };
    // The optimizer's inputs are the rate, for AdamW the step, parameters, gradients and more.
    const int gradients = isMicrosoft(optimizer, "AdamWOptimizer") ? 3 : 2;
    if (clip.output_size() != 1 || optimizer.input_size() <= gradients || optimizer.input(gradients) != clip.output(0))
      return fail("does not clip the gradients of the optimizer; give --optimizer and --clip-norm");
    for (const onnx::AttributeProto& attribute : clip.attribute())
      if (attribute.name() == "norm_type" && attribute.s() != "fro")
        return fail("has another norm_type than fro, which is not supported; give --optimizer and --clip-norm");
    if (const onnx::AttributeProto* other = unknownAttribute(clip, {"max_norm", "norm_type"}))
      return fail("has an attribute " + other->name() + ", which is not supported; give --optimizer and --clip-norm");
    const double norm = number(clip, "max_norm", 1);
    if (!(norm > 0) || !std::isfinite(norm)) return fail("has no positive max_norm; give --optimizer and --clip-norm");
    result->clipNorm = norm;
    return success();
  }

  void readRule(const onnx::NodeProto& node, Refuse refuse) {
    const bool sgd = isMicrosoft(node, "SGDOptimizerV2");
    auto fail = [&](const Twine& why) {
      const StringRef clips = result->clipNorm > 0 ? ", and --clip-norm, since the file clips gradients" : "";
      refuse(": " + node.op_type() + " " + why + "; give --optimizer" + clips);
    };
    static constexpr StringRef kSettings[] = {"alpha", "beta", "epsilon", "weight_decay", "adam_mode", "correct_bias"};
    if (const auto* other = unknownAttribute(node, sgd ? ArrayRef<StringRef>() : ArrayRef<StringRef>(kSettings)))
      return fail("has an attribute " + other->name() + ", which is not supported");
    // The input after the gradients and momentums says whether to update at all.
    const int signal = sgd ? 3 : 6;
    if (node.input_size() > signal && !node.input(signal).empty())
      return fail("with an input update_signal is not supported");
    if (sgd) {
      result->optimizer = "sgd";
      return;
    }
    if (number(node, "correct_bias", 1) != 1) return fail("without correct_bias is not supported");
    const double mode = number(node, "adam_mode", 0);
    if (mode != 0 && mode != 1) return fail("with another adam_mode than 0 and 1 is not supported");
    llvm::raw_string_ostream out(result->optimizer);
    // As floats they have few digits; as doubles, all of the float's.
    auto setting = [&](StringRef key, double value) { out << key << "=" << llvm::format("%.9g", value); };
    out << (mode == 1 ? "adamw_hf" : "adamw") << ":";
    setting("beta1", number(node, "alpha", 0.9f));
    setting(",beta2", number(node, "beta", 0.999f));
    setting(",eps", number(node, "epsilon", 1e-8f));
    setting(",weight_decay", number(node, "weight_decay", 1e-2f));
  }

  // MaxPoolGrad has the places of the maxima; here they are found again from the pool's input.
  void useInputOfMaxPool() {
    for (onnx::NodeProto& node : *graph.mutable_node()) {
      if (node.op_type() != "MaxPoolGrad" || node.input_size() != 2) continue;
      const onnx::NodeProto* pool = producers.lookup(node.input(1));
      if (pool && pool->op_type() == "MaxPool" && pool->input_size()) node.set_input(1, pool->input(0));
    }
    for (onnx::NodeProto& node : *graph.mutable_node())
      if (node.op_type() == "MaxPool" && node.output_size() == 2) node.mutable_output()->RemoveLast();
  }

  Location location;
  StringRef path;
  onnx::GraphProto& graph;
  llvm::StringMap<const onnx::ValueInfoProto*> inputs;
  llvm::StringMap<const onnx::NodeProto*> producers;
  llvm::StringSet<> accumulatorInputs;
  std::unique_ptr<TrainingArtifacts> result = std::make_unique<TrainingArtifacts>();
};

}  // namespace

FailureOr<std::unique_ptr<TrainingArtifacts>> TrainingArtifacts::adopt(Location location, StringRef path,
                                                                       onnx::ModelProto& model) {
  return ArtifactsReader(location, path, model).run();
}

}  // namespace sheaf::frontend
