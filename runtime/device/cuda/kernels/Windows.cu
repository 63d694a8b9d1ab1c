#include "runtime/device/cuda/kernels/Windows.h"

#include <cmath>

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"

namespace sheaf::cuda {
namespace {

__device__ inline int64_t rowSeen(const Window& p, int64_t y, int64_t i) {
  return y * p.strideH - p.padTop + i * p.dilationH;
}

__device__ inline int64_t columnSeen(const Window& p, int64_t x, int64_t j) {
  return x * p.strideW - p.padLeft + j * p.dilationW;
}

__device__ inline bool inside(const Window& p, int64_t row, int64_t column) {
  return row >= 0 && row < p.h && column >= 0 && column < p.w;
}

// Calls visit(pixel, filter element) for the windows that see an element of the image, in the order of their pixels.
template <typename Visit>
__device__ inline void forWindowsSeeing(const Window& p, int64_t row, int64_t column, Visit visit) {
  for (int64_t i = p.kh; i-- > 0;) {
    const int64_t down = row + p.padTop - i * p.dilationH, y = down / p.strideH;
    if (down < 0 || down % p.strideH != 0 || y >= p.oh) continue;
    for (int64_t j = p.kw; j-- > 0;) {
      const int64_t right = column + p.padLeft - j * p.dilationW, x = right / p.strideW;
      if (right < 0 || right % p.strideW != 0 || x >= p.ow) continue;
      visit(y * p.ow + x, i * p.kw + j);
    }
  }
}

// A row of threads for a row of the columns.
__global__ void unrollKernel(const Window p, const float* images, float* columns) {
  const int64_t pixels = p.oh * p.ow, element = p.kh * p.kw;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= p.n * p.c * element) return;
  const int64_t plane = row / element, i = row % element / p.kw, j = row % p.kw;
  for (int64_t pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x) {
    const int64_t down = rowSeen(p, pixel / p.ow, i), right = columnSeen(p, pixel % p.ow, j);
    columns[row * pixels + pixel] = inside(p, down, right) ? images[(plane * p.h + down) * p.w + right] : 0.0f;
  }
}

// A thread for each element of the images.
__global__ void rollUpKernel(const Window p, const float* columns, float* images) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (at >= p.n * p.c * p.h * p.w) return;
  const int64_t plane = at / (p.h * p.w);
  const float* ofPlane = columns + plane * p.kh * p.kw * p.oh * p.ow;
  float sum = 0;
  forWindowsSeeing(p, at / p.w % p.h, at % p.w,
                   [&](int64_t pixel, int64_t element) { sum += ofPlane[element * p.oh * p.ow + pixel]; });
  images[at] = sum;
}

// The position in the plane of a window's first maximum (a NaN is one); -1 if the window lies in the padding.
__device__ inline int64_t firstMaximum(const Window& p, const float* plane, int64_t pixel) {
  int64_t best = -1;
  float most = 0;
  for (int64_t i = 0; i < p.kh; ++i)
    for (int64_t j = 0; j < p.kw; ++j) {
      const int64_t row = rowSeen(p, pixel / p.ow, i), column = columnSeen(p, pixel % p.ow, j);
      if (!inside(p, row, column)) continue;
      const int64_t at = row * p.w + column;
      const float value = plane[at];
      if (best < 0 || value > most || (value != value && most == most)) best = at, most = value;
    }
  return best;
}

__global__ void maxPoolKernel(const Window p, const float* images, float* result) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x, pixels = p.oh * p.ow;
  if (at >= p.n * p.c * pixels) return;
  const float* plane = images + at / pixels * p.h * p.w;
  const int64_t best = firstMaximum(p, plane, at % pixels);
  result[at] = best < 0 ? -INFINITY : plane[best];
}

__global__ void maxPoolIndicesKernel(const Window p, const float* images, int64_t* result) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x, pixels = p.oh * p.ow;
  if (at >= p.n * p.c * pixels) return;
  result[at] = firstMaximum(p, images + at / pixels * p.h * p.w, at % pixels);
}

// A thread for each element of the images: it looks which windows have their maximum there.
__global__ void maxPoolGradKernel(const Window p, const float* images, const float* gradient, float* result) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x, area = p.h * p.w;
  if (at >= p.n * p.c * area) return;
  const int64_t plane = at / area, own = at % area;
  float sum = 0;
  forWindowsSeeing(p, own / p.w, own % p.w, [&](int64_t pixel, int64_t) {
    if (firstMaximum(p, images + plane * area, pixel) == own) sum += gradient[plane * p.oh * p.ow + pixel];
  });
  result[at] = sum;
}

template <typename Kernel, typename... Arguments>
cudaError_t forEach(Kernel kernel, int64_t items, cudaStream_t stream, Arguments... arguments) {
  return launch(kernel, gridOf(items, kBlockThreads, dim3(kBlockThreads)), stream, arguments...);
}

}  // namespace

cudaError_t unroll(cudaStream_t stream, const Window& p, const float* images, float* columns) {
  const dim3 threads = threadsFor(p.oh * p.ow);
  return launch(unrollKernel, gridOf(p.n * p.c * p.kh * p.kw, threads.y, threads), stream, p, images, columns);
}

cudaError_t rollUp(cudaStream_t stream, const Window& p, const float* columns, float* images) {
  return forEach(rollUpKernel, p.n * p.c * p.h * p.w, stream, p, columns, images);
}

cudaError_t maxPool(cudaStream_t stream, const Window& p, const float* images, float* result) {
  return forEach(maxPoolKernel, p.n * p.c * p.oh * p.ow, stream, p, images, result);
}

cudaError_t maxPoolIndices(cudaStream_t stream, const Window& p, const float* images, int64_t* result) {
  return forEach(maxPoolIndicesKernel, p.n * p.c * p.oh * p.ow, stream, p, images, result);
}

cudaError_t maxPoolGrad(cudaStream_t stream, const Window& p, const float* images, const float* gradient,
                        float* result) {
  return forEach(maxPoolGradKernel, p.n * p.c * p.h * p.w, stream, p, images, gradient, result);
}

}  // namespace sheaf::cuda
