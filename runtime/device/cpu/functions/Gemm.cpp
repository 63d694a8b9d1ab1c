// Matrix products: oneDNN's single-threaded sgemm on tiles of the result that our own pool hands out.
#include <algorithm>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/GemmEpilogue.h"
#include "runtime/device/cpu/functions/OneDnn.h"
#include "runtime/device/cpu/functions/Sgemm.h"
#include "runtime/plan/Tiles.h"

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
        tile_(plan::gemmTile(gemmIsa(), m_, n_, k_, batch_, transposeA_, transposeB_, false)),
        epilogue_(call) {}

  Status run(const Invocation& invocation) const override {
    const float* a = invocation.operand<float>(epilogue_.a());
    const float* b = invocation.operand<float>(epilogue_.b());
    float* c = invocation.operand<float>(epilogue_.c());
    const int64_t tileRows = (m_ + tile_.rows - 1) / tile_.rows, tileColumns = (n_ + tile_.columns - 1) / tile_.columns;
    SgemmFailure failure;
    // Neighbouring tiles share columns of b, the operand whose packing costs more.
    invocation.pool.run(batch_ * tileColumns * tileRows, [&](int64_t item, int) {
      int64_t row = item % tileRows * tile_.rows, rest = item / tileRows;
      int64_t column = rest % tileColumns * tile_.columns, entry = rest / tileColumns;
      int64_t rows = std::min(tile_.rows, m_ - row), columns = std::min(tile_.columns, n_ - column);
      failure.note(sgemm(transposeA_, transposeB_, rows, columns, k_, 1,
                         a + entry * strideA_ + (transposeA_ ? row : row * lda_), lda_,
                         b + entry * strideB_ + (transposeB_ ? column * ldb_ : column), ldb_, 0,
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
  plan::GemmTile tile_;
  GemmEpilogue epilogue_;
};

}  // namespace

Function makeFunction(const plan::GemmCall& call, const CallSite& site) {
  if (plan::isHalf(call.type)) return makeHalfGemm(call, site);
  return std::make_unique<Gemm>(call);
}

}  // namespace sheaf::cpu
