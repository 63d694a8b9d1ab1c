#include "runtime/device/cuda/Blas.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

namespace sheaf::cuda {
namespace {

Status failed(const char* what, cublasStatus_t status) {
  return Status::error(cat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status)));
}

// Split products add partial results in a fixed order, from the workspace; others add where they meet.
constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

// All that cuBLASLt says of an algorithm, as a text. Its bytes do not do: that equal algorithms have equal bytes is not
// documented, and unused ones may be anything.
std::string attributesOf(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  auto add = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    size_t written = 0;
    const bool known = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written) ==
                       CUBLAS_STATUS_SUCCESS;
    text += known ? cat(",", value) : ",-";
  };
  add(CUBLASLT_ALGO_CONFIG_ID, int32_t{0});
  add(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{0});
  add(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{0});
  add(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{0});
  add(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{0});
  add(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t{0});
  add(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{0});
  add(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t{0});
  add(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{0});
  return text;
}

}  // namespace

bool ProductShape::hasMatrix() const {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}
bool ProductShape::hasVector() const {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

std::string ProductShape::name() const {
  const char* const word = type == FloatType::kBf16 ? "bf16" : type == FloatType::kF16 ? "f16" : tf32 ? "tf32" : "f32";
  return cat(word, ",", transposeA ? "t" : "n", transposeB ? "t" : "n", ",m", m, ",n", n, ",k", k, ",batch", batch,
             ",ld", lda, "/", ldb, "/", ldc, ",stride", strideA, "/", strideB, "/", strideC, ",align", alignments[0],
             "/", alignments[1], "/", alignments[2], ",workspace", workspace, add ? ",add" : "",
             epilogue == CUBLASLT_EPILOGUE_DEFAULT ? "" : cat(",epilogue", static_cast<int>(epilogue)));
}

Product::Product(cublasLtHandle_t handle, const ProductShape& shape) : handle_(handle), shape_(shape) {}

Product::~Product() {
  for (cublasLtMatrixLayout_t layout : {left_, right_, result_})
    if (layout) cublasLtMatrixLayoutDestroy(layout);
  if (operation_) cublasLtMatmulDescDestroy(operation_);
}

cublasStatus_t Product::describe() {
  const ProductShape& p = shape_;
  const cudaDataType_t type = p.type == FloatType::kBf16  ? CUDA_R_16BF
                              : p.type == FloatType::kF16 ? CUDA_R_16F
                                                          : CUDA_R_32F;
  cublasStatus_t status =
      cublasLtMatmulDescCreate(&operation_, p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
  auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulDescSetAttribute(operation_, which, &value, sizeof value);
  };
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, p.transposeB);
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, p.transposeA);
  // A row-major [rows, columns] matrix.
  auto matrix = [&](cublasLtMatrixLayout_t* layout, int64_t rows, int64_t columns, int64_t row, int64_t stride) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatrixLayoutCreate(layout, type, columns, rows, row);
    if (p.batch == 1 || status != CUBLAS_STATUS_SUCCESS) return;
    const int32_t batch = static_cast<int32_t>(p.batch);
    status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                sizeof stride);
  };
  matrix(&left_, p.transposeB ? p.n : p.k, p.transposeB ? p.k : p.n, p.ldb, p.strideB);
  matrix(&right_, p.transposeA ? p.k : p.m, p.transposeA ? p.m : p.k, p.lda, p.strideA);
  matrix(&result_, p.m, p.n, p.ldc, p.strideC);
  if (status != CUBLAS_STATUS_SUCCESS || p.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return status;
  status = cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, &p.epilogue, sizeof p.epilogue);
  if (status == CUBLAS_STATUS_SUCCESS && p.hasMatrix())
    status = cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p.n, sizeof p.n);
  // The heuristic takes the presence and the alignment of these pointers into account, and never dereferences them:
  // they must not promise more than the operands keep.
  void* const somewhere = reinterpret_cast<void*>((uintptr_t{1} << 20) + static_cast<uintptr_t>(p.alignments[2]));
  return status == CUBLAS_STATUS_SUCCESS ? point({somewhere, somewhere}) : status;
}

cublasStatus_t Product::point(const EpilogueOperands& others) const {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (shape_.hasVector())
    status = cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &others.vector,
                                            sizeof others.vector);
  if (shape_.hasMatrix() && status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &others.matrix,
                                            sizeof others.matrix);
  return status;
}

cublasStatus_t Product::run(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const void* a, const void* b,
                            void* c, std::byte* workspace, const EpilogueOperands& others) const {
  if (const cublasStatus_t status = point(others); status != CUBLAS_STATUS_SUCCESS) return status;
  const float one = 1, kept = shape_.add ? 1 : 0;
  return cublasLtMatmul(handle_, operation_, &one, b, left_, a, right_, &kept, c, result_, c, result_, &algorithm,
                        workspace, static_cast<size_t>(shape_.workspace), stream);
}

