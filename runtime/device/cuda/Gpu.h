// The GPU that a process uses.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

struct Gpu {
  int index = 0;
  int architecture = 0;  // 90 for sm_90
  std::string name;
  uint64_t freeBytes = 0, totalBytes = 0;  // of its memory; free when it was opened
};

// The GPU of the process with this number among those of its host, made this thread's. One clear error if there is no
// driver, no GPU, or fewer GPUs than processes.
Expected<Gpu> openGpu(int64_t localProcess);

// Makes it the calling thread's GPU.
Status useGpu(int index);

// The plan's image that fits best: the newest architecture that is not newer than the GPU. Its machine code runs if it
// is of the GPU's generation, else its PTX is compiled by the driver. An error that says what the plan has and what the
// GPU is, if there is none.
Expected<const plan::KernelImage*> imageFor(const plan::Plan& plan, const Gpu& gpu);

}  // namespace sheaf::cuda
