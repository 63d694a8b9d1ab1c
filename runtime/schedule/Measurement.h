// Measures a machine on which the ranks share the cores: the profile that `sheaf profile` writes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/device/Device.h"
#include "runtime/schedule/Profile.h"

namespace sheaf::schedule {

// A kernel to be measured: of MeasureOptions::kernels, launched over all its rows.
struct SampleKernel {
  int kernel = 0;
  int size = 0;  // samples of one size are compared with each other
  // Of its operands, whose sizes are Kernel.operand_bytes; results, which come last, are written. An operand may lie
  // where an earlier one does: the index of that one, or -1.
  std::vector<plan::Access> access;
  std::vector<int> placeOf;
};

struct MeasureOptions {
  std::string name;
  int64_t ranks = 1;    // collectives are measured for powers of two up to this number and for it
  int64_t threads = 0;  // of a rank; 0: powers of two up to the cores
  int64_t cores = 1;    // of the machine
  uint64_t memoryBytes = 0;
  std::string machine;  // in words
  plan::Plan kernels;   // kernels and images
  std::vector<SampleKernel> samples;
  std::function<void(const std::string& what)> progress;
};

Expected<Profile> measure(Device& device, const MeasureOptions& options);

}  // namespace sheaf::schedule
