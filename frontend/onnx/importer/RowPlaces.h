// Follows the rows of the batch through a step.
#pragma once

#include "ir/Train/Place.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::frontend {

// Finds where `value` has the rows of the batch, which are the first dimension of the step's arguments: of [35 * 20,
// V], made of [35, 20, V] with the rows second, it is {0, 1}. Nothing if it has none of them, or if they cannot be
// followed to it. Rows differ by their distance in memory, so there must be at least two.
std::optional<train::Place> placeOfRows(mlir::func::FuncOp step, mlir::Value value, int64_t rows);

}  // namespace sheaf::frontend
