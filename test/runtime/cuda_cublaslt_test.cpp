// The emulated cuBLASLt refuses what the real one does, with the same status: docs/cuda-emulation.md has the rules and
// their sources. And what Blas makes of such answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/device/cuda/Blas.h"

namespace sheaf::cuda {
namespace {

using ::testing::HasSubstr;

// A product of f32 matrices with their columns in a row, and everything that a call of cublasLtMatmul() takes. Tests
// change one thing of a product that is right.
struct Call {
  int64_t m = 16, n = 8, k = 8;
  cudaDataType type = CUDA_R_32F, typeOfC = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t transposeA = CUBLAS_OP_N, transposeB = CUBLAS_OP_N;
  int64_t leadingA = 16, leadingB = 8, leadingC = 16, leadingMatrix = 16;
  int32_t batchA = 1, batchC = 1;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool vector = false, matrix = false;
  // When the algorithm is chosen: the alignment of a, and of the epilogue's pointers.
  uint32_t alignmentA = 16, alignmentOthers = 16;
  // Of the call, in bytes from the begin of each operand's memory.
  int64_t offsetA = 0, offsetVector = 0, offsetWorkspace = 0;
  uint64_t workspaceWanted = 4096, workspaceBytes = 4096;
  bool workspaceIsNull = false;
  float beta = 0;
};

class CublasLt : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 64 << 10;

  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    for (void*& memory : memory_) {
      ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
      ASSERT_EQ(cudaMemset(memory, 0, kBytes), cudaSuccess);
    }
  }
  void TearDown() override {
    for (void* memory : memory_) cudaFree(memory);
    cudaStreamDestroy(stream_);
    cublasLtDestroy(handle_);
  }

  struct Result {
    cublasStatus_t heuristic, check, product;
    size_t workspaceNeeded;
  };

  Result run(const Call& c) {
    cublasLtMatmulDesc_t operation = nullptr;
    EXPECT_EQ(cublasLtMatmulDescCreate(&operation, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, c.transposeA);
    set(CUBLASLT_MATMUL_DESC_TRANSB, c.transposeB);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c.leadingMatrix);
    const bool tA = c.transposeA == CUBLAS_OP_T, tB = c.transposeB == CUBLAS_OP_T;
    cublasLtMatrixLayout_t layouts[3] = {};
    cublasLtMatrixLayoutCreate(&layouts[0], c.type, tA ? c.k : c.m, tA ? c.m : c.k, c.leadingA);
    cublasLtMatrixLayoutCreate(&layouts[1], c.type, tB ? c.n : c.k, tB ? c.k : c.n, c.leadingB);
    cublasLtMatrixLayoutCreate(&layouts[2], c.typeOfC, c.m, c.n, c.leadingC);
    for (int i = 0; i < 3; ++i)
      cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, i == 0 ? &c.batchA : &c.batchC,
                                       sizeof(int32_t));
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &c.workspaceWanted,
                                         sizeof c.workspaceWanted);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &c.alignmentA,
                                         sizeof c.alignmentA);
    auto point = [&](std::byte* vector, std::byte* matrix) {
      if (c.vector) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
      if (c.matrix) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix);
    };
    std::byte* const somewhere = reinterpret_cast<std::byte*>(uintptr_t{1 << 20} + c.alignmentOthers);
    point(somewhere, somewhere);
    Result result{};
    cublasLtMatmulHeuristicResult_t found[4] = {}, checked = {};
    int count = 0;
    result.heuristic = cublasLtMatmulAlgoGetHeuristic(handle_, operation, layouts[0], layouts[1], layouts[2],
                                                      layouts[2], preference, 4, found, &count);
    // Where a call is refused, so is an algorithm that was chosen for a product that is right.
    if (result.heuristic == CUBLAS_STATUS_SUCCESS)
      algorithm_ = found[0].algo, result.workspaceNeeded = found[0].workspaceSize;
    result.check = cublasLtMatmulAlgoCheck(handle_, operation, layouts[0], layouts[1], layouts[2], layouts[2],
                                           &algorithm_, &checked);
    point(at(4, c.offsetVector), at(5, 0));
    const float one = 1;
    result.product = cublasLtMatmul(handle_, operation, &one, at(0, c.offsetA), layouts[0], at(1, 0), layouts[1],
                                    &c.beta, at(2, 0), layouts[2], at(2, 0), layouts[2], &algorithm_,
                                    c.workspaceIsNull ? nullptr : at(3, c.offsetWorkspace), c.workspaceBytes, stream_);
    why_ = cublasLtGetStatusString(result.product);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : layouts) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation);
    return result;
  }
  std::byte* at(int memory, int64_t offset) { return static_cast<std::byte*>(memory_[memory]) + offset; }

  // Refused when it is chosen, checked and run.
  void expectRefused(cublasStatus_t status, const Call& call, const char* why) {
    ASSERT_EQ(run({}).product, CUBLAS_STATUS_SUCCESS) << why_;
    const Result result = run(call);
    EXPECT_EQ(result.heuristic, status) << why;
    EXPECT_EQ(result.check, status) << why;
    EXPECT_EQ(result.product, status) << why;
    EXPECT_THAT(why_, HasSubstr(why));
  }
  // Refused where the operands are known only.
  void expectRefusedCall(cublasStatus_t status, const Call& call, const char* why) {
    const Result result = run(call);
    EXPECT_EQ(result.heuristic, CUBLAS_STATUS_SUCCESS) << why;
    EXPECT_EQ(result.product, status) << why;
    EXPECT_THAT(why_, HasSubstr(why));
  }

  static constexpr cublasStatus_t kInvalid = CUBLAS_STATUS_INVALID_VALUE, kNot = CUBLAS_STATUS_NOT_SUPPORTED;
  cublasLtHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* memory_[6] = {};  // a, b, c, the workspace, the vector and the matrix of an epilogue
  cublasLtMatmulAlgo_t algorithm_ = {};
  std::string why_;
};

