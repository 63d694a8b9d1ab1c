// Emits the GPU kernel of a row program: a gpu.func whose parameters are the fusion's operands and results, in order,
// as bare pointers to global memory. It does all rows: the launch is that of its mapping.
//
// All threads reach every barrier and exchange; elements outside of the rows or columns are computed on copies of
// elements inside and not stored. The order of every sum depends on the mapping alone.
#pragma once

#include "codegen/cuda/Mapping.h"
#include "codegen/fusion/KernelOperands.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"

namespace sheaf::codegen {

// Of a parameter or a global in the address spaces that NVIDIA's targets give them.
inline constexpr unsigned kGlobalSpace = 1, kSharedSpace = 3;

struct GpuEmission {
  // Whether the target rounds f32 to bf16 in one instruction; else it is done by integers.
  bool roundsToBf16 = true;
  // Whether ptxas may take so many registers that a processor holds only one block, rather than spill some.
  bool oneBlockSuffices = false;
};

// Appends the kernel `symbol` to a module of another context, in which arith, gpu, llvm, math, scf and vector are
// loaded; shared memory of a block is a global next to it, `symbol`_shared. Returns what the kernel does with its
// operands.
KernelOperands emitGpuRowKernel(const RowProgram& program, const Mapping& mapping, const GpuEmission& emission,
                                llvm::StringRef symbol, mlir::gpu::GPUModuleOp module);

}  // namespace sheaf::codegen
