// Strided copies (runtime/plan/calls/Moves.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plan/StridedCopy.h"

namespace sheaf::cuda {

// Copies elements of `width` bytes; the dimensions are simplified ones, the innermost last.
cudaError_t copyStrided(cudaStream_t stream, const std::byte* source, std::byte* destination, int64_t width,
                        const std::vector<plan::CopyDimension>& dimensions);

}  // namespace sheaf::cuda
