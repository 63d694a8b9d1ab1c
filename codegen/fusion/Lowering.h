// From emitted kernels to the code of a target, the part that all targets share.
#pragma once

#include <string>

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/CodeGen.h"
#include "mlir/IR/Operation.h"
#include "mlir/Support/LLVM.h"

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm
namespace mlir {
class LLVMTypeConverter;
class RewritePatternSet;
}  // namespace mlir

namespace sheaf::codegen {

// scf to branches, in all functions within.
mlir::LogicalResult lowerLoops(mlir::Operation* module);

// arith, cf, math and vector to the `llvm` dialect, without calls.
void populateKernelToLLVMPatterns(mlir::LLVMTypeConverter& converter, mlir::RewritePatternSet& patterns);

// Optimizes a module for a machine and emits its code. On failure `error` says why.
mlir::LogicalResult emitCode(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type,
                             llvm::SmallVectorImpl<char>& code, std::string& error);

}  // namespace sheaf::codegen
