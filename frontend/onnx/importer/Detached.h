// Finds where PyTorch's Tensor.detach stops gradients. An export without its optimizer has an Identity for it; the
// optimizer removes that, and only the expressions of the nodes that read the result tell of it.
#pragma once

#include "frontend/onnx/importer/Model.h"
#include "llvm/ADT/DenseSet.h"

namespace sheaf::frontend {

class Detached {
 public:
  Detached() = default;
  Detached(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes);

  // True if no gradient passes through an operand of a node.
  bool stops(const onnx::NodeProto* node, int operand) const { return operands.contains({node, operand}); }
  // True for an Identity that detaches its operand.
  static bool isDetach(const onnx::NodeProto& node);
  // True if some operand of the node was detached, and it is not known which one.
  bool isUnclear(const onnx::NodeProto* node) const { return unclear.contains(node); }
  // Values that expressions name and the graph lacks, if the optimizer has removed a detach: it may have merged them
  // with others, of which one was computed from a detached value.
  llvm::ArrayRef<std::string> missing() const { return lacking; }

 private:
  llvm::DenseSet<std::pair<const onnx::NodeProto*, int>> operands;
  llvm::DenseSet<const onnx::NodeProto*> unclear;
  std::vector<std::string> lacking;
};

}  // namespace sheaf::frontend
