// From a step of two rows to that of its first row.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/EqualRows.h"

namespace sheaf::train {

// Cuts the step, and what `states` says of its values, to half of the rows, of which there are two. No value of a row
// depends on other rows but through sums over the batch, as Globalizer.h has found: so what is left computes the first
// row. Failure, after an error: a value that is the same on all ranks has elements for each row, and they differ, or it
// is not known that they are equal.
mlir::LogicalResult cutToFirstRow(mlir::func::FuncOp step, BatchStates& states);

}  // namespace sheaf::train
