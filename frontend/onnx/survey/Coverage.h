// Which operators a model uses, and which of them the importer has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Support/LLVM.h"

namespace sheaf::frontend {

struct OperatorUse {
  std::string domain, name;  // the default domain is "ai.onnx"
  int64_t opset = 0;
  int64_t nodes = 0;
  bool supported = false;  // at this opset, or as a function of the model
};

// Sorted by domain, name and opset; the nodes of functions and of subgraphs count, too. Failure after a diagnostic.
mlir::FailureOr<std::vector<OperatorUse>> operatorUses(mlir::MLIRContext& context, llvm::StringRef path);

}  // namespace sheaf::frontend
