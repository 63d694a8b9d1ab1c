// The evaluation's place in a module: the function @evaluation next to @step.
#pragma once

#include "mlir/IR/BuiltinOps.h"

namespace sheaf {

// Makes a module's @step its @evaluation, without the arguments that nothing reads: a module that only evaluates.
void becomeEvaluation(mlir::ModuleOp module);

// Moves the evaluation of such a module into the module of a training step of the same model, after the phase `train`.
// They share parameters by name; a parameter that the evaluation alone reads is frozen. An error is emitted where the
// two see a parameter in different types or layouts.
mlir::LogicalResult attachEvaluation(mlir::ModuleOp training, mlir::ModuleOp evaluation);

}  // namespace sheaf
