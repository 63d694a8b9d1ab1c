#include "frontend/onnx/ops/Softmax.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace sheaf::frontend {

// Operators whose result has the numbers of their first input, perhaps repeated.
static constexpr StringRef kSameNumbers[] = {"Reshape", "Squeeze",  "Unsqueeze", "Flatten",
                                             "Expand",  "Identity", "Cast"};

std::optional<std::string> softmaxOperand(const Model& model, StringRef value) {
  llvm::StringMap<const onnx::NodeProto*> producers;
  for (const onnx::NodeProto& node : model.graph().node())
    for (const std::string& output : node.output()) producers[output] = &node;
  auto producer = [&](StringRef name) {
    const onnx::NodeProto* node = producers.lookup(name);
    for (int64_t hops = 0; node && hops < model.graph().node_size(); ++hops) {
      if (!llvm::is_contained(kSameNumbers, StringRef(node->op_type())) || node->input_size() == 0) break;
      node = producers.lookup(node->input(0));
    }
    return node;
  };
  const onnx::NodeProto* node = producer(value);
  if (!node || node->input_size() == 0) return std::nullopt;
  if (node->op_type() == "Softmax") return node->input(0);
  const onnx::NodeProto* exponential = node->op_type() == "Div" ? producer(node->input(0)) : nullptr;
  if (!exponential || exponential->op_type() != "Exp" || exponential->input_size() == 0) return std::nullopt;
  const onnx::NodeProto* shifted = producer(exponential->input(0));
  if (!shifted || shifted->op_type() != "Sub" || shifted->input_size() != 2) return exponential->input(0);
  // JAX takes the maximum of that and of its initial value.
  auto isMaximum = [&](const onnx::NodeProto* of) { return of && of->op_type() == "ReduceMax"; };
  const onnx::NodeProto* by = producer(shifted->input(1));
  const bool initial = by && by->op_type() == "Max" &&
                       llvm::any_of(by->input(), [&](const std::string& name) { return isMaximum(producer(name)); });
  return isMaximum(by) || initial ? shifted->input(0) : exponential->input(0);
}

}  // namespace sheaf::frontend
