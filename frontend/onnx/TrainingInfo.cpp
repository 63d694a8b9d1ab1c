#include "frontend/onnx/TrainingInfo.h"

using namespace mlir;

namespace sheaf::frontend {

FailureOr<std::unique_ptr<TrainingForm>> TrainingForm::read(const Model& model) {
  auto error = [&] { return emitError(model.location()) << "training_info: "; };
  if (model.proto().training_info_size() != 1)
    return error() << "only one training algorithm is supported, the model has " << model.proto().training_info_size();
  const onnx::TrainingInfoProto& info = model.proto().training_info(0);
  if (info.initialization_binding_size())
    emitWarning(model.location())
        << "training_info: the initialization graph is not run; the weights in the file are used";
  std::unique_ptr<TrainingForm> form(new TrainingForm(info.algorithm()));
  for (const onnx::StringStringEntryProto& entry : info.update_binding())
    if (!form->bindings.try_emplace(entry.key(), entry.value()).second)
      return error() << "update_binding assigns '" << entry.key() << "' twice";
  for (const onnx::NodeProto& node : form->graph.node()) {
    bool gradient = node.op_type() == "Gradient" && StringRef(node.domain()).ends_with("training");
    if (gradient && failed(form->readGradient(model, node))) return failure();
    for (const std::string& output : node.output())
      if (!output.empty() && !form->producers.try_emplace(output, &node).second)
        return error() << "the algorithm defines the value '" << output << "' twice";
  }
  if (form->lossName.empty())
    return error() << "the algorithm has no Gradient operator; give --loss and --optimizer to train the graph alone";
  if (form->xs.empty())
    return error() << "nothing is trainable: update_binding assigns none of the Gradient operator's xs";
  return form;
}

LogicalResult TrainingForm::readGradient(const Model& model, const onnx::NodeProto& node) {
  auto error = [&] { return emitError(model.location()) << "training_info: Gradient '" << node.name() << "': "; };
  std::string y;
  std::vector<std::string> names;
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == "y") y = attribute.s();
    if (attribute.name() == "xs") names.assign(attribute.strings().begin(), attribute.strings().end());
  }
  if (y.empty() || names.empty() || int(names.size()) != node.output_size())
    return error() << "needs y, xs and one output per element of xs";
  if (!lossName.empty() && lossName != y)
    return error() << "differentiates '" << y << "', but another Gradient operator '" << lossName
                   << "'; a model has one loss";
  lossName = y;
  for (auto [i, name] : llvm::enumerate(names)) {
    bool initializer = llvm::any_of(model.graph().initializer(), [&](auto& t) { return t.name() == name; });
    if (!initializer)
      return error() << "'" << name << "' is not an initializer; gradients of other values are not supported";
    gradients[node.output(i)] = name;
    if (bindings.contains(name) && !llvm::is_contained(xs, name)) xs.push_back(name);
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

}  // namespace sheaf::frontend
