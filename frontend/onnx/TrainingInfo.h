// ONNX's own training form: ModelProto.training_info.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/onnx/Emitter.h"
#include "frontend/onnx/Model.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::frontend {

// The training algorithm of a model: one Gradient operator, and for each parameter an elementwise update of it, its
// gradient, its states and scalars, as update_binding assigns them after every step.
class TrainingForm {
 public:
  static mlir::FailureOr<std::unique_ptr<TrainingForm>> read(const Model& model);

  const onnx::GraphProto& algorithm() const { return graph; }
  const std::string& loss() const { return lossName; }
  const std::vector<std::string>& variables() const { return xs; }

  // Declares a `train.optimizer` for each distinct update, before the step, and names it at its parameters.
  mlir::LogicalResult emitOptimizers(Emitter& emit, mlir::ModuleOp module, const Model& model) const;

 private:
  explicit TrainingForm(const onnx::GraphProto& graph) : graph(graph) {}

  const onnx::GraphProto& graph;
  std::string lossName;
  std::vector<std::string> xs;
  llvm::StringMap<std::string> gradientOf;  // Gradient's outputs to the variables they belong to
  llvm::StringMap<std::string> bindings;    // initializer to the value it gets after the step
};

}  // namespace sheaf::frontend
