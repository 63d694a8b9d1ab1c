// The epilogues of matrix products (plan::GemmEpilogue), as kernels after a plain product: for shapes and devices that
// cuBLASLt has no epilogue for. Matrices are row-major [m, n]; T is float, Bf16 or F16; what is computed is rounded
// once when it is stored.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/device/cuda/kernels/Half.h"

namespace sheaf::cuda {

// c += bias [n] (null: none), in rows of `row` elements. With `before` [m, n], which is dense, that is stored there,
// and c becomes the GELU of it.
template <typename T>
cudaError_t biasAndGelu(cudaStream_t stream, T* c, int64_t row, const T* bias, T* before, int64_t m, int64_t n);

// c[i, j] *= gelu'(before[i, j]); `before` is dense.
template <typename T>
cudaError_t geluGradient(cudaStream_t stream, const T* before, T* c, int64_t row, int64_t m, int64_t n);

// sums[j] = the sum of column j over `rows` rows of `row` elements: the same order at every launch.
template <typename T>
cudaError_t sumColumns(cudaStream_t stream, const T* source, int64_t row, T* sums, int64_t rows, int64_t columns);

}  // namespace sheaf::cuda
