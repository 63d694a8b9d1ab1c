// From a module of emitted GPU kernels to PTX, NVIDIA's portable assembly.
#pragma once

#include <memory>
#include <string>

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Support/LLVM.h"

namespace llvm {
class TargetMachine;
}

namespace sheaf::codegen {

// The least compute capability that kernels are compiled for: it has bf16 conversions.
inline constexpr int kLeastArchitecture = 80;

// `architecture` is NN of sm_NN. Less than the least, or one that LLVM does not know, is an error, described in
// `error`.
mlir::FailureOr<std::unique_ptr<llvm::TargetMachine>> createGpuTargetMachine(int architecture, std::string& error);

// A context with the dialects of emitted GPU kernels; used by one thread at a time.
std::unique_ptr<mlir::MLIRContext> createGpuContext();

// Lowers a module of emitted kernels. Arithmetic stays what it is: no multiplication and addition is fused that is not
// written so, divisions and square roots are rounded correctly, subnormal numbers are kept. On failure `error` says
// why.
mlir::FailureOr<std::string> compileToPtx(mlir::gpu::GPUModuleOp module, llvm::TargetMachine& machine,
                                          std::string& error);

}  // namespace sheaf::codegen
