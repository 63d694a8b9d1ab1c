// ONNX's own training form: ModelProto.training_info.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/onnx/Model.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::frontend {

class Importer;

// The training algorithm of a model: Gradient operators, and for each parameter an elementwise update of it, its
// gradient, its states and scalars, as update_binding assigns them after every step.
class TrainingForm {
 public:
  static mlir::FailureOr<std::unique_ptr<TrainingForm>> read(const Model& model);

  const onnx::GraphProto& algorithm() const { return graph; }
  const std::string& loss() const { return lossName; }
  const std::vector<std::string>& variables() const { return xs; }  // those that are updated
  llvm::StringRef gradientOf(llvm::StringRef value) const;          // the variable, empty if it is not a gradient
  llvm::StringRef binding(llvm::StringRef initializer) const;       // its next value, empty if it never changes
  const onnx::NodeProto* producer(llvm::StringRef value) const { return producers.lookup(value); }

 private:
  explicit TrainingForm(const onnx::GraphProto& graph) : graph(graph) {}
  mlir::LogicalResult readGradient(const Model& model, const onnx::NodeProto& node);

  const onnx::GraphProto& graph;
  std::string lossName;
  std::vector<std::string> xs;
  llvm::StringMap<std::string> gradients, bindings;
  llvm::StringMap<const onnx::NodeProto*> producers;
};

// Declares a `train.optimizer` for each distinct update, before the step, and names it in the attribute
// `train.optimizer` of its parameters.
mlir::LogicalResult emitOptimizers(Importer& importer, const TrainingForm& form, mlir::ModuleOp module);

}  // namespace sheaf::frontend
