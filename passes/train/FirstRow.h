// From a step of two rows to that of its first row.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/EqualRows.h"

namespace sheaf::train {

// Cuts a step of two rows to its first row, and `states` with it. That is valid because rows affect each other only
// through sums over the batch (Globalizer.h). Fails with an error if a replicated value that meets rows is not known to
// be the same for both.
mlir::LogicalResult cutToFirstRow(mlir::func::FuncOp step, BatchStates& states);

}  // namespace sheaf::train
