// Leaves of one row, of a graph that is fixed to one row of the batch.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::train {

// Makes of @step, which computes one row as if it were the whole batch, the step of one of `rows` leaves: the loss, and
// so each gradient, is the mean over the leaves, as if gradients of the rows were accumulated. In an evaluation it is
// the mean over the rows that count. Failure: an output of a row has no dimension for the rows, which has been
// reported.
mlir::LogicalResult makeRowLeaves(mlir::func::FuncOp step, int64_t rows);

}  // namespace sheaf::train
