// What a program in the `plan` dialect needs before it is written: compiled kernels, and files that exist.
#pragma once

#include <string>

#include "codegen/emit/Targets.h"
#include "ir/Plan/PlanDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::codegen {

// Compiles the fusions in the program's `plan.kernel` ops and replaces them by entries of one `plan.image` a target.
// `notes` receives a line about each image.
mlir::LogicalResult compileKernels(plan_ir::ProgramOp program, const KernelTargets& targets,
                                   std::vector<std::string>& notes);

// Finds the program's files, whose paths are relative to `modelFolder`, records size and hash of those that exist and
// makes their paths relative to the folder of `planPath`. Values that lie in no file (computed while importing) are
// written to `planPath`.data; `wroteData` says whether there were any. The caller removes that file if it fails later.
// Then every initial byte of parameters and constants is read, on so many threads, and hashed; with no threads, none
// is.
mlir::LogicalResult resolveFiles(plan_ir::ProgramOp program, const std::string& modelFolder,
                                 const std::string& planPath, unsigned hashThreads, bool& wroteData);

}  // namespace sheaf::codegen
