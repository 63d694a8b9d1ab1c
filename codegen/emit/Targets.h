// The devices that a plan's kernels are compiled for.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::codegen {

struct KernelTarget {
  std::string name;      // "cpu", "cuda:sm_90"
  int architecture = 0;  // NN of sm_NN; 0: the CPU
  bool isGpu() const { return architecture != 0; }
  bool operator==(const KernelTarget&) const = default;
};

struct KernelTargets {
  std::vector<KernelTarget> list{{"cpu"}};  // the first is a plan's default
  std::string cpu = "host";                 // the processor: see CpuTargetOptions
  unsigned threads = 2;                     // that compile kernels and hash weights

  bool hasCpu() const;
  bool hasGpu() const;
};

// "cpu,cuda:sm_90". An unknown target or one named twice is an error.
Expected<std::vector<KernelTarget>> parseTargets(const std::string& text);
// An error if this machine lacks what GPU targets need besides the compiler itself; it says what is missing.
Status checkToolkit(const KernelTargets& targets);
// An error if no CPU has the name that --cpu gives, or if kernels cannot be compiled for it.
Status checkCpu(const KernelTargets& targets);

}  // namespace sheaf::codegen