TEST_F(CublasLt, WorkspacesStartAtMultiplesOf256) {
  EXPECT_EQ(run({.offsetWorkspace = 256}).product, CUBLAS_STATUS_SUCCESS);
  for (int64_t offset : {16, 128, 384})
    expectRefusedCall(kInvalid, {.offsetWorkspace = offset}, "the workspace does not start at a multiple of 256 bytes");
  expectRefusedCall(kInvalid, {.workspaceIsNull = true}, "the workspace is null");
  EXPECT_EQ(run({.workspaceWanted = 0, .workspaceBytes = 0, .workspaceIsNull = true}).product, CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run({}).workspaceNeeded, 4096u);
  expectRefusedCall(kInvalid, {.workspaceBytes = 4095}, "the workspace is smaller than the algorithm needs");
}

TEST_F(CublasLt, WorkspacesAreWritten) {
  ASSERT_EQ(run({}).product, CUBLAS_STATUS_SUCCESS);
  for (int64_t i : {0, 4095}) EXPECT_NE(*at(3, i), std::byte{0}) << i;
  EXPECT_EQ(*at(3, 4096), std::byte{0});
}

TEST_F(CublasLt, OperandsAreAsAlignedAsWasSaid) {
  EXPECT_EQ(run({.alignmentA = 4, .offsetA = 4}).product, CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run({.alignmentA = 256, .offsetA = 16}).product, CUBLAS_STATUS_SUCCESS);
  expectRefusedCall(kNot, {.alignmentA = 8, .offsetA = 4}, "an operand is less aligned");
  // The pointers of an epilogue say it themselves.
  const Call biased{.epilogue = CUBLASLT_EPILOGUE_BIAS, .vector = true, .alignmentOthers = 4, .offsetVector = 4};
  EXPECT_EQ(run(biased).product, CUBLAS_STATUS_SUCCESS);
  Call promised = biased;
  promised.alignmentOthers = 16;
  expectRefusedCall(kNot, promised, "an operand is less aligned");
  Call odd = biased;
  odd.offsetVector = 2;
  expectRefusedCall(kInvalid, odd, "the bias pointer is not aligned to D's type");
}

