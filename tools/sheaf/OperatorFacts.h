// What follows from importing an operator's sample and lowering it: the ops that it becomes, which operands have a
// gradient, and what executes it on CPUs and GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/onnx/ops/Registry.h"
#include "mlir/IR/MLIRContext.h"

namespace sheaf::tool {

struct OperatorFacts {
  std::vector<std::string> lowering;  // `train` ops without their prefix, in the order in which they are made
  int64_t floats = 0;                 // floating-point operands of the sample
  std::vector<int64_t> gradients;     // those that have a gradient, by their place among all operands
  // Of the forward and the backward pass: "kernel", or the names of library calls (`sheaf calls`). Empty where nothing
  // is computed: constants, and other views of the same elements.
  std::vector<std::string> cpu, cuda;
  std::string error;  // why there are no facts
};

OperatorFacts factsOf(mlir::MLIRContext& context, const frontend::RegisteredOperator& op);

}  // namespace sheaf::tool
