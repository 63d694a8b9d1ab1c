// A plan that is not finished: what the lowering leaves, and what the passes after it work on.
#pragma once

#include <vector>

#include "ir/Plan/PlanDialect.h"
#include "mlir/IR/OwningOpRef.h"
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

// The draft of a program in the `plan` dialect, which keeps its fusions; an error has been reported where this fails.
mlir::FailureOr<Draft> draftOf(ProgramOp program);

// The draft as text: a module with one plan.program, which has copies of the fusions.
mlir::OwningOpRef<mlir::ModuleOp> programOf(mlir::MLIRContext& context, const Draft& draft);

}  // namespace sheaf::plan_ir
