#include "runtime/device/cuda/kernels/Sums.h"

#include <cfloat>

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

// Few columns are spread over many processors.
constexpr int kColumnThreads = 64;

template <typename T>
__global__ void partialsKernel(const float* source, T* destination, int64_t partials, int64_t columns) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = source[column];
#pragma unroll 16
  for (int64_t row = 1; row < partials; ++row) sum += source[row * columns + column];
  destination[column] = rounded<T>(sum);
}

template <typename T>
__global__ void cumSumKernel(const T* source, T* destination, const CumSumShape shape) {
  const int64_t line = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (line >= shape.outer * shape.inner) return;
  const int64_t outer = line / shape.inner, base = outer * shape.n * shape.inner + (line - outer * shape.inner);
  T total = 0;
#pragma unroll 4
  for (int64_t j = 0; j < shape.n; ++j) {
    const int64_t at = base + (shape.reverse ? shape.n - 1 - j : j) * shape.inner;
    const T value = source[at], before = total;
    total = j == 0 ? value : total + value;
    destination[at] = shape.exclusive ? before : total;
  }
}

constexpr int kSquareLanes = 16;
constexpr int kSquaresPerBlock = kBlockThreads / kSquareLanes;

// Sixteen threads sum a block of 4,096 elements, each every sixteenth one, then pairwise. Squares are exact in f64.
template <typename T>
__global__ void squaresKernel(const T* source, int64_t count, double* blockSums) {
  const int lane = threadIdx.x % kSquareLanes;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kSquaresPerBlock + threadIdx.x / kSquareLanes;
  const int64_t begin = block * plan::kSquareSumBlock, end = least<int64_t>(begin + plan::kSquareSumBlock, count);
  double sum = 0;
#pragma unroll 16
  for (int64_t i = begin + lane; i < end; i += kSquareLanes) {
    const double x = toFloat(source[i]);
    sum += x * x;
  }
  for (int half = kSquareLanes / 2; half > 0; half /= 2) {
    const double other = __shfl_down_sync(kWholeWarp, sum, half, kSquareLanes);
    if (lane < half) sum += other;
  }
  if (lane == 0 && begin < count) blockSums[block] = sum;
}

constexpr int kTotalRound = 4096;

// Adds the sums of blocks in order: one thread adds while the others fetch what comes next.
__global__ void totalKernel(const double* blockSums, int64_t blocks, double* destination) {
  __shared__ double rounds[2][kTotalRound / 2];
  constexpr int kRound = kTotalRound / 2;
  double total = 0;
  for (int64_t begin = -kRound, turn = 0; begin < blocks; begin += kRound, ++turn) {
    double* next = rounds[turn % 2];
    for (int64_t i = threadIdx.x; i < kRound && begin + kRound + i < blocks; i += kBlockThreads)
      next[i] = blockSums[begin + kRound + i];
    if (threadIdx.x == 0 && begin >= 0) {
      const double* now = rounds[(turn + 1) % 2];
      const int64_t size = least<int64_t>(kRound, blocks - begin);
#pragma unroll 8
      for (int64_t i = 0; i < size; ++i) total += now[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *destination = total;
}

__global__ void normKernel(const double* partials, int64_t ranks, int64_t buckets, const float* maximum,
                           const float* lossScale, const float* loss, double* norm, float* scalars) {
  double total = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    double sum = 0;
#pragma unroll 8
    for (int64_t bucket = 0; bucket < buckets; ++bucket) sum += partials[rank * buckets + bucket];
    total += sum;
  }
  const double scaled = lossScale ? *lossScale : 1, root = sqrt(total) / scaled;
  double scale = 1;
  if (maximum) {
    // torch.nn.utils.clip_grad_norm_; a norm that is NaN gives a scale that is NaN.
    scale = static_cast<double>(*maximum) / (root + 1e-6);
    if (scale > 1) scale = 1;
  }
  *norm = root;
  scalars[0] = static_cast<float>(scale / scaled);
  scalars[1] = root <= DBL_MAX && (!loss || (*loss >= -FLT_MAX && *loss <= FLT_MAX)) ? 1.0f : 0.0f;
}

}  // namespace

cudaError_t sumPartials(cudaStream_t stream, const float* source, void* destination, FloatType type, int64_t partials,
                        int64_t columns) {
  const Grid grid = gridOf(columns, kColumnThreads, dim3(kColumnThreads));
  return withType(type, [&](auto element) {
    using T = decltype(element);
    return launch(partialsKernel<T>, grid, stream, source, static_cast<T*>(destination), partials, columns);
  });
}

template <typename T>
cudaError_t cumSum(cudaStream_t stream, const T* source, T* destination, const CumSumShape& shape) {
  return launch(cumSumKernel<T>, gridOf(shape.outer * shape.inner, kColumnThreads, dim3(kColumnThreads)), stream,
                source, destination, shape);
}

template cudaError_t cumSum(cudaStream_t, const float*, float*, const CumSumShape&);
template cudaError_t cumSum(cudaStream_t, const double*, double*, const CumSumShape&);
template cudaError_t cumSum(cudaStream_t, const uint32_t*, uint32_t*, const CumSumShape&);
template cudaError_t cumSum(cudaStream_t, const uint64_t*, uint64_t*, const CumSumShape&);

cudaError_t squareSum(cudaStream_t stream, const void* source, FloatType type, int64_t count, double* blockSums,
                      double* destination) {
  const int64_t blocks = (count + plan::kSquareSumBlock - 1) / plan::kSquareSumBlock;
  const Grid grid = gridOf(blocks, kSquaresPerBlock, dim3(kBlockThreads));
  const cudaError_t error = withType(type, [&](auto element) {
    using T = decltype(element);
    return launch(squaresKernel<T>, grid, stream, static_cast<const T*>(source), count, blockSums);
  });
  if (error != cudaSuccess) return error;
  return launch(totalKernel, {dim3(1), dim3(kBlockThreads)}, stream, blockSums, blocks, destination);
}

cudaError_t gradientNorm(cudaStream_t stream, const double* partials, int64_t ranks, int64_t buckets,
                         const float* maximum, const float* lossScale, const float* loss, double* norm,
                         float* scalars) {
  return launch(normKernel, {dim3(1), dim3(1)}, stream, partials, ranks, buckets, maximum, lossScale, loss, norm,
                scalars);
}

}  // namespace sheaf::cuda
