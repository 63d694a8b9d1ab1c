// gemm.
#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {

MadeFunction makeGemm(const plan::LibraryCall& call, int64_t, Blas& blas) {
  auto get = [&](const char* name) { return plan::integer(call, name); };
  ProductShape shape;
  shape.m = get("m"), shape.n = get("n"), shape.k = get("k"), shape.batch = get("batch");
  shape.transposeA = get("transpose_a") != 0, shape.transposeB = get("transpose_b") != 0;
  shape.lda = get("lda"), shape.ldb = get("ldb"), shape.ldc = get("ldc");
  if (shape.batch > 1)
    shape.strideA = get("stride_a"), shape.strideB = get("stride_b"), shape.strideC = get("stride_c");
  shape.half = plan::elementType(call) == plan::BF16;
  shape.alignments = {alignmentOf(call, 0), alignmentOf(call, 1), alignmentOf(call, 2)};
  shape.workspace = static_cast<int64_t>(call.device_scratch());
  auto product = blas.product(shape);
  if (!product.ok()) return product.status();
  return enqueues([product = std::shared_ptr<const Product>(std::move(*product))](const Invocation& invocation) {
    return product->enqueue(invocation.stream, invocation.operands[0], invocation.operands[1], invocation.operands[2],
                            invocation.scratch);
  });
}

}  // namespace sheaf::cuda
