// CPU kernels of fusions: one function per distinct train.fusion, in one image of position-independent code.
//
// ABI: `void kernel(void** args, int64_t begin, int64_t end)`. `args` are the fusion's operands in order, then its
// results: dense row-major tensors, booleans as bytes. The call handles the rows [begin, end) of the iteration space;
// begin is a multiple of the fusion's `block`, end another one or the number of rows. A kernel is reentrant, calls
// nothing, allocates nothing and reads nothing but its arguments. A result may share memory with one of the fusion's
// `elementwise` operands and with no other. The bits of the results do not depend on how the rows are split.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codegen/fusion/KernelOperands.h"
#include "ir/Train/TrainDialect.h"

namespace sheaf::codegen {

struct CpuTargetOptions {
  std::string cpu = "host";  // or "x86-64-v3", "x86-64-v4", or any x86 CPU LLVM knows
  unsigned threads = 2;      // that compile
};

struct CpuImage {
  std::string code;                         // text and constants; to be mapped at a multiple of 64 bytes, executable
  std::string cpu;                          // what it was compiled for
  std::vector<std::string> features;        // instruction sets the machine must have, by LLVM's names
  std::map<std::string, uint64_t> entries;  // offset of each kernel in `code`
  std::map<std::string, KernelOperands> operands;  // what each kernel does with them
};

// Compiles the fusions; `symbols` receives, for each, the name of its kernel in `entries`. Fusions that are the same
// but for their operands share a kernel. A fusion that is not a row program is a diagnostic at the fusion.
mlir::FailureOr<CpuImage> compileFusions(llvm::ArrayRef<train::FusionOp> fusions, std::vector<std::string>& symbols,
                                         const CpuTargetOptions& options);

}  // namespace sheaf::codegen
