// What a batch's loss weighs in the mean over the batches of an evaluation.
#pragma once

#include "passes/train/RowMask.h"

namespace sheaf::train {

// Adds the output "loss_weight" to an evaluation over `ranks` ranks, for which -train-partition has found where
// the batch is. The mean of the batches' losses by their weights is then the loss of all rows as one batch:
//  - a quotient of sums over the batch, also scaled and with a value added that is the same for every batch: its
//  divisor;
//  - a sum over the batch: the rows that count, after it has been scaled to a full batch;
//  - what does not depend on the batch: the rows that count.
// Any other loss gets no weight: then every batch must be full. `isTerm` says whether a value is this rank's term of a
// sum over the batch.
void weighLoss(mlir::func::FuncOp step, int64_t ranks, RowMask& mask, llvm::function_ref<bool(mlir::Value)> isTerm);

}  // namespace sheaf::train
