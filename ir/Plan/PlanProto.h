// Between the `plan` dialect and plan.proto, both ways: the dialect is the message as text.
#pragma once

#include "ir/Plan/PlanDialect.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan_ir {

enum class Kernels { kCompiled, kAny };

// The message; errors are located at the op that cannot be expressed. A kernel that is not compiled yet is an error
// unless `kernels` is kAny, which analyses of an unfinished plan pass: they do not need code.
mlir::FailureOr<plan::Plan> toProto(ProgramOp program, Kernels kernels = Kernels::kCompiled);

// A module with one plan.program. The plan must have passed plan::verifyPlan.
mlir::OwningOpRef<mlir::ModuleOp> fromProto(mlir::MLIRContext& context, const plan::Plan& plan);

// The attributes of a library call.
mlir::DictionaryAttr attributesOf(mlir::OpBuilder& builder, const plan::LibraryCall& call);

}  // namespace sheaf::plan_ir
