// Runs an imported step through the reference evaluator, with the weights its parameters name.
#pragma once

#include <map>
#include <string>

#include "ir/Train/Evaluator.h"
#include "mlir/IR/BuiltinOps.h"
#include "test/frontend/ModelBuilder.h"

namespace sheaf::test {

// The first rows of a .npy file of f32 or i64, as many as the type has.
train::Tensor readRows(const std::string& path, mlir::RankedTensorType type);

// A parameter's initial value: from its source in `folder`, or its `value` attribute.
std::map<std::string, train::Tensor> readParameters(mlir::ModuleOp module, const std::string& folder);

// The loss of the first step in f64. Inputs are read from FOLDER/PREFIX.NAME.npy; without a prefix they are zero.
double firstLoss(mlir::ModuleOp module, const std::string& folder, const std::string& prefix);

// firstLoss of a model with a batch of 1 and inputs of zeros. Errors of the import fail the test, and give NaN.
double lossOf(const ModelBuilder& model);

}  // namespace sheaf::test
