// The devices that a plan's kernels are compiled for.
#pragma once

#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "mlir/Support/LLVM.h"

namespace sheaf::codegen {

struct KernelTarget {
  std::string name;      // "cpu", "cuda:sm_90"
  int architecture = 0;  // NN of sm_NN; 0: the CPU
  bool isGpu() const { return architecture != 0; }
};

struct KernelTargets {
  std::vector<KernelTarget> list{{"cpu"}};  // the first is a plan's default
  std::string cpu = "host";                 // the processor: see CpuTargetOptions
  unsigned threads = 2;                     // that compile

  bool hasCpu() const;
  bool hasGpu() const;
};

// "cpu,cuda:sm_90". An unknown target or one named twice is an error, described in `error`.
mlir::FailureOr<std::vector<KernelTarget>> parseTargets(llvm::StringRef text, std::string& error);
// Whether this machine has what GPU targets need besides the compiler itself; otherwise `error` says what is missing.
mlir::LogicalResult checkToolkit(const KernelTargets& targets, std::string& error);

}  // namespace sheaf::codegen
