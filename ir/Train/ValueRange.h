// Derives the range of a value's elements from the ops that compute it. Gradient rules ask it, so that a factor that is
// always finite costs nothing.
//
// Operands of the graph are taken for finite numbers of moderate size: e^x underflows to 0 and overflows, but a product
// of positive numbers is positive.
#pragma once

#include "ir/Train/TensorBuilder.h"

namespace sheaf::train {

bool isPositive(mlir::Value v);     // every element is greater than 0
bool isNotNegative(mlir::Value v);  // every element is at least 0
bool isNotZero(mlir::Value v);
bool isBoundedAbove(mlir::Value v);  // by a number at which e^x is finite

// True if an element of `v` may be infinite: `v` is data, a parameter or computed of these by elementwise ops, or a
// function computes it that is infinite somewhere, like log(0). What products of matrices and norms compute does not
// count: an infinite element there was one in a sum already. Neither does a parameter that is broadcast.
bool mayBeInfinite(mlir::Value v);

// True if `v` is a sum or mean of squares or of powers of magnitudes, or such a power. A root of it is a norm, whose
// gradient at 0 is 0.
bool isSumOfPowers(mlir::Value v);

// The product `y` of the gradient g and a factor. If the factor may be infinite, 0 where g is 0; but NaN where the
// operand x is NaN. Where x is a function's value, the function's operand counts.
mlir::Value guardUnless(TensorBuilder& t, bool finite, mlir::Value g, mlir::Value x, mlir::Value y);

}  // namespace sheaf::train
