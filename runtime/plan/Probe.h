// Probe plans: the kernels that a device is measured with, compiled where MLIR is, as a plan that is verified like any
// other before the runtime loads it. Its body launches each of them once.
#pragma once

#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// A kernel to be measured: of the probe's, launched over all its rows.
struct SampleKernel {
  int kernel = 0;
  // By operand: the index of an earlier operand at the same address, or -1. Sizes are Kernel.operand_bytes; results
  // come last.
  std::vector<int> sharesWith;
};

// Makes a plan that has kernels and images, and is to run on so many ranks, a probe.
void makeProbe(Plan& plan, int64_t ranks, const std::vector<SampleKernel>& samples);

// Whether a plan is a probe: one `zero` call, then kernels only; no inputs, buckets or constants.
bool isProbe(const Plan& plan);

// Of a probe.
std::vector<SampleKernel> samplesOf(const Plan& probe);

}  // namespace sheaf::plan
