// Reports a stream's progress to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

// Writes `number` to place[0] and counts place[1] up; place is in host memory that the GPU reaches.
cudaError_t mark(uint32_t* place, uint32_t number, cudaStream_t stream);

}  // namespace sheaf::cuda
