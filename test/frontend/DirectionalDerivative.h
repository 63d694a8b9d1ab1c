// Gradients of an imported step against central differences, in f64.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/Train/Evaluator.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::test {

// Differentiates @step, whose parameters have the values `at` but for those of parameters whose names contain `fixed`,
// which are drawn again and not moved; with `trainedOnly` frozen parameters are not moved either. Elements are changed
// by a little first, so that no two are equal and none is at a kink. Returns "" if the derivatives in random directions
// agree with differences, else what is wrong.
std::string checkDerivatives(mlir::ModuleOp module, const std::vector<train::Tensor>& arguments,
                             const std::map<std::string, train::Tensor>& at, const std::string& fixed,
                             bool trainedOnly = false);

}  // namespace sheaf::test
