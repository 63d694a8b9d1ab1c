// Which rows of an evaluation's batch count: those that only fill up the last batch are left out of every sum over it.
#pragma once

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::train {

class RowMask {
 public:
  // Of the step's argument `train.row_mask`, which is 1 for each of the rank's rows that counts, else 0. A step without
  // one has no mask, and all of its rows count.
  explicit RowMask(mlir::func::FuncOp step);
  explicit operator bool() const { return bool(mask); }

  // The step's argument.
  mlir::Value own() const { return mask; }
  // Of a rank, those that only fill up the batch included.
  int64_t rows() const;
  // `value` with zeros in rows that do not count, made before `user`. Its dimension `axis` is anything x rows x minor.
  mlir::Value apply(mlir::Operation* user, mlir::Value value, int64_t axis, int64_t rows, int64_t minor) const;
  // How many rows count on all ranks: an f32 scalar, made once at the beginning of the step.
  mlir::Value count();

 private:
  mlir::func::FuncOp step;
  mlir::Value mask, counted;
};

// For an evaluation without a mask on one rank: takes the first dimension of an output for rows where it holds `rows`,
// or a multiple.
void markOutputRows(mlir::func::FuncOp step, int64_t rows);

}  // namespace sheaf::train
