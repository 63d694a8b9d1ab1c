// GPU kernels of fusions: one entry point per distinct train.fusion, in one fat binary of machine code and PTX.
//
// ABI: `symbol(T* operand, ..., T* result, ...)`: the fusion's operands in order, then its results, as pointers to
// device memory: dense row-major tensors that start at multiples of 16 bytes, booleans as bytes. A launch does all
// rows. A result may share memory with one of the fusion's `elementwise` operands and with no other. The bits of the
// results are the same on every run.
#pragma once

#include <string>
#include <vector>

#include "codegen/cuda/Mapping.h"
#include "codegen/cuda/Toolkit.h"
#include "codegen/fusion/KernelOperands.h"
#include "ir/Train/TrainDialect.h"

namespace sheaf::codegen {

struct CudaTargetOptions {
  int architecture = 80;  // NN of sm_NN
  unsigned threads = 2;   // that compile
};

struct CudaKernel {
  std::string symbol;
  KernelOperands operands;  // what it does with them
  Mapping mapping;
  int pressure = 0;  // of the mapping
  KernelUsage usage;
};

struct CudaImage {
  std::string code;     // a fat binary
  std::string chip;     // "sm_90"
  std::string toolkit;  // that made the code, "13.0"
  std::vector<CudaKernel> kernels;
  std::vector<size_t> kernelOf;  // of each fusion
};

// Compiles the fusions. Kernels that need too many registers are mapped again until they fit. Errors are a
// diagnostic at the fusion or at the module.
mlir::FailureOr<CudaImage> compileCudaKernels(llvm::ArrayRef<train::FusionOp> fusions,
                                              const CudaTargetOptions& options);

}  // namespace sheaf::codegen
