// gemm.
#include <algorithm>

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/kernels/GemmEpilogue.h"

namespace sheaf::cuda {
namespace {

using plan::GemmEpilogue;

// Indices of a call's operands; -1 for those that it does without.
struct Places {
  explicit Places(const plan::GemmCall& call)
      : a(plan::operandIndex<"a">(call)),
        b(plan::operandIndex<"b">(call)),
        c(plan::operandIndex<"c">(call)),
        vector(call.addsBias() ? plan::operandIndex<"bias">(call) : plan::operandIndex<"sum">(call)),
        matrix(call.appliesGelu() ? plan::operandIndex<"saved_gelu_input">(call)
                                  : plan::operandIndex<"gelu_input">(call)) {}

  int a, b, c;
  int vector;  // a bias or a sum
  int matrix;  // what GELU is applied to
};

// cuBLASLt's matrices have their columns in a row: its A is our b, and its rows are our columns.
cublasLtEpilogue_t cublasEpilogue(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::kSumA:
      return CUBLASLT_EPILOGUE_BGRADB;
    case GemmEpilogue::kSumB:
      return CUBLASLT_EPILOGUE_BGRADA;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// The epilogue by our own kernel, after a plain product.
template <typename T>
Status finish(const Invocation& invocation, GemmEpilogue epilogue, const Places& places, const ProductShape& p) {
  T *c = invocation.operand<T>(places.c), *vector = invocation.operand<T>(places.vector),
    *matrix = invocation.operand<T>(places.matrix);
  const cudaStream_t stream = invocation.stream;
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return Status();
    case GemmEpilogue::kBias:
    case GemmEpilogue::kGelu:
    case GemmEpilogue::kBiasGelu:
      return toStatus(biasAndGelu<T>(stream, c, p.ldc, vector, matrix, p.m, p.n));
    case GemmEpilogue::kGeluGrad:
      return toStatus(geluGradient<T>(stream, matrix, c, p.ldc, p.m, p.n));
    case GemmEpilogue::kSumA:
      return toStatus(sumColumns<T>(stream, invocation.operand<T>(places.a), p.lda, vector, p.k, p.m));
    case GemmEpilogue::kSumB:
      return toStatus(sumColumns<T>(stream, invocation.operand<T>(places.b), p.ldb, vector, p.k, p.n));
  }
  return Status();
}

}  // namespace

MadeFunction makeFunction(const plan::GemmCall& call, const CallSite& site) {
  const Places places(call);
  ProductShape shape;
  shape.m = call.m, shape.n = call.n, shape.k = call.k, shape.batch = call.batch;
  shape.transposeA = call.transposeA, shape.transposeB = call.transposeB;
  shape.lda = call.lda, shape.ldb = call.ldb, shape.ldc = call.ldc;
  if (call.batch > 1) shape.strideA = call.strideA, shape.strideB = call.strideB, shape.strideC = call.strideC;
  shape.type = floatType(call.type);
  shape.tf32 = call.tf32;
  shape.alignments = {site.alignment(places.a), site.alignment(places.b), site.alignment(places.c)};
  shape.workspace = static_cast<int64_t>(site.instruction.call().device_scratch());
  ProductShape whole = shape;
  whole.epilogue = cublasEpilogue(call.epilogue);
  for (int place : {places.vector, places.matrix})
    if (place >= 0) whole.alignments[2] = std::min(whole.alignments[2], site.alignment(place));
  auto product = site.blas.product(whole);
  if (!product.ok()) return product.status();
  if (*product)
    return enqueues([product = std::shared_ptr<const Product>(std::move(*product)), places](const Invocation& call) {
      return product->enqueue(call.stream, call.operand<void>(places.a), call.operand<void>(places.b),
                              call.operand<void>(places.c), call.scratch,
                              {call.operand<void>(places.vector), call.operand<void>(places.matrix)});
    });
  product = site.blas.product(shape);
  if (!product.ok()) return product.status();
  return enqueues([product = std::shared_ptr<const Product>(std::move(*product)), shape, epilogue = call.epilogue,
                   places](const Invocation& invocation) {
    Status status =
        product->enqueue(invocation.stream, invocation.operand<void>(places.a), invocation.operand<void>(places.b),
                         invocation.operand<void>(places.c), invocation.scratch);
    if (!status.ok()) return status;
    return withType(shape.type, [&](auto type) { return finish<decltype(type)>(invocation, epilogue, places, shape); });
  });
}

}  // namespace sheaf::cuda