TEST_F(CublasLt, SizesAndLayoutsGoTogether) {
  expectRefused(kInvalid, {.leadingA = 15}, "a leading dimension is less than the number of rows");
  expectRefused(kInvalid, {.leadingC = 15}, "a leading dimension is less than the number of rows");
  expectRefused(kInvalid, {.batchA = 2}, "the numbers of batches differ");
  expectRefused(kNot, {.typeOfC = CUDA_R_16BF}, "these types do not go together");
  expectRefused(kNot, {.type = CUDA_R_16BF, .typeOfC = CUDA_R_16BF, .compute = CUBLAS_COMPUTE_32F_FAST_TF32},
                "TF32 is for operands in f32");
}

TEST_F(CublasLt, SumsOfAnOperandHaveRulesForItsTransposition) {
  Call a{.epilogue = CUBLASLT_EPILOGUE_BGRADA, .vector = true};
  EXPECT_EQ(run(a).product, CUBLAS_STATUS_SUCCESS);
  a.transposeA = CUBLAS_OP_T;
  expectRefused(kNot, a, "BGRADA takes a non-transposed A");
  Call b{.transposeB = CUBLAS_OP_T, .epilogue = CUBLASLT_EPILOGUE_BGRADB, .vector = true};
  EXPECT_EQ(run(b).product, CUBLAS_STATUS_SUCCESS);
  b.transposeB = CUBLAS_OP_N;
  expectRefused(kNot, b, "BGRADB takes a transposed B");
}

TEST_F(CublasLt, EpiloguesHaveTheirPointers) {
  expectRefused(kInvalid, {.epilogue = CUBLASLT_EPILOGUE_BIAS}, "the epilogue needs a bias pointer");
  expectRefused(kInvalid, {.vector = true}, "the epilogue takes no bias pointer");
  for (cublasLtEpilogue_t epilogue : {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DGELU}) {
    EXPECT_EQ(run({.epilogue = epilogue, .matrix = true}).product, CUBLAS_STATUS_SUCCESS);
    expectRefused(kInvalid, {.epilogue = epilogue}, "needs a pointer to its auxiliary matrix");
    for (int64_t leading : {8, 20})
      expectRefused(kInvalid, {.leadingMatrix = leading, .epilogue = epilogue, .matrix = true},
                    "the auxiliary matrix's leading dimension");
  }
}

// The answer to an epilogue that cuBLASLt has not for such a product is the absence of a product, whatever the status;
// a product that is wrong in itself is an error.
TEST_F(CublasLt, EpiloguesThatAreRefusedAreNoProduct) {
  auto blas = Blas::open({});
  ASSERT_TRUE(blas.ok());
  ProductShape shape;
  shape.m = 8, shape.n = 12, shape.k = 8, shape.lda = 8, shape.ldb = shape.ldc = 12;
  shape.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;  // INVALID_VALUE: rows of 12
  auto product = (*blas)->product(shape);
  ASSERT_TRUE(product.ok()) << product.status().message();
  EXPECT_EQ(*product, nullptr);
  shape.epilogue = CUBLASLT_EPILOGUE_BGRADB;  // NOT_SUPPORTED: our a is cuBLASLt's B
  product = (*blas)->product(shape);
  ASSERT_TRUE(product.ok()) << product.status().message();
  EXPECT_EQ(*product, nullptr);
  shape.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  shape.lda = 4;
  product = (*blas)->product(shape);
  EXPECT_THAT(product.status().message(), HasSubstr("no algorithm for the product f32,nn,m8,n12,k8"));
  EXPECT_THAT(product.status().message(), HasSubstr("an invalid value"));
}

// A bias that starts at any multiple of its elements: the heuristic must not be promised more.
TEST_F(CublasLt, BiasesMayStartAnywhere) {
  auto blas = Blas::open({});
  ASSERT_TRUE(blas.ok());
  ProductShape shape;
  shape.m = 8, shape.n = 16, shape.k = 8, shape.lda = 8, shape.ldb = shape.ldc = 16;
  shape.alignments = {16, 16, 4};
  shape.epilogue = CUBLASLT_EPILOGUE_BIAS;
  auto product = (*blas)->product(shape);
  ASSERT_TRUE(product.ok() && *product) << product.status().message();
  const Status status = (*product)->enqueue(stream_, at(0, 0), at(1, 0), at(2, 0), at(3, 0), {at(4, 4), nullptr});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

}  // namespace
}  // namespace sheaf::cuda
