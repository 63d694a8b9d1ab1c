// The loss: which output it is or is made of, and the input that --loss adds.
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/survey/Surveyor.h"
#include "frontend/onnx/training/TrainingInfo.h"
#include "llvm/ADT/STLExtras.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

std::string describeAll(const google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>& values) {
  std::string text;
  for (int i = 0; i < values.size() && i < 5; ++i) text += (i ? ", " : "") + describe(values[i]);
  if (values.size() > 5) text += " and " + std::to_string(values.size() - 5) + " more";
  return text;
}

std::vector<std::string> namesOf(const google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>& values) {
  std::vector<std::string> names;
  for (const onnx::ValueInfoProto& value : values) names.push_back(value.name());
  return names;
}

}  // namespace

bool Importer::isMadeByNode(StringRef name) const {
  return llvm::any_of(nodes,
                      [&](const onnx::NodeProto* node) { return llvm::is_contained(node->output(), name.str()); });
}

// Outputs come first: of several near names the first is taken.
std::vector<std::string> Importer::namesOfValues() const {
  std::vector<std::string> names = namesOf(model.graph().output());
  for (const onnx::NodeProto* node : nodes)
    for (const std::string& output : node->output())
      if (!output.empty()) names.push_back(output);
  return names;
}

LogicalResult Importer::chooseLoss() {
  const auto& outputs = model.graph().output();
  auto error = [&] { return emitError(model.location()); };
  auto find = [&](StringRef name) -> const onnx::ValueInfoProto* {
    for (const onnx::ValueInfoProto& output : outputs)
      if (output.name() == name) return &output;
    return nullptr;
  };
  if (model.artifacts()) {
    if (!options.loss.empty())
      return error() << "--loss cannot be given: the backward pass in the model is that of its own loss";
    lossName = model.artifacts()->loss;
    return success();
  }
  if (!options.loss.empty()) {
    lossName = options.loss;
    const onnx::ValueInfoProto* output = find(lossName);
    if (!output) {
      auto parsed = parseLoss(options.loss, error);
      if (failed(parsed)) return failure();
      request = std::move(*parsed);
      if (request) lossName = request->output, output = find(lossName);
    }
    // Any value of the graph will do for a loss that is made here: a graph may give away a softmax alone.
    if (request && isMadeByNode(lossName)) return success();
    if (!output)
      return error() << "--loss: '" << lossName << "' is not an output; the outputs are " << describeAll(outputs)
                     << (isLossFunction(lossName) ? "; write " + lossName + "(OUTPUT)" : "")
                     << didYouMean(request ? namesOfValues() : namesOf(outputs), lossName);
    if (!request && output->type().has_tensor_type() && !isFloatType(output->type().tensor_type().elem_type()))
      return error() << "the loss " << describe(*output) << " is not of a floating-point type, so it has no gradient";
    return success();
  }
  if (training) {
    lossName = training->loss();
    return success();
  }
  SmallVector<const onnx::ValueInfoProto*> scalars, candidates;
  for (const onnx::ValueInfoProto& output : outputs) {
    const auto& tensor = output.type().tensor_type();
    bool untyped = !output.type().has_tensor_type() || !tensor.has_shape();
    bool scalar =
        untyped ? outputs.size() == 1 : llvm::all_of(tensor.shape().dim(), [](auto& d) { return d.dim_value() == 1; });
    if (scalar) scalars.push_back(&output);
    if (scalar && (untyped || isFloatType(tensor.elem_type()))) candidates.push_back(&output);
  }
  if (candidates.size() == 1) {
    lossName = candidates[0]->name();
    return success();
  }
  if (candidates.size() > 1)
    return error() << "has " << candidates.size() << " outputs that could be the loss: " << describe(*candidates[0])
                   << ", " << describe(*candidates[1]) << "; choose one with --loss OUTPUT";
  if (!scalars.empty())
    return error() << "the only scalar output, " << describe(*scalars[0])
                   << ", is not of a floating-point type, so it has no gradient; give --loss OUTPUT";
  return error()
         << "has no scalar output to minimise; its outputs are " << describeAll(outputs)
         << ". Give --loss 'cross_entropy(OUTPUT)' or another loss of `sheaf help compile`, or export the model "
            "with its loss";
}

// Returns true if a value of the step has this name, so that an input that --loss adds needs another. Nodes that the
// step does not compute do not count: they may belong to the graph's own loss. Initializers count only if a node of the
// step reads them, and inputs that it does not read only if they are bound.
bool Importer::isTaken(StringRef name) {
  for (unsigned i = 0; i < step.getNumArguments(); ++i)
    if (step.getArgAttrOfType<StringAttr>(i, "train.name") == name) return true;
  for (auto [i, node] : llvm::enumerate(nodes))
    if (needed[i] && llvm::is_contained(node->output(), name.str())) return true;
  return root.values.contains(name) || (initializers.contains(name) && isRead(name));
}

// Returns the remedy for a loss that is not a scalar.
std::string Importer::remedyForShape(int64_t rank) {
  const std::string reduce = "reduce it in the model, as ReduceMean does";
  // A row of an output without classes is a loss already.
  if (rank < 2) return reduce;
  const std::string target = isTaken("labels") ? ", target=NAME" : "";
  return "give a loss of it, such as --loss 'cross_entropy(" + lossName + target + ")', or " + reduce;
}

}  // namespace sheaf::frontend
