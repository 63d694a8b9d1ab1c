// Matrix products: a single-threaded sgemm on tiles of the result that our own pool hands out.
#include <algorithm>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/GemmEpilogue.h"
#include "runtime/device/cpu/functions/Sgemm.h"

namespace sheaf::cpu {
namespace {

class Gemm : public LibraryFunction {
 public:
  explicit Gemm(const plan::GemmCall& call)
      : m_(call.m),
        n_(call.n),
        k_(call.k),
        batch_(call.batch),
        transposeA_(call.transposeA),
        transposeB_(call.transposeB),
        lda_(call.lda),
        ldb_(call.ldb),
        ldc_(call.ldc),
        strideA_(call.strideA),
        strideB_(call.strideB),
        strideC_(call.strideC),
        epilogue_(call) {}

  Status run(const Invocation& invocation) const override {
    const float* a = invocation.operand<float>(epilogue_.a());
    const float* b = invocation.operand<float>(epilogue_.b());
    float* c = invocation.operand<float>(epilogue_.c());
    const plan::GemmTile tile = sgemmTile(m_, n_, k_, batch_, transposeA_, transposeB_, invocation.pool.threads());
    const int64_t tileRows = (m_ + tile.rows - 1) / tile.rows, tileColumns = (n_ + tile.columns - 1) / tile.columns;
    SgemmFailure failure;
    // Neighbouring tiles share columns of b, the operand whose packing costs more.
    invocation.pool.run(batch_ * tileColumns * tileRows, [&](int64_t item, int) {
      int64_t row = item % tileRows * tile.rows, rest = item / tileRows;
      int64_t column = rest % tileColumns * tile.columns, entry = rest / tileColumns;
      int64_t rows = std::min(tile.rows, m_ - row), columns = std::min(tile.columns, n_ - column);
      failure.note(sgemm(transposeA_, transposeB_, rows, columns, k_, 1,
                         a + entry * strideA_ + (transposeA_ ? row : row * lda_), lda_,
                         b + entry * strideB_ + (transposeB_ ? column * ldb_ : column), ldb_, false,
                         c + entry * strideC_ + row * ldc_ + column, ldc_));
      epilogue_.finish(invocation, row, column, rows, columns);
    });
    epilogue_.sum(invocation);
    return failure.status();
  }

 private:
  int64_t m_, n_, k_, batch_;
  bool transposeA_, transposeB_;
  int64_t lda_, ldb_, ldc_, strideA_, strideB_, strideC_;
  GemmEpilogue epilogue_;
};

}  // namespace

Function makeFunction(const plan::GemmCall& call, const CallSite& site) {
  if (plan::isWidened(call.type)) return makeHalfGemm(call, site);
  return std::make_unique<Gemm>(call);
}

}  // namespace sheaf::cpu
