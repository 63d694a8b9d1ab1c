// What the ranks of a process share. It lives as long as the last of them.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/Device.h"
#include "runtime/device/cpu/KernelImages.h"
#include "runtime/device/cuda/Arena.h"
#include "runtime/device/cuda/Communicators.h"
#include "runtime/device/cuda/FusedKernels.h"
#include "runtime/device/cuda/Gpu.h"
#include "runtime/device/cuda/OtherSpaces.h"
#include "runtime/device/cuda/Progress.h"

namespace sheaf::cuda {

struct World {
  const plan::Plan* plan = nullptr;
  DeviceOptions options;
  int64_t localRanks = 1;
  Gpu gpu;
  // Its listeners, the communicators, go before it.
  comm::AbortSignal abort;
  std::unique_ptr<cpu::KernelImages> hostKernels;  // null if the plan has no launches on the host
  std::vector<OtherSpaces> spaces;                 // of this process's ranks; an abort ends their waits
  std::unique_ptr<FusedKernels> kernels;
  std::vector<std::unique_ptr<Progress>> progress;  // of this process's ranks
  // With DeviceOptions.products: the text of the table to choose by, or whether rank 0 is to measure one.
  std::string products;
  bool measureProducts = false;
  std::unique_ptr<Communicators> communicators;
  // All ranks', because a peer may still read from the arena of a rank that is being closed. They go before what they
  // are allocated by.
  std::vector<std::unique_ptr<Arena>> arenas;

  // On any thread: the last reference may be that of a thread that watches other processes.
  ~World() {
    if (gpu.architecture > 0) (void)useGpu(gpu.index);
    if (communicators) communicators->releaseArenas();
  }
};

}  // namespace sheaf::cuda
