#include "frontend/onnx/training/TrainingInfo.h"

#include "frontend/onnx/training/OptimizerRules.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace sheaf::frontend {

FailureOr<std::unique_ptr<TrainingForm>> TrainingForm::read(const Model& model) {
  auto error = [&] { return emitError(model.location()) << "training_info: "; };
  std::unique_ptr<TrainingForm> form(new TrainingForm);
  // Nodes are pointed to.
  int count = 0, number = 0;
  for (const onnx::TrainingInfoProto& info : model.proto().training_info()) count += info.algorithm().node_size();
  form->merged.Reserve(count);
  for (const onnx::TrainingInfoProto& info : model.proto().training_info())
    if (failed(form->addEntry(model, info, number++))) return failure();
  if (form->lossName.empty())
    return error() << "the algorithm has no Gradient operator; give --loss and --optimizer to train the graph alone";
  for (const std::string& name : form->updated)
    if (form->gradients.end() != llvm::find_if(form->gradients, [&](auto& g) { return g.second == name; }))
      form->xs.push_back(name);
  llvm::erase_if(form->updated, [&](const std::string& name) { return llvm::is_contained(form->xs, name); });
  if (form->xs.empty())
    return error() << "nothing is trainable: update_binding assigns none of the Gradient operator's xs";
  return form;
}

LogicalResult TrainingForm::addEntry(const Model& model, const onnx::TrainingInfoProto& info, int number) {
  auto error = [&] { return emitError(model.location()) << "training_info: "; };
  // What names stand for in this entry: values of its own that were renamed, and what earlier entries assigned.
  llvm::StringMap<std::string> names;
  for (auto& entry : bindings) names[entry.first()] = entry.second;
  for (const onnx::NodeProto& node : info.algorithm().node()) {
    onnx::NodeProto& copy = *merged.Add() = node;
    for (std::string& input : *copy.mutable_input())
      if (auto it = names.find(input); it != names.end()) input = it->second;
    for (std::string& output : *copy.mutable_output()) {
      if (output.empty()) continue;
      std::string own = output;
      if (number && producers.contains(own)) own += ".of_training_info_" + std::to_string(number);
      if (!producers.try_emplace(own, &copy).second)
        return error() << "the algorithm defines the value '" << output << "' twice";
      if (own != output) names[output] = own;
      output = own;
    }
    bool gradient = node.op_type() == "Gradient" && StringRef(node.domain()).ends_with("training");
    if (gradient && failed(readGradient(model, copy, number))) return failure();
  }
  for (const onnx::TensorProto& tensor : info.algorithm().initializer()) tensors.push_back(&tensor);
  for (const onnx::ValueInfoProto& input : info.algorithm().input()) values.push_back(&input);
  llvm::StringSet<> assigned;
  for (const onnx::StringStringEntryProto& entry : info.update_binding()) {
    if (!assigned.insert(entry.key()).second) return error() << "update_binding assigns '" << entry.key() << "' twice";
    auto renamed = names.find(entry.value());
    bindings[entry.key()] = renamed == names.end() ? entry.value() : renamed->second;
    if (!llvm::is_contained(updated, entry.key())) updated.push_back(entry.key());
  }
  return success();
}

LogicalResult TrainingForm::readGradient(const Model& model, const onnx::NodeProto& node, int number) {
  auto error = [&] { return emitError(model.location()) << "training_info: Gradient '" << node.name() << "': "; };
  std::string y;
  std::vector<std::string> names, others;
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == "y") y = attribute.s();
    if (attribute.name() == "xs") names.assign(attribute.strings().begin(), attribute.strings().end());
    if (attribute.name() == "zs") others.assign(attribute.strings().begin(), attribute.strings().end());
  }
  if (y.empty() || names.empty() || int(names.size()) != node.output_size())
    return error() << "needs y, xs and one output per element of xs";
  if (!lossName.empty() && lossName != y)
    return error() << "differentiates '" << y << "', but another Gradient operator '" << lossName
                   << "'; a model has one loss";
  lossName = y;
  // A step has one forward and one backward pass, with the weights that it begins with.
  others.insert(others.begin(), names.begin(), names.end());
  for (int i = 0; i < node.input_size() && i < int(others.size()); ++i)
    if (node.input(i) != others[i])
      return error() << "differentiates at '" << node.input(i) << "' instead of '" << others[i]
                     << "', the value at the beginning of the step";
  if (number)
    for (const onnx::NodeProto& reader : model.graph().node())
      for (const std::string& input : reader.input())
        if (bindings.contains(input))
          return error() << "differentiates after an earlier entry has updated '" << input
                         << "', which the graph reads; a step differentiates once, before the updates";
  for (auto [i, name] : llvm::enumerate(names)) {
    bool initializer = llvm::any_of(model.graph().initializer(), [&](auto& t) { return t.name() == name; });
    if (!initializer)
      return error() << "'" << name << "' is not an initializer; gradients of other values are not supported";
    gradients[node.output(i)] = name;
  }
  return success();
}

StringRef TrainingForm::gradientOf(StringRef value) const {
  auto it = gradients.find(value);
  return it == gradients.end() ? StringRef() : StringRef(it->second);
}

StringRef TrainingForm::binding(StringRef initializer) const {
  auto it = bindings.find(initializer);
  return it == bindings.end() ? StringRef() : StringRef(it->second);
}

std::vector<std::string> TrainingForm::variablesOf(StringRef value) const {
  std::vector<std::string> found, pending{value.str()};
  llvm::StringSet<> seen;
  while (!pending.empty()) {
    std::string name = std::move(pending.back());
    pending.pop_back();
    if (!seen.insert(name).second) continue;
    std::string variable = gradientOf(name).str();
    if (variable.empty() && llvm::is_contained(xs, name)) variable = name;
    if (!variable.empty() && !llvm::is_contained(found, variable)) found.push_back(variable);
    const onnx::NodeProto* node = variable.empty() ? producer(name) : nullptr;
    if (!node) continue;
    // An optimizer's output is computed from the inputs of its own variable.
    int variables = StringRef(node->domain()).ends_with("training") ? optimizerVariables(*node) : 0;
    int own = variables ? int(llvm::find(node->output(), name) - node->output().begin()) % variables : 0;
    for (int i = 0; i < node->input_size(); ++i)
      if (!variables || i < 2 || (i - 2) % variables == own) pending.push_back(node->input(i));
  }
  return found;
}

}  // namespace sheaf::frontend
