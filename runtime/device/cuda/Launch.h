// Launching a kernel of ours. With nvcc this is the driver's launch; in the emulated device of the tests, which is
// compiled by the host's compiler, a launch runs the kernel's blocks one after the other on the stream's thread, its
// threads as fibers (test/emulation/ThreadBlock.h). Kernels are written so that both compile:
// - shared memory of a size known at launch: SHEAF_DYNAMIC_SHARED(type, name);
// - shared memory of a fixed size: __shared__, of trivial types; nothing relies on it being zero;
// - synchronisation by __syncthreads(), __syncwarp() and the __shfl_*_sync() of whole warps; no cooperative groups;
// - what has no host counterpart (mma, cp.async, ldmatrix) through Intrinsics.h.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#ifdef SHEAF_CUDA_EMULATION
#include "test/emulation/Kernels.h"
#else
#define SHEAF_DYNAMIC_SHARED(type, name)           \
  extern __shared__ __align__(128) char name##_[]; \
  type* name = reinterpret_cast<type*>(name##_)
#endif

namespace sheaf::cuda {

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t sharedBytes = 0;
};

// More than 48 KiB of shared memory are asked for at the first launch.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, Arguments&&... arguments) {
#ifdef SHEAF_CUDA_EMULATION
  return emulation::launchKernel(
      stream, grid.blocks, grid.threads, grid.sharedBytes,
      [kernel, ... copies = Parameters(std::forward<Arguments>(arguments))] { kernel(copies...); });
#else
  constexpr size_t kAlwaysThere = 48 << 10;
  if (grid.sharedBytes > kAlwaysThere) {
    cudaError_t set =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(grid.sharedBytes));
    if (set != cudaSuccess) return set;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.sharedBytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
#endif
}

}  // namespace sheaf::cuda
