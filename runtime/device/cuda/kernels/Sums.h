// sum_partials, cumsum, square_sum and gradient_norm (runtime/plan/calls/Sums.h), in the CPU's order: the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/device/cuda/kernels/Half.h"

namespace sheaf::cuda {

cudaError_t sumPartials(cudaStream_t stream, const float* source, void* destination, FloatType type, int64_t partials,
                        int64_t columns);

struct CumSumShape {
  int64_t outer, n, inner;
  bool exclusive, reverse;
};

// Of float, double, uint32_t or uint64_t.
template <typename T>
cudaError_t cumSum(cudaStream_t stream, const T* source, T* destination, const CumSumShape& shape);

// `blockSums` has a place for each 4,096 elements.
cudaError_t squareSum(cudaStream_t stream, const void* source, FloatType type, int64_t count, double* blockSums,
                      double* destination);

// `maximum` is null if nothing is clipped, `lossScale` if the loss is not scaled, `loss` if it is not judged.
cudaError_t gradientNorm(cudaStream_t stream, const double* partials, int64_t ranks, int64_t buckets,
                         const float* maximum, const float* lossScale, const float* loss, double* norm, float* scalars);

}  // namespace sheaf::cuda
