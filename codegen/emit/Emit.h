// Between the `plan` dialect and plan.proto, both ways.
#pragma once

#include <string>

#include "codegen/cpu/CpuKernels.h"
#include "ir/Plan/PlanDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::codegen {

// Compiles the fusions in the program's `plan.kernel` ops and replaces them by entries of one `plan.image`.
mlir::LogicalResult compileKernels(plan_ir::ProgramOp program, const CpuTargetOptions& options);

// Finds the program's files, whose paths are relative to `modelFolder`, records size and hash of those that exist and
// makes their paths relative to the folder of `planPath`. Values that lie in no file (computed while importing) are
// written to `planPath`.data; `wroteData` says whether there were any. The caller removes that file if it fails later.
mlir::LogicalResult resolveFiles(plan_ir::ProgramOp program, const std::string& modelFolder,
                                 const std::string& planPath, bool& wroteData);

// The message; errors are located at the op that cannot be expressed.
mlir::FailureOr<plan::Plan> toProto(plan_ir::ProgramOp program);

// A module with one plan.program. The plan must have passed plan::verify.
mlir::OwningOpRef<mlir::ModuleOp> fromProto(mlir::MLIRContext& context, const plan::Plan& plan);

}  // namespace sheaf::codegen
