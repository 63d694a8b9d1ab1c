// The labels that the evaluation's logits predict.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::train {

// Adds two outputs if the loss is made from one cross entropy: `correct`, the labels whose logit is the first of the
// largest ones of its row, and `labels`, those that count. They are sums over the batch.
void addAccuracy(mlir::func::FuncOp step);

}  // namespace sheaf::train
