// What a fusion computes, as far as its time depends on it.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

// The cost of one element of an op in a kernel, in additions; 1 for a reduction.
int elementCost(mlir::Operation* op);

// An elementwise op made of many instructions (exp, tanh, ...), unlike arithmetic, divisions and roots.
bool isElementaryFunction(mlir::Operation* op);

// Of all elements of the fusion's iteration space together, in additions. Broadcasts, reshapes and constants are free.
int64_t fusionOperations(FusionOp fusion);

}  // namespace sheaf::train
