// The way back: the user's ONNX model with other values of its parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/MLIRContext.h"

namespace sheaf::frontend {

struct ExportOptions {
  std::string loss;           // ImportOptions::loss of the plan: what is a parameter depends on what the loss needs
  bool keepTraining = false;  // leave Dropout and BatchNormalization in training mode
};

// The parameters that have new values.
struct TrainedParameters {
  llvm::StringSet<> names;  // of the plan; each must be in the model
  // `count` values of one of them in the layout of the plan, as little-endian elements; a failure has been reported.
  std::function<mlir::FailureOr<std::string>(llvm::StringRef name, mlir::FloatType type, int64_t count)> values;
};

// The files next to a model that hold its tensors, relative to its folder; none if it cannot be read.
std::vector<std::string> externalFiles(mlir::MLIRContext& context, llvm::StringRef path);

// Writes the model of file `path`, which the plan was compiled from, or which is another export of the same module (for
// inference, say, without a loss), to file `output`, with these values in its initializers: in their own shape and
// type, also where an exporter had folded, merged or copied a parameter. A parameter that had been merged with another
// gets an initializer of its own. What was external data lies in OUTPUT.data, all else is as it was. Unless
// `keepTraining`, Dropout and BatchNormalization in training mode are turned to evaluation. A training_info loses the
// initialization of what is trained.
mlir::LogicalResult exportOnnx(mlir::MLIRContext& context, llvm::StringRef path, llvm::StringRef output,
                               const ExportOptions& options, const TrainedParameters& trained);

}  // namespace sheaf::frontend
