// The message StepWork as an attribute of the module, and back.
#pragma once

#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan_ir {

// The dictionary that the module holds as `train.floor`, and back; an error is reported at `holder`.
mlir::DictionaryAttr stepWorkAttribute(mlir::Builder& builder, const plan::StepWork& work);
mlir::FailureOr<plan::StepWork> stepWorkOf(mlir::Operation* holder, mlir::DictionaryAttr attribute);

}  // namespace sheaf::plan_ir
