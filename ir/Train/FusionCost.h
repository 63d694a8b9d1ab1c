// What a fusion computes, as far as its time depends on it.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

// A rough number of instructions an elementwise op takes per vector: 1 for an addition, some 15 for an exponential.
int elementCost(mlir::Operation* op);

// Of all elements of the fusion's iteration space together, in additions. Broadcasts, reshapes and constants are free.
int64_t fusionOperations(FusionOp fusion);

}  // namespace sheaf::train
