// ONNX's own training form: ModelProto.training_info.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/onnx/importer/Model.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::frontend {

class Importer;

// The training algorithm of a model: Gradient operators, and for each parameter an elementwise update of it, its
// gradient, its states and scalars, as update_binding assigns them after every step.
//
// Of several entries each sees what those before it have assigned. They become one algorithm, in which a later entry
// reads the value that an earlier one binds to an initializer; names that two entries define are made different.
class TrainingForm {
 public:
  static mlir::FailureOr<std::unique_ptr<TrainingForm>> read(const Model& model);

  const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes() const { return merged; }
  // Those of the algorithms: of the model's own, too, where an entry has one of the same name.
  const std::vector<const onnx::TensorProto*>& initializers() const { return tensors; }
  const std::vector<const onnx::ValueInfoProto*>& inputs() const { return values; }
  const std::string& loss() const { return lossName; }
  const std::vector<std::string>& variables() const { return xs; }  // those that are updated by their gradients
  llvm::StringRef gradientOf(llvm::StringRef value) const;          // the variable, empty if it is not a gradient
  llvm::StringRef binding(llvm::StringRef initializer) const;       // its next value, empty if it never changes
  // The other initializers that are updated, in the order of their bindings.
  const std::vector<std::string>& others() const { return updated; }
  const onnx::NodeProto* producer(llvm::StringRef value) const { return producers.lookup(value); }
  // The variables that a value is computed from, by their own values or their gradients.
  std::vector<std::string> variablesOf(llvm::StringRef value) const;

 private:
  mlir::LogicalResult addEntry(const Model& model, const onnx::TrainingInfoProto& info, int number);
  mlir::LogicalResult readGradient(const Model& model, const onnx::NodeProto& node, int number);

  google::protobuf::RepeatedPtrField<onnx::NodeProto> merged;
  std::vector<const onnx::TensorProto*> tensors;
  std::vector<const onnx::ValueInfoProto*> values;
  std::string lossName;
  std::vector<std::string> xs, updated;
  llvm::StringMap<std::string> gradients, bindings;
  llvm::StringMap<const onnx::NodeProto*> producers;
};

// Runs the entries' `initialization` graphs: the importer then takes what they bind to initializers for their initial
// values. Random numbers follow from the nodes' seeds, and are the same in every compilation.
mlir::LogicalResult runInitialization(Importer& importer);

// Declares a `train.optimizer` for each distinct update, before the step, and names it in the attribute
// `train.optimizer` of its parameters.
mlir::LogicalResult emitOptimizers(Importer& importer, const TrainingForm& form, mlir::ModuleOp module);

}  // namespace sheaf::frontend
