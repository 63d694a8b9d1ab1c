// The emulated cuBLASLt: what runtime/device/cuda/Blas.cpp uses of it, by plain loops over matrices with their columns
// in a row. Two algorithms are offered, with the same bits.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "runtime/device/cuda/kernels/Half.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {
namespace {

using cuda::Half;
using cuda::toFloat;

struct Operation {
  bool tf32 = false;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *vector = nullptr, *matrix = nullptr;
  int64_t leading = 0;  // of the matrix

  bool has(std::initializer_list<cublasLtEpilogue_t> list) const {
    return std::find(list.begin(), list.end(), epilogue) != list.end();
  }
  bool addsBias() const { return has({CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}); }
  bool appliesGelu() const { return has({CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}); }
  bool appliesSlope() const { return epilogue == CUBLASLT_EPILOGUE_DGELU; }
  bool sumsA() const { return epilogue == CUBLASLT_EPILOGUE_BGRADA; }
  bool sumsB() const { return epilogue == CUBLASLT_EPILOGUE_BGRADB; }
  // The real one requires the matrix's columns at multiples of eight elements.
  bool supported() const { return !(appliesGelu() || appliesSlope()) || leading % 8 == 0; }
  // Pointers that the epilogue follows must be there.
  bool complete() const {
    return supported() && (vector || !(addsBias() || sumsA() || sumsB())) &&
           (matrix || !(appliesGelu() || appliesSlope()));
  }
};

// The tanh form, as it is written in most places.
double tanhOf(double x) {
  return std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}
double gelu(double x) {
  return 0.5 * x * (1 + tanhOf(x));
}
double slope(double x) {
  const double t = tanhOf(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// Ten bits of fraction, to the nearest.
float toTf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isfinite(value)) bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

struct Layout {
  cudaDataType type;
  int64_t rows, columns, leading;
  int32_t batch = 1;
  int64_t stride = 0;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 0;
};

template <typename T>
cublasStatus_t set(T& value, const void* buffer, size_t bytes) {
  if (bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, buffer, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

constexpr uint64_t kMagic = 0x5ea7b1a5, kAlgorithms = 2;

bool known(const cublasLtMatmulAlgo_t* algorithm) {
  return algorithm && algorithm->data[0] == kMagic && algorithm->data[1] < kAlgorithms;
}

struct Product {
  Operation operation;
  Layout a, b, c;
  float alpha, beta;
  const void *left, *right;
  const void* before;
  void* result;

  bool fits() const {
    const bool transposeA = operation.a == CUBLAS_OP_T, transposeB = operation.b == CUBLAS_OP_T;
    const int64_t depth = transposeA ? a.rows : a.columns;
    auto sound = [](const Layout& layout) { return layout.leading >= layout.rows && layout.batch >= 1; };
    return (transposeA ? a.columns : a.rows) == c.rows && (transposeB ? b.rows : b.columns) == c.columns &&
           (transposeB ? b.columns : b.rows) == depth && a.type == b.type && a.type == c.type && a.batch == c.batch &&
           b.batch == c.batch && (a.type == CUDA_R_32F || a.type == CUDA_R_16BF) && sound(a) && sound(b) && sound(c);
  }

  template <typename T>
  void run() const {
    const bool transposeA = operation.a == CUBLAS_OP_T, transposeB = operation.b == CUBLAS_OP_T;
    const int64_t depth = transposeA ? a.rows : a.columns;
    // Rows of op(a) in blocks, of which every column of op(b) is multiplied with each.
    constexpr int64_t kRows = 64, kDepth = 256;
    std::vector<float> block(kRows * kDepth), column(kDepth), sums(kRows * c.columns);
    for (int64_t entry = 0; entry < c.batch; ++entry) {
      const T *x = static_cast<const T*>(left) + entry * a.stride, *y = static_cast<const T*>(right) + entry * b.stride;
      const T* from = static_cast<const T*>(before) + entry * c.stride;
      T* to = static_cast<T*>(result) + entry * c.stride;
      for (int64_t row = 0; row < c.rows; row += kRows) {
        const int64_t rows = std::min(kRows, c.rows - row);
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t k = 0; k < depth; k += kDepth) {
          const int64_t deep = std::min(kDepth, depth - k);
          for (int64_t l = 0; l < deep; ++l)
            for (int64_t i = 0; i < rows; ++i)
              block[l * kRows + i] =
                  factorOf(transposeA ? x[(row + i) * a.leading + k + l] : x[(k + l) * a.leading + row + i]);
          for (int64_t j = 0; j < c.columns; ++j) {
            float* sum = sums.data() + j * kRows;
            for (int64_t l = 0; l < deep; ++l) {
              const float factor = factorOf(transposeB ? y[(k + l) * b.leading + j] : y[j * b.leading + k + l]);
              for (int64_t i = 0; i < kRows; ++i) sum[i] += block[l * kRows + i] * factor;
            }
          }
        }
        for (int64_t j = 0; j < c.columns; ++j)
          for (int64_t i = 0; i < rows; ++i) {
            const int64_t at = j * c.leading + row + i;
            float sum = alpha * sums[j * kRows + i];
            if (beta != 0) sum += beta * toFloat(from[at]);
            to[at] = cuda::rounded<T>(finish<T>(sum, row + i, j));
          }
      }
    }
    if (operation.sumsA()) sumRows<T>(left, transposeA, a, c.rows, depth);
    if (operation.sumsB()) sumRows<T>(right, !transposeB, b, c.columns, depth);
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

  // The sums over the depth of each row of a matrix that is stored with rows a column apart, or the other way round.
  template <typename T>
  void sumRows(const void* matrix, bool apart, const Layout& layout, int64_t rows, int64_t depth) const {
    for (int64_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < depth; ++l)
        sum += toFloat(static_cast<const T*>(matrix)[apart ? i * layout.leading + l : l * layout.leading + i]);
      static_cast<T*>(operation.vector)[i] = cuda::rounded<T>(sum);
    }
  }
};

}  // namespace
}  // namespace sheaf::emulation

using namespace sheaf::emulation;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "no error" : "an emulated error";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t computeType,
                                        cudaDataType_t scaleType) {
  const bool tf32 = computeType == CUBLAS_COMPUTE_32F_FAST_TF32;
  if ((computeType != CUBLAS_COMPUTE_32F && !tf32) || scaleType != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{.tf32 = tf32});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Operation*>(description);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* buffer,
                                              size_t bytes) {
  Operation& operation = *reinterpret_cast<Operation*>(description);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) return set(operation.a, buffer, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) return set(operation.b, buffer, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) return set(operation.epilogue, buffer, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return set(operation.vector, buffer, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) return set(operation.matrix, buffer, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) return set(operation.leading, buffer, bytes);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t description,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* buffer,
                                                size_t bytes) {
  Layout& layout = *reinterpret_cast<Layout*>(description);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(layout.batch, buffer, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) return set(layout.stride, buffer, bytes);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t description,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* buffer,
                                                    size_t bytes) {
  Preference& preference = *reinterpret_cast<Preference*>(description);
  uint32_t alignment = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace, buffer, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reductions, buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(alignment, buffer, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  if (!known(algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!reinterpret_cast<Operation*>(operation)->complete()) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algorithm;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* buffer,
                                                    size_t bytes, size_t* written) {
  if (!known(algorithm) || attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || bytes != sizeof(uint32_t))
    return CUBLAS_STATUS_INVALID_VALUE;
  const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::memcpy(buffer, &none, sizeof none);
  *written = sizeof none;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  if (!reinterpret_cast<Operation*>(operation)->complete()) return CUBLAS_STATUS_NOT_SUPPORTED;
  *returned = std::min<int>(requested, kAlgorithms);
  for (int i = 0; i < *returned; ++i) {
    results[i] = {};
    results[i].algo.data[0] = kMagic;
    results[i].algo.data[1] = static_cast<uint64_t>(i);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layoutA, const void* b, cublasLtMatrixLayout_t layoutB,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layoutC, void* d,
                              cublasLtMatrixLayout_t layoutD, const cublasLtMatmulAlgo_t* algorithm, void*, size_t,
                              cudaStream_t stream) {
  if (!known(algorithm) || layoutC != layoutD) return CUBLAS_STATUS_INVALID_VALUE;
  Product product{*reinterpret_cast<Operation*>(operation),
                  *reinterpret_cast<Layout*>(layoutA),
                  *reinterpret_cast<Layout*>(layoutB),
                  *reinterpret_cast<Layout*>(layoutC),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  a,
                  b,
                  c,
                  d};
  if (!product.fits() || !product.operation.complete()) return CUBLAS_STATUS_INVALID_VALUE;
  const cudaError_t error = enqueue(stream, [product] {
    if (product.a.type == CUDA_R_32F)
      product.run<float>();
    else
      product.run<Half>();
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
