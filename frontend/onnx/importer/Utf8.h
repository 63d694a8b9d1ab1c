#pragma once

#include "mlir/IR/Location.h"
#include "mlir/Support/LLVM.h"
#include "onnx/onnx-ml.pb.h"

namespace sheaf::frontend {

// Fails with an error that names the first text of a model that is not UTF-8: of names, documentation or metadata.
// ONNX's readers do not check it, and plans cannot hold such names.
mlir::LogicalResult checkUtf8(mlir::Location location, const onnx::ModelProto& model);

}  // namespace sheaf::frontend
