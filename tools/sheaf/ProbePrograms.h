// The fusions that devices are measured with, as `train` functions.
#pragma once

#include <string>
#include <vector>

namespace sheaf::tool {

struct ProbeProgram {
  std::string text;
  bool inPlace = false;  // results lie where operands did, as far as the fusion allows
};

// Fusions of training steps in sizes that tell a CPU's caches apart, or of those that fill a GPU.
std::vector<ProbeProgram> cpuProbePrograms();
std::vector<ProbeProgram> gpuProbePrograms();

}  // namespace sheaf::tool
