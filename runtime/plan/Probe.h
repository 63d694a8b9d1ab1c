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
  // Of its operands: the index of an earlier one where it lies in place of that, or -1.
  std::vector<int> placeOf;
};

// Makes a plan that has kernels and images, and is to run on so many ranks, a probe.
void makeProbe(Plan& plan, int64_t ranks, const std::vector<SampleKernel>& samples);

// Whether a plan computes nothing but kernels on memory that holds nothing.
bool isProbe(const Plan& plan);

// Of a probe.
std::vector<SampleKernel> samplesOf(const Plan& probe);

}  // namespace sheaf::plan
