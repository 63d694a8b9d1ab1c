// What a train.reduce does with elements, in any loop.
#pragma once

#include "codegen/fusion/ArithBuilder.h"
#include "ir/Train/TrainDialect.h"

namespace sheaf::codegen {

// The value that changes nothing, as a scalar or a vector of the reduction's compute type.
mlir::Value emitIdentity(ArithBuilder& a, train::ReduceOp op, mlir::Type type);

// Combines two partial results. Maxima and minima of floats are NaN if either is.
mlir::Value emitCombine(ArithBuilder& a, train::ReduceOp op, mlir::Value x, mlir::Value y);

// All lanes of a vector (a power of two of them) in one element: its halves are combined until one is left.
mlir::Value emitCombineLanes(ArithBuilder& a, train::ReduceOp op, mlir::Value value);

}  // namespace sheaf::codegen
