// A plan that is not finished: what the lowering leaves, and what the passes after it work on.
#pragma once

#include <vector>

#include "mlir/IR/BuiltinAttributeInterfaces.h"
#include "mlir/IR/Operation.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan_ir {

struct Draft {
  plan::Plan plan;
  // The fusion of each of plan.kernels, in their order, until all are compiled. They belong to the program that was
  // lowered. Null: the program states none.
  std::vector<mlir::Operation*> fusions;
  // The values of each parameter, copied tensor and constant of the plan, in their order. Null: they lie in a file.
  std::vector<mlir::ElementsAttr> parameterValues, copiedValues, constantValues;
};

}  // namespace sheaf::plan_ir
