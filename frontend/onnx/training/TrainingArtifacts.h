// Graphs that ONNX Runtime's training tools have made: with their backward pass, and parameters as inputs.
// https://onnxruntime.ai/docs/api/python/on_device_training/training_artifacts.html
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/IR/Location.h"
#include "mlir/Support/LLVM.h"
#include "onnx/onnx-ml.pb.h"

namespace sheaf::frontend {

// What such a graph computes besides its loss.
struct TrainingArtifacts {
  struct Gradient {
    std::string parameter, value;  // an initializer, and the value that is its gradient
  };

  std::string loss;
  std::vector<Gradient> gradients;
  llvm::StringSet<> outputs;   // outputs of the graph that are gradients
  llvm::StringSet<> unstored;  // parameters without initial values: there is no checkpoint
  std::string optimizer;       // that of optimizer_model.onnx in the folder, as --optimizer takes it; empty without one
  std::string optimizerError;  // why that file cannot be used; empty if it can
  double clipNorm = 0;         // the norm that the file clips gradients to; 0: it does not clip

  // Turns `model`, the file `path`, into the form of other models: parameters become initializers, whose values lie in
  // the file `checkpoint` of the model's folder, and inputs that accumulate gradients go. Null for any other model,
  // which stays as it is.
  static mlir::FailureOr<std::unique_ptr<TrainingArtifacts>> adopt(mlir::Location location, llvm::StringRef path,
                                                                   onnx::ModelProto& model);
};

}  // namespace sheaf::frontend
