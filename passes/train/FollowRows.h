// Finds the batch in every value of a step, and constants that count its rows, by a second import of the graph with
// another number of rows.
#pragma once

#include "mlir/IR/BuiltinOps.h"

namespace sheaf::train {

// Two modules of one graph: `step` has the rows of a leaf, or two where a leaf has one; `other` has more: if possible
// those of the whole batch, of which there are `batch`.
struct RowImports {
  mlir::ModuleOp step, other;
  int64_t rows = 0, otherRows = 0, batch = 0;
};

// Both compare the two @step op by op. The first op that does something else with more rows is recorded in an attribute
// of @step, and -train-globalize-loss refuses it.

// To call before any pass. A constant that the graph makes of the number of rows, such as the divisor of a mean,
// becomes that of the whole batch. One with a row for each row of the batch keeps as many rows as the step has, if all
// of them are equal.
mlir::LogicalResult takeBatchConstants(RowImports imports);

// To call after the passes of addImportPasses on both modules, which may have made constants of constants: it takes
// those as takeBatchConstants() does. A dimension whose sizes differ holds the batch: ops get
// the attribute `train.rows` (kRowsAttr), and the module `train.rows_known`.
void markRows(RowImports imports);

// Says in @step that it cannot be divided among leaves, and why, for -train-globalize-loss. The first reason stays.
// Always a failure.
mlir::LogicalResult refuseRows(mlir::ModuleOp module, mlir::Location where, const llvm::Twine& why);

}  // namespace sheaf::train
