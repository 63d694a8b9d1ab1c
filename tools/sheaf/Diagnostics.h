// MLIR's diagnostics as a command-line tool prints them: few lines, no operations, the place first.
#pragma once

#include <string>

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"

namespace sheaf::tool {

// "NODE: what is wrong", or without a place where there is none.
std::string textOf(mlir::Diagnostic& diagnostic);

// Prints errors and warnings to stderr for as long as it lives, at most ten errors.
class DiagnosticPrinter : mlir::ScopedDiagnosticHandler {
 public:
  explicit DiagnosticPrinter(mlir::MLIRContext& context);

 private:
  int errors_ = 0;
};

}  // namespace sheaf::tool
