// From a module of emitted kernels to machine code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/LLVM.h"

namespace llvm {
class TargetMachine;
}

namespace sheaf::codegen {

// The machine that kernels are compiled for, and what it must have.
struct CpuTarget {
  std::string cpu;                    // an LLVM CPU name
  std::vector<std::string> features;  // instruction sets of that CPU that kernels may use
};

// `name` is "host" or any x86-64 CPU or level LLVM knows. The host is rounded down to x86-64-v4 or x86-64-v3, so that
// the same plan comes out on machines of one level. Less than v3 (AVX2, FMA, F16C) is an error, described in `error`.
mlir::FailureOr<CpuTarget> resolveCpuTarget(llvm::StringRef name, std::string& error);

std::unique_ptr<llvm::TargetMachine> createTargetMachine(const CpuTarget& target);

// A context with the dialects of emitted kernels; used by one thread at a time.
std::unique_ptr<mlir::MLIRContext> createKernelContext();

// Lowers a module of emitted kernels and assembles it to a relocatable ELF object. On failure `error` says why.
mlir::LogicalResult compileKernels(mlir::ModuleOp module, llvm::TargetMachine& machine,
                                   llvm::SmallVectorImpl<char>& object, std::string& error);

}  // namespace sheaf::codegen
