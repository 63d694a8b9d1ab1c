// The kernels that fusions need: one for all that are the same but for their operands.
#pragma once

#include <string>
#include <vector>

#include "codegen/fusion/RowProgram.h"

namespace sheaf::codegen {

struct DistinctPrograms {
  std::vector<RowProgram> programs;
  std::vector<std::string> symbols;  // of each program's kernel, on every target
  std::vector<size_t> programOf;     // of each fusion
};

// A fusion that is not a row program is a diagnostic at the fusion.
mlir::FailureOr<DistinctPrograms> distinctPrograms(llvm::ArrayRef<train::FusionOp> fusions);

}  // namespace sheaf::codegen
