// An import that goes on after errors, for `sheaf check`: what a node that cannot be imported would have defined is
// stood in for by a value of the type that the model states, or is unknown, and so is all that is computed of it.
#pragma once

#include <map>

#include "frontend/onnx/importer/Importer.h"

namespace sheaf::frontend {

class Surveyor {
 public:
  Surveyor(mlir::MLIRContext& context, Survey& survey);

  // Imports a node, or notes why it cannot be and defines its outputs all the same.
  void importNode(Importer& importer, const onnx::NodeProto& node, Scope& scope, int64_t ordinal);
  void unsupported(const onnx::NodeProto& node, int64_t opset);
  // The size to go on with for a dimension that is not bound.
  int64_t assume(llvm::StringRef dimension, llvm::StringRef input);
  // The size of the batch to go on with.
  int64_t assumeBatch(int64_t ranks);
  // The outputs to look at where no loss is chosen; notes what could be one.
  std::vector<std::string> outputs(const Importer& importer);
  // Whether a value has a type but not all of its dependences: what a gradient reaches is then unknown.
  bool dependenciesUnknown() const { return unknownDependencies; }
  // Notes what would be trained, and data that is missing.
  void finish(const Importer& importer, mlir::ModuleOp module);

 private:
  void scan(const Importer& importer, const onnx::NodeProto& node, const onnx::FunctionProto* function, int depth);
  GraphValue standIn(Importer& importer, const onnx::NodeProto& node, llvm::StringRef output, Scope& scope);
  void addRefusedNode(const onnx::NodeProto& node, llvm::StringRef error);
  void noteFiles(const Importer& importer, const std::vector<Model::Source>& sources);

  Survey& survey;
  int64_t scanned = 0;  // nodes that scan() has looked at
  bool assumed = false, unknownDependencies = false;
  std::vector<std::string> errors;  // of the node that is being imported
  bool importing = false;
  mlir::ScopedDiagnosticHandler handler;
};

}  // namespace sheaf::frontend
