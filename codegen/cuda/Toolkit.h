// The programs of the CUDA toolkit that assemble PTX and put the machine code of several devices into one file.
#pragma once

#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "mlir/Support/LLVM.h"

namespace sheaf::codegen {

struct Toolkit {
  std::string ptxas, fatbinary;  // paths
  std::string version;           // ptxas is of this one, "13.0"
};

// In the folder that $CUDA_HOME or else $CUDA_PATH names; if neither is set in /usr/local/cuda or on $PATH. Without
// one, or with one that does not know the PTX that is emitted, `error` says what is needed.
mlir::FailureOr<Toolkit> findToolkit(std::string& error);

// What a thread of a kernel takes.
struct KernelUsage {
  std::string symbol;
  int registers = 0, sharedBytes = 0, stackBytes = 0;
  int spillBytes = 0;  // stored and loaded because there are not enough registers
};

struct Assembled {
  std::string code;  // a cubin
  std::vector<KernelUsage> usage;
};

// Assembles PTX for sm_`architecture`.
mlir::FailureOr<Assembled> assemblePtx(const Toolkit& toolkit, int architecture, llvm::StringRef ptx,
                                       std::string& error);

// What ptxas says with --verbose.
std::vector<KernelUsage> parseUsage(llvm::StringRef text);

// A fat binary of a cubin, and of PTX for the devices that come after it.
mlir::FailureOr<std::string> makeFatBinary(const Toolkit& toolkit, int architecture, llvm::StringRef cubin,
                                           llvm::StringRef ptx, std::string& error);

}  // namespace sheaf::codegen
