// Matrix products of 16-bit floats with f32 accumulation. Of bf16: oneDNN's matmul on tiles of the result. Of f16, and
// where oneDNN has none of bf16 for this processor (AVX2), tiles are converted to f32 block by block and rounded at the
// end.
#include <dnnl.h>

#include <algorithm>
#include <string_view>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/LibraryThreads.h"
#include "runtime/device/cpu/functions/GemmEpilogue.h"
#include "runtime/device/cpu/functions/OneDnn.h"
#include "runtime/device/cpu/functions/Sgemm.h"
#include "runtime/device/cpu/simd/Halves.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cpu {
namespace {

// A row-major matrix, or one that is stored transposed.
struct Matrix {
  bool transposed;
  int64_t leading;

  int64_t at(int64_t row, int64_t column) const { return transposed ? column * leading + row : row * leading + column; }
};

// oneDNN's product of one shape. It runs on the calling thread, in scratch that it is given.
class Product {
 public:
  // False if oneDNN cannot, or needs more scratch.
  bool make(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, int64_t ldc, size_t scratch) {
    auto describe = [](dnnl_memory_desc_t& to, int64_t rows, int64_t columns, Matrix matrix) {
      const dnnl_dims_t sizes = {rows, columns};
      const dnnl_dims_t strides = {matrix.at(1, 0), matrix.at(0, 1)};
      return dnnl_memory_desc_init_by_strides(&to, 2, sizes, dnnl_bf16, strides) == dnnl_success;
    };
    dnnl_memory_desc_t left, right, result;
    dnnl_matmul_desc_t operation;
    const CallersScratch attributes;
    if (!oneDnnEngine() || !attributes.get() || !describe(left, m, k, a) || !describe(right, k, n, b) ||
        !describe(result, m, n, {false, ldc}) ||
        dnnl_matmul_desc_init(&operation, &left, &right, nullptr, &result) != dnnl_success)
      return false;
    // oneDNN's implementation by its gemm. By default it takes another one (brgemm) where all matrices are dense, that
    // is for some tiles and not for others, and that one sums in another order: the bits of a row would depend on how
    // many there are.
    return chooseImplementation(
        &operation, attributes.get(), nullptr, [&](const_dnnl_primitive_desc_t chosen, std::string_view name) {
          if (!name.starts_with("gemm")) return false;
          const dnnl_memory_desc_t* needed = dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
          return dnnl_memory_desc_get_size(needed) <= scratch &&
                 primitive_.make(chosen, {{DNNL_ARG_SRC, left},
                                          {DNNL_ARG_WEIGHTS, right},
                                          {DNNL_ARG_DST, result},
                                          {DNNL_ARG_SCRATCHPAD, *needed}}) == dnnl_success;
        });
  }

  dnnl_status_t run(const uint16_t* a, const uint16_t* b, uint16_t* c, std::byte* scratch) const {
    return primitive_.run({a, b, c, scratch});
  }

 private:
  Primitive primitive_;
};

class HalfGemm : public LibraryFunction {
 public:
  HalfGemm(const plan::GemmCall& call, const CallSite& site)
      : m_(call.m),
        n_(call.n),
        k_(call.k),
        batch_(call.batch),
        a_{call.transposeA, call.lda},
        b_{call.transposeB, call.ldb},
        ldc_(call.ldc),
        strideA_(call.strideA),
        strideB_(call.strideB),
        strideC_(call.strideC),
        scratchBytes_(site.scratchPerThread()),
        tile_(plan::gemmTile(m_, n_, k_, batch_, a_.transposed, b_.transposed, true)),
        epilogue_(call),
        loops_(halves(call.type)) {
    if (call.type != plan::BF16) return;
    // oneDNN fixes the number of threads of a product when it is made.
    useOneLibraryThread();
    const int64_t rows[] = {std::min(tile_.rows, m_), m_ % tile_.rows};
    const int64_t columns[] = {std::min(tile_.columns, n_), n_ % tile_.columns};
    hasProducts_ = true;
    for (int last = 0; last < 4 && hasProducts_; ++last)
      if (rows[last / 2] > 0 && columns[last % 2] > 0)
        hasProducts_ = products_[last].make(rows[last / 2], columns[last % 2], k_, a_, b_, ldc_, scratchBytes_);
  }

