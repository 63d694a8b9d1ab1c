// The operands of a gemm, and what it does besides its product: see plan::GemmEpilogue.
#pragma once

#include <cstdint>

#include "runtime/device/cpu/LibraryFunction.h"

namespace sheaf::cpu {

class GemmEpilogue {
 public:
  explicit GemmEpilogue(const plan::GemmCall& call);

  // Indices of operands.
  int a() const { return a_; }
  int b() const { return b_; }
  int c() const { return c_; }
  // Finishes the tile of c at (row, column), which holds op(a) op(b) as it is stored.
  void finish(const Invocation& invocation, int64_t row, int64_t column, int64_t rows, int64_t columns) const;
  // Sums an operand, if that is the epilogue: the same blocks of rows whatever the number of threads.
  void sum(const Invocation& invocation) const;

 private:
  template <typename T>
  void finishRow(const Invocation& invocation, int64_t row, int64_t column, int64_t columns) const;
  template <typename T>
  void sumColumns(const Invocation& invocation) const;

  const plan::GemmCall call_;
  const int a_, b_, c_, bias_, geluInput_, savedGeluInput_, sum_;
};

}  // namespace sheaf::cpu
