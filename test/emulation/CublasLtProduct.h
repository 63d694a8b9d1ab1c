// What the emulated cuBLASLt computes: a matrix product with its epilogue, by plain loops over matrices with their
// columns in a row. Which products it takes is decided in CublasLtRules.h.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/device/cuda/kernels/Half.h"

namespace sheaf::emulation {

using cuda::Bf16;
using cuda::toFloat;

struct Operation {
  bool tf32 = false;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *vector = nullptr, *matrix = nullptr;
  int64_t leading = 0;  // of the matrix

  bool addsBias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  bool appliesGelu() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool appliesSlope() const { return epilogue == CUBLASLT_EPILOGUE_DGELU; }
  bool sumsA() const { return epilogue == CUBLASLT_EPILOGUE_BGRADA; }
  bool sumsB() const { return epilogue == CUBLASLT_EPILOGUE_BGRADB; }
  bool hasVector() const { return addsBias() || sumsA() || sumsB(); }
  bool hasMatrix() const { return appliesGelu() || appliesSlope(); }
};

struct Layout {
  cudaDataType type;
  int64_t rows, columns, leading;
  int32_t batch = 1;
  int64_t stride = 0;

  bool operator==(const Layout&) const = default;
  int64_t elementBytes() const { return type == CUDA_R_32F ? 4 : 2; }
};

// The tanh form, as it is written in most places.
inline double tanhOf(double x) {
  return std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}
inline double gelu(double x) {
  return 0.5 * x * (1 + tanhOf(x));
}
inline double slope(double x) {
  const double t = tanhOf(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// Ten bits of fraction, to the nearest.
inline float toTf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isfinite(value)) bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

struct Product {
  Operation operation;
  Layout a, b, c, d;
  float alpha, beta;
  const void *left, *right;
  const void* before;
  void* result;

  template <typename T>
  void run() const {
    const bool transposeA = operation.a == CUBLAS_OP_T, transposeB = operation.b == CUBLAS_OP_T;
    const int64_t depth = transposeA ? a.rows : a.columns;
    // Rows of op(a) in blocks, of which every column of op(b) is multiplied with each.
    constexpr int64_t kRows = 64, kDepth = 256;
    std::vector<float> block(kRows * kDepth), column(kDepth), sums(kRows * d.columns);
    for (int64_t entry = 0; entry < d.batch; ++entry) {
      const T *x = static_cast<const T*>(left) + entry * a.stride, *y = static_cast<const T*>(right) + entry * b.stride;
      const T* from = static_cast<const T*>(before) + entry * c.stride;
      T* to = static_cast<T*>(result) + entry * d.stride;
      for (int64_t row = 0; row < d.rows; row += kRows) {
        const int64_t rows = std::min(kRows, d.rows - row);
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t k = 0; k < depth; k += kDepth) {
          const int64_t deep = std::min(kDepth, depth - k);
          for (int64_t l = 0; l < deep; ++l)
            for (int64_t i = 0; i < rows; ++i)
              block[l * kRows + i] =
                  factorOf(transposeA ? x[(row + i) * a.leading + k + l] : x[(k + l) * a.leading + row + i]);
          for (int64_t j = 0; j < d.columns; ++j) {
            float* sum = sums.data() + j * kRows;
            for (int64_t l = 0; l < deep; ++l) {
              const float factor = factorOf(transposeB ? y[(k + l) * b.leading + j] : y[j * b.leading + k + l]);
              for (int64_t i = 0; i < kRows; ++i) sum[i] += block[l * kRows + i] * factor;
            }
          }
        }
        for (int64_t j = 0; j < d.columns; ++j)
          for (int64_t i = 0; i < rows; ++i) {
            float sum = alpha * sums[j * kRows + i];
            if (beta != 0) sum += beta * toFloat(from[j * c.leading + row + i]);
            to[j * d.leading + row + i] = cuda::rounded<T>(finish<T>(sum, row + i, j));
          }
      }
    }
    if (operation.sumsA()) sumRows<T>(left, a, d.rows, depth);
    if (operation.sumsB()) sumRows<T>(right, b, d.columns, depth);
  }

 private:
  template <typename T>
  float factorOf(T element) const {
    return operation.tf32 ? toTf32(toFloat(element)) : toFloat(element);
  }

  // What is stored at (i, j) for a sum.
  template <typename T>
  float finish(float sum, int64_t i, int64_t j) const {
    if (operation.addsBias()) sum += toFloat(static_cast<const T*>(operation.vector)[i]);
    T* before = static_cast<T*>(operation.matrix) + (operation.matrix ? j * operation.leading + i : 0);
    if (operation.appliesSlope()) return static_cast<float>(sum * slope(toFloat(*before)));
    if (!operation.appliesGelu()) return sum;
    *before = cuda::rounded<T>(sum);
    return static_cast<float>(gelu(sum));
  }

  // The sums over the depth of each row of a matrix of so many rows and columns.
  template <typename T>
  void sumRows(const void* matrix, const Layout& layout, int64_t rows, int64_t depth) const {
    for (int64_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < depth; ++l) sum += toFloat(static_cast<const T*>(matrix)[l * layout.leading + i]);
      static_cast<T*>(operation.vector)[i] = cuda::rounded<T>(sum);
    }
  }
};

}  // namespace sheaf::emulation
