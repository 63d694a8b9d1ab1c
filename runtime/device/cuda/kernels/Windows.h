// Windows of convolutions and pooling over images [n, c, h, w].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

struct Window {
  int64_t n, c, h, w, kh, kw, oh, ow, strideH, strideW, padTop, padLeft, dilationH, dilationW;
};

// columns[image, (channel, i, j), pixel] = what filter element (i, j) sees of the image for that pixel of the result.
cudaError_t unroll(cudaStream_t stream, const Window& window, const float* images, float* columns);

// The adjoint: every element of the images is the sum of what it stands for in the columns, in the order of the pixels.
cudaError_t rollUp(cudaStream_t stream, const Window& window, const float* columns, float* images);

cudaError_t maxPool(cudaStream_t stream, const Window& window, const float* images, float* result);
cudaError_t maxPoolIndices(cudaStream_t stream, const Window& window, const float* images, int64_t* result);
cudaError_t maxPoolGrad(cudaStream_t stream, const Window& window, const float* images, const float* gradient,
                        float* result);

}  // namespace sheaf::cuda
