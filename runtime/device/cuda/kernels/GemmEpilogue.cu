#include "runtime/device/cuda/kernels/GemmEpilogue.h"

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"

namespace sheaf::cuda {
namespace {

// The tanh form of GELU is x s with s = sigmoid(2u) and u = k (x + c x^3), which does not cancel for negative x; its
// slope is s + 2 x s (1 - s) u'.
constexpr float kFactor = 0.7978845608f, kCubic = 0.044715f;

__device__ inline float sigmoidOf(float x) {
  return 1.0f / (1.0f + expf(-2.0f * kFactor * (x + kCubic * (x * x * x))));
}

template <typename T>
__global__ void biasAndGeluKernel(T* c, int64_t pitch, const T* bias, T* before, int64_t m, int64_t n) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= m) return;
  for (int64_t column = threadIdx.x; column < n; column += blockDim.x) {
    T& value = c[row * pitch + column];
    float x = toFloat(value);
    if (bias) x += toFloat(bias[column]);
    if (before) {
      before[row * n + column] = rounded<T>(x);
      x *= sigmoidOf(x);
    }
    value = rounded<T>(x);
  }
}

template <typename T>
__global__ void geluGradientKernel(const T* before, T* c, int64_t pitch, int64_t m, int64_t n) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= m) return;
  for (int64_t column = threadIdx.x; column < n; column += blockDim.x) {
    const float x = toFloat(before[row * n + column]), s = sigmoidOf(x);
    const float slope = s + 2.0f * x * (s * (1.0f - s)) * kFactor * (1.0f + 3.0f * kCubic * (x * x));
    T& value = c[row * pitch + column];
    value = rounded<T>(toFloat(value) * slope);
  }
}

// A warp's lanes have neighbouring columns; its warps take turns at the rows.
constexpr int kSummers = 32;

template <typename T>
__global__ void sumColumnsKernel(const T* source, int64_t row, T* sums, int64_t rows, int64_t columns) {
  __shared__ float parts[kSummers][kWarp + 1];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < rows; i += kSummers) sum += toFloat(source[i * row + column]);
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int part = 1; part < kSummers; ++part) sum += parts[part][threadIdx.x];
    sums[column] = rounded<T>(sum);
  }
}

}  // namespace

template <typename T>
cudaError_t biasAndGelu(cudaStream_t stream, T* c, int64_t row, const T* bias, T* before, int64_t m, int64_t n) {
  const dim3 threads = threadsFor(n);
  return launch(biasAndGeluKernel<T>, gridOf(m, threads.y, threads), stream, c, row, bias, before, m, n);
}

template <typename T>
cudaError_t geluGradient(cudaStream_t stream, const T* before, T* c, int64_t row, int64_t m, int64_t n) {
  const dim3 threads = threadsFor(n);
  return launch(geluGradientKernel<T>, gridOf(m, threads.y, threads), stream, before, c, row, m, n);
}

template <typename T>
cudaError_t sumColumns(cudaStream_t stream, const T* source, int64_t row, T* sums, int64_t rows, int64_t columns) {
  return launch(sumColumnsKernel<T>, gridOf(columns, kWarp, dim3(kWarp, kSummers)), stream, source, row, sums, rows,
                columns);
}

template cudaError_t biasAndGelu(cudaStream_t, float*, int64_t, const float*, float*, int64_t, int64_t);
template cudaError_t biasAndGelu(cudaStream_t, Bf16*, int64_t, const Bf16*, Bf16*, int64_t, int64_t);
template cudaError_t biasAndGelu(cudaStream_t, F16*, int64_t, const F16*, F16*, int64_t, int64_t);
template cudaError_t geluGradient(cudaStream_t, const float*, float*, int64_t, int64_t, int64_t);
template cudaError_t geluGradient(cudaStream_t, const Bf16*, Bf16*, int64_t, int64_t, int64_t);
template cudaError_t geluGradient(cudaStream_t, const F16*, F16*, int64_t, int64_t, int64_t);
template cudaError_t sumColumns(cudaStream_t, const float*, int64_t, float*, int64_t, int64_t);
template cudaError_t sumColumns(cudaStream_t, const Bf16*, int64_t, Bf16*, int64_t, int64_t);
template cudaError_t sumColumns(cudaStream_t, const F16*, int64_t, F16*, int64_t, int64_t);

}  // namespace sheaf::cuda
