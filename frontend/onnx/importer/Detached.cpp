#include "frontend/onnx/importer/Detached.h"

#include "frontend/onnx/importer/TorchExport.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// "detach", "detach_1": what torch.export calls a result of Tensor.detach.
bool isDetachName(StringRef name) {
  return functionOf(name) == "detach";
}

// One expression, of which the exporter has made some nodes.
struct Group {
  struct Slot {
    const onnx::NodeProto* node;
    int operand;
  };
  SmallVector<const onnx::NodeProto*> nodes;
  SmallVector<Slot> slots;  // operands from outside that are not constants
};

}  // namespace

bool Detached::isDetach(const onnx::NodeProto& node) {
  return node.op_type() == "Identity" && targetOf(expressionOf(node)).starts_with("aten.detach");
}

Detached::Detached(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  llvm::MapVector<StringRef, Group> groups;
  llvm::StringMap<const onnx::NodeProto*> producers;
  for (const onnx::NodeProto* node : nodes) {
    for (const std::string& output : node->output()) producers[output] = node;
    const StringRef expression = expressionOf(*node);
    if (!isDetach(*node) && expression.contains("%detach")) groups[expression].nodes.push_back(node);
  }
  if (groups.empty()) return;

  llvm::StringMap<bool> initializers;  // true if it has a name in expressions; else it is a constant of the exporter
  for (const onnx::TensorProto& tensor : model.graph().initializer())
    initializers[tensor.name()] = !model.valueMetadata(tensor.name(), kPlaceholder).empty();
  // The name of a value in expressions.
  auto nameOf = [&](StringRef value) {
    const StringRef placeholder = model.valueMetadata(value, kPlaceholder);
    return placeholder.empty() ? value : placeholder;
  };
  // A value that the graph has under this name is not one that was removed: an Identity, or an input of that name.
  auto isThere = [&](StringRef name) {
    const onnx::NodeProto* node = producers.lookup(name);
    return node ? isDetach(*node) : model.valueType(name) && !initializers.contains(name);
  };

  // Computations are merged with one of the same function: "linear_1" with "linear".
  llvm::StringSet<> functions;
  for (const auto& producer : producers) functions.insert(functionOf(producer.first()));
  for (std::string& name : removedFxValues(model, nodes))
    if (functions.contains(functionOf(name))) lacking.push_back(std::move(name));

  for (auto& [expression, group] : groups) {
    const SmallVector<StringRef> arguments = argumentsOf(expression);
    llvm::SmallSetVector<StringRef, 4> detached, others;
    llvm::StringSet<> known;  // initializers that detached parameters were folded into
    for (StringRef name : arguments) {
      if (isDetachName(name) && initializers.contains(name))
        known.insert(name);
      else
        (isDetachName(name) && !isThere(name) ? detached : others).insert(name);
    }
    for (const onnx::NodeProto* node : group.nodes)
      for (auto [i, input] : llvm::enumerate(node->input()))
        if (known.contains(input)) operands.insert({node, int(i)});
    if (detached.empty()) continue;

    llvm::StringSet<> own;
    for (const onnx::NodeProto* node : group.nodes)
      for (const std::string& output : node->output()) own.insert(output);
    llvm::SmallSetVector<const onnx::NodeProto*, 4> readers;
    for (const onnx::NodeProto* node : group.nodes)
      for (auto [i, input] : llvm::enumerate(node->input())) {
        auto initializer = initializers.find(input);
        const onnx::NodeProto* from = producers.lookup(input);
        const bool constant =
            initializer != initializers.end() ? !initializer->second : from && from->op_type() == "Constant";
        if (input.empty() || own.contains(input) || (constant && !known.contains(input))) continue;
        group.slots.push_back({node, int(i)});
        readers.insert(node);
      }

    // By position, where the operands whose names are known stand where the expression has them.
    if (readers.size() == 1 && group.slots.size() == arguments.size() && hasOperandsInOrder(targetOf(expression))) {
      auto agrees = [&](auto pair) {
        auto [slot, name] = pair;
        const StringRef value = slot.node->input(slot.operand);
        return detached.contains(name) || nameOf(value) == name || !producers.contains(name);
      };
      if (llvm::all_of(llvm::zip(group.slots, arguments), agrees)) {
        for (auto [slot, name] : llvm::zip(group.slots, arguments))
          if (detached.contains(name)) operands.insert({slot.node, slot.operand});
        continue;
      }
    }
    // By elimination: the operands that no other argument is.
    llvm::SmallSetVector<StringRef, 4> unnamed;
    llvm::StringSet<> found;
    for (const Group::Slot& slot : group.slots) {
      const StringRef value = slot.node->input(slot.operand), name = nameOf(value);
      if (others.contains(name))
        found.insert(name);
      else if (!known.contains(value))
        unnamed.insert(value);
    }
    const bool certain =
        others.empty() || (found.size() == others.size() && !unnamed.empty() && unnamed.size() == detached.size());
    for (const Group::Slot& slot : group.slots) {
      if (certain && unnamed.contains(slot.node->input(slot.operand))) operands.insert({slot.node, slot.operand});
      if (!certain) unclear.insert(slot.node);
    }
  }
}

}  // namespace sheaf::frontend
