// Shared by the lifting passes and the importer: looking through ops that exporters insert, reading splat constants,
// and reporting what was lifted.
#pragma once

#include <optional>

#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::train {

mlir::RankedTensorType typeOf(mlir::Value value);

// The value all elements of `value` share, read through reshapes, broadcasts, transposes, slices and casts of a splat
// constant, or nothing.
std::optional<double> splatValue(mlir::Value value);

// Whether a constant read from a graph is meant to be `expected`: exporters write them in anything from the digits of a
// paper to the element type's own precision.
bool isApproximately(double value, double expected, mlir::Type elementType);

// `value` before any reshapes; these keep the row-major order of the elements.
mlir::Value skipReshapes(mlir::Value value);
// The same, and before any casts from one float type to another.
mlir::Value skipReshapesAndCasts(mlir::Value value);

// `other` and the splat operand of a mul, div (by the splat), add or sub (of the splat): `splat` on either side.
struct WithSplat {
  mlir::Value other;
  double splat;
};
std::optional<WithSplat> matchMulBySplat(mlir::Value value);  // x*c, c*x, x/c as 1/c, -x as -1
std::optional<WithSplat> matchAddOfSplat(mlir::Value value);  // x+c, c+x, x-c as -c

// Rows: a tensor whose trailing dimensions have `columns` elements together, whatever its other dimensions.
struct RowStatistic {
  mlir::Value value;  // One element a row, in any shape.
  int64_t columns;
};
// The statistic that `value` repeats along each of its rows.
std::optional<RowStatistic> matchRowStatistic(mlir::Value value);
// The vector of `columns` elements, in any shape, that `value` repeats in every row; null if it does not.
mlir::Value matchColumnVector(mlir::Value value, int64_t columns);
// The operand of which `value` is the sum, mean, ... of each row of `columns` elements; null if it is not.
mlir::Value matchRowReduction(mlir::Value value, ReduceKind kind, int64_t columns);

// Whether a float value depends on a trainable parameter, so that dropping its gradient would be wrong.
bool dependsOnParameters(mlir::Value value);

// Visits every op of every function's body from the last to the first, erasing what is dead on the way, so that the
// ops of a pattern replaced at its last op are gone before they are visited. The callback may insert ops before the
// visited one, replace its results and erase its users.
void visitBackwards(mlir::ModuleOp module, llvm::function_ref<void(mlir::Operation*)> visit);

// Appends "lifted COUNT NOUN" (with a plural s, or `plural`) to the module's `train.decisions`, unless count is 0.
void recordLifted(mlir::ModuleOp module, int64_t count, llvm::StringRef noun, llvm::StringRef plural = "");
void recordDecision(mlir::ModuleOp module, const llvm::Twine& text);

}  // namespace sheaf::train