  Status run(const Invocation& invocation) const override {
    const int64_t tileRows = (m_ + tile_.rows - 1) / tile_.rows, tileColumns = (n_ + tile_.columns - 1) / tile_.columns;
    SgemmFailure failure;
    invocation.pool.run(batch_ * tileColumns * tileRows, [&](int64_t item, int thread) {
      const int64_t row = item % tileRows * tile_.rows, rest = item / tileRows;
      const int64_t column = rest % tileColumns * tile_.columns, entry = rest / tileColumns;
      const int64_t rows = std::min(tile_.rows, m_ - row), columns = std::min(tile_.columns, n_ - column);
      const uint16_t* a = invocation.operand<uint16_t>(epilogue_.a()) + entry * strideA_ + a_.at(row, 0);
      const uint16_t* b = invocation.operand<uint16_t>(epilogue_.b()) + entry * strideB_ + b_.at(0, column);
      uint16_t* c = invocation.operand<uint16_t>(epilogue_.c()) + entry * strideC_ + row * ldc_ + column;
      std::byte* scratch = invocation.scratch + thread * scratchBytes_;
      if (hasProducts_) {
        const int last = (rows < tile_.rows ? 2 : 0) + (columns < tile_.columns ? 1 : 0);
        failure.note(products_[last].run(a, b, c, scratch));
      } else {
        emulate(rows, columns, a, b, c, reinterpret_cast<float*>(scratch), failure);
      }
      epilogue_.finish(invocation, row, column, rows, columns);
    });
    epilogue_.sum(invocation);
    return failure.status();
  }

 private:
  // [rows, columns] of a matrix in f32, as it is stored.
  void convert(const uint16_t* from, Matrix matrix, int64_t rows, int64_t columns, float* to) const {
    const int64_t lines = matrix.transposed ? columns : rows, length = matrix.transposed ? rows : columns;
    for (int64_t line = 0; line < lines; ++line) loops_.widen(from + line * matrix.leading, to + line * length, length);
  }

  void emulate(int64_t rows, int64_t columns, const uint16_t* a, const uint16_t* b, uint16_t* c, float* scratch,
               SgemmFailure& failure) const {
    using plan::kHalfGemmColumns, plan::kHalfGemmDepth, plan::kHalfGemmRows;
    float *blockA = scratch, *blockB = blockA + kHalfGemmRows * kHalfGemmDepth,
          *sums = blockB + kHalfGemmColumns * kHalfGemmDepth;
    for (int64_t column = 0; column < columns; column += kHalfGemmColumns) {
      const int64_t width = std::min(kHalfGemmColumns, columns - column);
      for (int64_t row = 0; row < rows; row += kHalfGemmRows) {
        const int64_t height = std::min(kHalfGemmRows, rows - row);
        for (int64_t begin = 0; begin < k_; begin += kHalfGemmDepth) {
          const int64_t depth = std::min(kHalfGemmDepth, k_ - begin);
          convert(a + a_.at(row, begin), a_, height, depth, blockA);
          convert(b + b_.at(begin, column), b_, depth, width, blockB);
          failure.note(sgemm(a_.transposed, b_.transposed, height, width, depth, 1, blockA,
                             a_.transposed ? height : depth, blockB, b_.transposed ? depth : width, begin > 0, sums,
                             width));
        }
        for (int64_t i = 0; i < height; ++i) loops_.narrow(sums + i * width, c + (row + i) * ldc_ + column, width);
      }
    }
  }

  const int64_t m_, n_, k_, batch_;
  const Matrix a_, b_;
  const int64_t ldc_, strideA_, strideB_, strideC_, scratchBytes_;
  const plan::GemmTile tile_;
  const GemmEpilogue epilogue_;
  const simd::Halves& loops_;
  // By whether a tile is one of the last rows (2), and of the last columns (1).
  Product products_[4];
  bool hasProducts_ = false;
};

}  // namespace

Function makeHalfGemm(const plan::GemmCall& call, const CallSite& site) {
  return std::make_unique<HalfGemm>(call, site);
}

}  // namespace sheaf::cpu
