// Emits the CPU kernel of a row program: `void kernel(void** args, int64_t begin, int64_t end)`.
#pragma once

#include "codegen/fusion/KernelOperands.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::codegen {

// Appends an llvm.func named `symbol` to a module of another context, in which arith, math, vector, scf and llvm are
// loaded. What is emitted is structured (scf) and is lowered by lowerKernels. Says what it does with its operands.
KernelOperands emitRowKernel(const RowProgram& program, llvm::StringRef symbol, mlir::ModuleOp module);

}  // namespace sheaf::codegen
