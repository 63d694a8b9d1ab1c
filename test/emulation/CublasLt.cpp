// The emulated cuBLASLt: what runtime/device/cuda/Blas.cpp uses of it. Two algorithms are offered, with the same bits;
// the first one uses all of its workspace. What the real one refuses is refused (CublasLtRules.h).
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <string>

#include "test/emulation/CublasLtRules.h"
#include "test/emulation/Devices.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {
namespace {

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of A, B, C, D
};

template <typename T>
cublasStatus_t set(T& value, const void* buffer, size_t bytes) {
  if (!buffer || bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, buffer, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// Why this thread's last call was refused.
thread_local const char* reason = "";
cublasStatus_t answer(const Answer& answer) {
  reason = answer.why;
  return answer.status;
}

Operation& operationOf(cublasLtMatmulDesc_t description) {
  return *reinterpret_cast<Operation*>(description);
}
Layout& layoutOf(cublasLtMatrixLayout_t description) {
  return *reinterpret_cast<Layout*>(description);
}

// A handle is tied to the device that was current when it was made, which must be current when it is used (cuBLAS
// manual, cublasLtCreate()).
struct Handle {
  int device;
};
void useHandle(const char* function, cublasLtHandle_t handle) {
  useContext(function, reinterpret_cast<const Handle*>(handle)->device);
}

// Bits that differ from call to call and from process to process.
uint64_t randomBits() {
  static std::mutex mutex;
  static std::mt19937_64 random(std::random_device{}());
  std::lock_guard lock(mutex);
  return random();
}

// An algorithm may use what is in its workspace before for anything.
void use(std::byte* workspace, uint64_t bytes) {
  constexpr int kGarbage = 0xCB;
  constexpr uint64_t kEnd = 4096;
  const uint64_t some = std::min(bytes, kEnd);
  if (some == 0) return;
  std::memset(workspace, kGarbage, some);
  std::memset(workspace + bytes - some, kGarbage, some);
}

}  // namespace
}  // namespace sheaf::emulation

using namespace sheaf::emulation;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  useContext("cublasLtCreate");
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle{currentDevice()});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  useHandle("cublasLtDestroy", handle);
  delete reinterpret_cast<Handle*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static thread_local std::string text;
  text = status == CUBLAS_STATUS_SUCCESS         ? "no error"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                                 : "an error";
  if (status != CUBLAS_STATUS_SUCCESS && *reason) text += std::string(" (emulated: ") + reason + ")";
  return text.c_str();
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
  Operation& operation = operationOf(description);
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
  Layout& layout = layoutOf(description);
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
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace, buffer, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reductions, buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference.alignments[0], buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference.alignments[1], buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference.alignments[2], buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.alignments[3], buffer, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* stored,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  useHandle("cublasLtMatmulAlgoCheck", handle);
  const Algorithm algorithm = algorithmOf(stored);
  if (!algorithm.known()) return answer(invalid("the algorithm is none"));
  if (const Answer fault = checkProduct(operationOf(description), layoutOf(a), layoutOf(b), layoutOf(c), layoutOf(d));
      fault.status != CUBLAS_STATUS_SUCCESS)
    return answer(fault);
  if (algorithm.type != static_cast<uint32_t>(layoutOf(a).type) || algorithm.tf32 != operationOf(description).tf32)
    return answer(invalid("the algorithm is for other types"));
  *result = {};
  result->algo = *stored;
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
}

// Each attribute has one size (cublasLt.h, cublasLtMatmulAlgoConfigAttributes_t).
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* stored,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* buffer,
                                                    size_t bytes, size_t* written) {
  const Algorithm algorithm = algorithmOf(stored);
  if (!algorithm.known() || !buffer) return CUBLAS_STATUS_INVALID_VALUE;
  auto give = [&](auto value) {
    if (bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(buffer, &value, sizeof value);
    if (written) *written = sizeof value;
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return give(static_cast<int32_t>(algorithm.number));
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return give(static_cast<uint32_t>(CUBLASLT_MATMUL_TILE_128x128));
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return give(static_cast<uint32_t>(CUBLASLT_MATMUL_STAGES_32x3));
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return give(int32_t{1});
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return give(static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return give(uint32_t{0});
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      return give(uint16_t{0});
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  useHandle("cublasLtMatmulAlgoGetHeuristic", handle);
  if (requested < 1) return answer(invalid("no algorithm is asked for"));
  const Operation& operation = operationOf(description);
  if (const Answer fault = checkProduct(operation, layoutOf(a), layoutOf(b), layoutOf(c), layoutOf(d));
      fault.status != CUBLAS_STATUS_SUCCESS)
    return answer(fault);
  const Preference& preference = *reinterpret_cast<Preference*>(wanted);
  Algorithm algorithm{.type = static_cast<uint32_t>(layoutOf(a).type), .tf32 = operation.tf32};
  for (size_t i = 0; i < 4; ++i)
    algorithm.alignments[i] = static_cast<uint32_t>(std::min<uint64_t>(preference.alignments[i], kMostAlignment));
  if (operation.hasVector())
    algorithm.alignments[Algorithm::kVector] = static_cast<uint32_t>(alignmentOf(operation.vector));
  if (operation.hasMatrix())
    algorithm.alignments[Algorithm::kMatrix] = static_cast<uint32_t>(alignmentOf(operation.matrix));
  *returned = std::min<int>(requested, Algorithm::kCount);
  for (int i = 0; i < *returned; ++i) {
    algorithm.number = static_cast<uint64_t>(i);
    algorithm.workspace = i == 0 ? preference.workspace : 0;
    algorithm.unused = randomBits();
    results[i] = {};
    results[i].algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    results[i].workspaceSize = algorithm.workspace;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layoutA, const void* b,
                              cublasLtMatrixLayout_t layoutB, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layoutC, void* d, cublasLtMatrixLayout_t layoutD,
                              const cublasLtMatmulAlgo_t* stored, void* workspace, size_t workspaceBytes,
                              cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  useHandle("cublasLtMatmul", handle);
  const Algorithm algorithm = algorithmOf(stored);
  if (!algorithm.known()) return answer(invalid("the algorithm is none"));
  if (!alpha || !beta) return answer(invalid("alpha or beta is null"));
  const Product product{operationOf(description),
                        layoutOf(layoutA),
                        layoutOf(layoutB),
                        layoutOf(layoutC),
                        layoutOf(layoutD),
                        *static_cast<const float*>(alpha),
                        *static_cast<const float*>(beta),
                        a,
                        b,
                        c,
                        d};
  Answer fault = checkProduct(product.operation, product.a, product.b, product.c, product.d);
  if (fault.status == CUBLAS_STATUS_SUCCESS) fault = checkCall(product, algorithm, workspace, workspaceBytes);
  if (fault.status != CUBLAS_STATUS_SUCCESS) return answer(fault);
  const cudaError_t error =
      enqueue(stream, [product, workspace = static_cast<std::byte*>(workspace), bytes = algorithm.workspace] {
        use(workspace, bytes);
        if (product.a.type == CUDA_R_32F)
          product.run<float>();
        else if (product.a.type == CUDA_R_16F)
          product.run<sheaf::cuda::F16>();
        else
          product.run<Bf16>();
      });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
