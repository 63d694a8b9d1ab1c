#include "runtime/plan/calls/Gemm.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {

Status GemmCall::check() const {
  if (const int64_t matrix = rowsSpan(m, ldc, n); batch > 1 && strideC < matrix)
    return Status::error(
        cat("attribute 'stride_c' is ", strideC, ", but each of its ", batch, " results takes ", matrix, " elements"));
  if (tf32 && type != F32) return Status::error("TF32 needs operands of type f32");
  if (epilogue != GemmEpilogue::kNone && batch > 1) return Status::error("a product with an epilogue has one batch");
  if (epilogue == GemmEpilogue::kSumA && !transposeA)
    return Status::error("its epilogue sums a, which must be transposed");
  if (epilogue == GemmEpilogue::kSumB && transposeB)
    return Status::error("its epilogue sums b, which must not be transposed");
  return Status();
}

uint64_t GemmCall::scratchPerThread() const {
  return isWidened(type) ? scratchOfFloats(kHalfGemmScratch) : 0;
}

uint64_t GemmCall::deviceScratch() const {
  return static_cast<uint64_t>(gemmWorkspace(m, n, batch));
}

uint64_t GemmCall::packingBytes() const {
  // threadTile() needs no more.
  const GemmTile tile = gemmTile(m, n, k, batch, transposeA, transposeB, isWidened(type));
  const uint64_t bytes = sgemmPackingBytes(tile.rows, tile.columns, k);
  // Blocks of a product of f16, and of bf16 without its instructions, are packed as f32.
  return isWidened(type) ? std::max(bytes, sgemmPackingBytes(kHalfGemmRows, kHalfGemmColumns, kHalfGemmDepth)) : bytes;
}

}  // namespace sheaf::plan