Status Product::enqueue(cudaStream_t stream, const void* a, const void* b, void* c, std::byte* workspace,
                        const EpilogueOperands& others) const {
  const cublasStatus_t status = run(algorithm_, stream, a, b, c, workspace, others);
  return status == CUBLAS_STATUS_SUCCESS ? Status() : failed("a matrix product", status);
}

Expected<std::unique_ptr<Blas>> Blas::open(const BlasOptions& options) {
  std::unique_ptr<Blas> blas(new Blas(options));
  int device = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return Status::error(cat("no CUDA device for cuBLASLt: ", cudaGetErrorString(error)));
  blas->device_ = properties.name;
  blas->processors_ = properties.multiProcessorCount;
  if (cublasStatus_t status = cublasLtCreate(&blas->handle_); status != CUBLAS_STATUS_SUCCESS)
    return failed("it does not start", status);
  if (!options.table.empty()) {
    std::istringstream in(options.table);
    SHEAF_RETURN_IF_ERROR(blas->readTable(in));
  }
  return blas;
}

Blas::~Blas() {
  if (handle_) cublasLtDestroy(handle_);
}

Expected<std::unique_ptr<const Product>> Blas::product(const ProductShape& shape) {
  if (shape.batch > INT32_MAX) return Status::error(cat("cuBLASLt: a product has ", shape.batch, " batches"));
  auto product = std::make_unique<Product>(handle_, shape);
  if (cublasStatus_t status = product->describe(); status != CUBLAS_STATUS_SUCCESS)
    return failed(("the product " + shape.name()).c_str(), status);
  const std::string name = shape.name();
  auto found = chosen_.find(name);
  if (found == chosen_.end()) {
    auto choice = choose(*product);
    if (!choice.ok()) return choice.status();
    if (!*choice) return std::unique_ptr<const Product>();
    found = chosen_.emplace(name, **choice).first;
  }
  product->algorithm_ = found->second.algorithm;
  return std::unique_ptr<const Product>(std::move(product));
}

Expected<std::optional<Blas::Choice>> Blas::choose(const Product& product) {
  const ProductShape& shape = product.shape_;
  const std::string name = shape.name();
  if (auto found = table_.find(name); found != table_.end()) {
    if (usable(product, found->second.algorithm)) return std::optional(found->second);
    options_.warn(
        cat("a table of products has an algorithm for ", name, " that cuBLASLt does not take: its own choice is used"));
  }
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const void* value, size_t bytes) {
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatmulPreferenceSetAttribute(preference, which, value, bytes);
  };
  const uint64_t workspace = shape.workspace;
  // In cuBLASLt's order: b comes first.
  const uint32_t left = shape.alignments[1], right = shape.alignments[0], result = shape.alignments[2];
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &kReductions, sizeof kReductions);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &left, sizeof left);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &right, sizeof right);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof result);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof result);
  constexpr int kCandidates = 8;
  cublasLtMatmulHeuristicResult_t candidates[kCandidates] = {};
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(handle_, product.operation_, product.left_, product.right_, product.result_,
                                            product.result_, preference, options_.measure ? kCandidates : 1, candidates,
                                            &count);
  if (preference) cublasLtMatmulPreferenceDestroy(preference);
  count = static_cast<int>(std::remove_if(candidates, candidates + count,
                                          [](const cublasLtMatmulHeuristicResult_t& candidate) {
                                            return candidate.state != CUBLAS_STATUS_SUCCESS;
                                          }) -
                           candidates);
  // That an epilogue is not to be had with such a product is said in several ways: no algorithm, NOT_SUPPORTED, or
  // INVALID_VALUE where an attribute of the epilogue breaks a rule, such as the leading dimension of its matrix. A
  // product that is wrong in itself is refused again without the epilogue.
  const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
                    (status == CUBLAS_STATUS_SUCCESS && count == 0);
  if (none && shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return std::optional<Choice>();
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    return failed(("no algorithm for the product " + name).c_str(),
                  status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status);
  if (!options_.measure) return std::optional(Choice{candidates[0].algo, 0});
  auto best = fastest(product, std::span(candidates, count));
  if (!best.ok()) return best.status();
  return std::optional(*best);
}

bool Blas::usable(const Product& product, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  if (cublasLtMatmulAlgoCheck(handle_, product.operation_, product.left_, product.right_, product.result_,
                              product.result_, &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(product.shape_.workspace))
    return false;
  uint32_t reduction = 0;
  size_t written = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                              sizeof reduction, &written) == CUBLAS_STATUS_SUCCESS &&
         (reduction & ~kReductions) == 0;
}

uint64_t Blas::hash() const {
  std::string all = machine();
  for (const auto& [name, choice] : chosen_) {
    all += name;
    all += attributesOf(choice.algorithm);
  }
  return xxh64(all);
}

}  // namespace sheaf::cuda
