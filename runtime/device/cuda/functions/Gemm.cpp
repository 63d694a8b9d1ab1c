// gemm.
#include <algorithm>

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/kernels/Epilogue.h"

namespace sheaf::cuda {
namespace {

using plan::Epilogue;

// Where a call's operands stand: the result, and beside it a vector (a bias, or a sum) and a matrix (what GELU is
// applied to).
struct Places {
  int c = 2, vector = -1, matrix = -1;
};

Places placesOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return {};
    case Epilogue::kBias:
      return {.c = 3, .vector = 2};
    case Epilogue::kGelu:
      return {.c = 2, .matrix = 3};
    case Epilogue::kBiasGelu:
      return {.c = 3, .vector = 2, .matrix = 4};
    case Epilogue::kGeluGrad:
      return {.c = 3, .matrix = 2};
    case Epilogue::kSumA:
    case Epilogue::kSumB:
      return {.c = 2, .vector = 3};
  }
  return {};
}

// cuBLASLt's matrices have their columns in a row: its A is our b, and its rows are our columns.
cublasLtEpilogue_t cublasEpilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kSumA:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::kSumB:
      return CUBLASLT_EPILOGUE_BGRADA;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// The epilogue by a kernel of ours, behind a plain product.
template <typename T>
Status finish(const Invocation& invocation, Epilogue epilogue, const Places& places, const ProductShape& p) {
  auto operand = [&](int place) { return place < 0 ? nullptr : invocation.operand<T>(place); };
  T *c = operand(places.c), *vector = operand(places.vector), *matrix = operand(places.matrix);
  const cudaStream_t stream = invocation.stream;
  switch (epilogue) {
    case Epilogue::kNone:
      return Status();
    case Epilogue::kBias:
    case Epilogue::kGelu:
    case Epilogue::kBiasGelu:
      return toStatus(biasAndGelu<T>(stream, c, p.ldc, vector, matrix, p.m, p.n));
    case Epilogue::kGeluGrad:
      return toStatus(geluGradient<T>(stream, matrix, c, p.ldc, p.m, p.n));
    case Epilogue::kSumA:
      return toStatus(sumColumns<T>(stream, invocation.operand<T>(0), p.lda, vector, p.k, p.m));
    case Epilogue::kSumB:
      return toStatus(sumColumns<T>(stream, invocation.operand<T>(1), p.ldb, vector, p.k, p.n));
  }
  return Status();
}

}  // namespace

MadeFunction makeGemm(const plan::LibraryCall& call, int64_t, Blas& blas) {
  auto get = [&](const char* name) { return plan::integer(call, name); };
  const Epilogue epilogue = plan::epilogue(call);
  const Places places = placesOf(epilogue);
  ProductShape shape;
  shape.m = get("m"), shape.n = get("n"), shape.k = get("k"), shape.batch = get("batch");
  shape.transposeA = get("transpose_a") != 0, shape.transposeB = get("transpose_b") != 0;
  shape.lda = get("lda"), shape.ldb = get("ldb"), shape.ldc = get("ldc");
  if (shape.batch > 1)
    shape.strideA = get("stride_a"), shape.strideB = get("stride_b"), shape.strideC = get("stride_c");
  shape.half = plan::elementType(call) == plan::BF16;
  shape.tf32 = get("tf32") != 0;
  shape.alignments = {alignmentOf(call, 0), alignmentOf(call, 1), alignmentOf(call, places.c)};
  shape.workspace = static_cast<int64_t>(call.device_scratch());
  ProductShape whole = shape;
  whole.epilogue = cublasEpilogue(epilogue);
  for (int place : {places.vector, places.matrix})
    if (place >= 0) whole.alignments[2] = std::min(whole.alignments[2], alignmentOf(call, place));
  auto product = blas.product(whole);
  if (!product.ok()) return product.status();
  if (*product)
    return enqueues([product = std::shared_ptr<const Product>(std::move(*product)), places](const Invocation& call) {
      auto operand = [&](int place) { return place < 0 ? nullptr : call.operands[place]; };
      return product->enqueue(call.stream, call.operands[0], call.operands[1], operand(places.c), call.scratch,
                              {operand(places.vector), operand(places.matrix)});
    });
  product = blas.product(shape);
  if (!product.ok()) return product.status();
  return enqueues([product = std::shared_ptr<const Product>(std::move(*product)), shape, epilogue,
                   places](const Invocation& invocation) {
    Status status = product->enqueue(invocation.stream, invocation.operands[0], invocation.operands[1],
                                     invocation.operands[places.c], invocation.scratch);
    if (!status.ok()) return status;
    return shape.half ? finish<Half>(invocation, epilogue, places, shape)
                      : finish<float>(invocation, epilogue, places, shape);
  });
}

}  // namespace sheaf::cuda
