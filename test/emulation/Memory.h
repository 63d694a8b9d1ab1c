// Device memory of the emulated GPU besides cudaMalloc's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace sheaf::emulation {

// Memory that other GPUs can map, as CUDA's virtual memory management makes it (cuMemCreate). cudaFree refuses it, and
// releaseShareable() what cudaMalloc has made.
cudaError_t allocateShareable(void** address, size_t bytes);
// `unmapped`: whether no other GPU has it mapped any more. Until then its bytes stay taken.
cudaError_t releaseShareable(void* address, std::function<bool()> unmapped);
// The beginning of the shareable allocation that these bytes lie in, else null.
const std::byte* shareableAllocation(const void* address, size_t bytes);

// All of the GPU's.
size_t deviceMemory();

// Memory that a library takes for itself, counted only; false if there is not as much.
bool takeDeviceMemory(size_t bytes);
void giveDeviceMemory(size_t bytes);

}  // namespace sheaf::emulation
