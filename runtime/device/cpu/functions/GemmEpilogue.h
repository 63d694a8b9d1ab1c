// What a gemm does besides its product: see Epilogue in runtime/plan/Library.h.
#pragma once

#include <cstdint>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/plan/Library.h"

namespace sheaf::cpu {

class GemmEpilogue {
 public:
  explicit GemmEpilogue(const plan::LibraryCall& call);

  // The operand that is c.
  int result() const { return result_; }
  // Finishes the tile of c at (row, column), which holds op(a) op(b) as it is stored.
  void finish(const Invocation& invocation, int64_t row, int64_t column, int64_t rows, int64_t columns) const;
  // Sums an operand, if that is the epilogue: the same blocks of rows whatever the number of threads.
  void sum(const Invocation& invocation) const;

 private:
  template <typename T>
  void finishRow(const Invocation& invocation, int64_t row, int64_t column, int64_t columns) const;
  template <typename T>
  void sumColumns(const Invocation& invocation) const;

  const plan::Epilogue kind_;
  const bool half_;
  const int result_;
  const int64_t n_, k_, ldc_;
  const int64_t summed_, summedRow_;  // columns of the operand that is summed, and elements from one row to the next
};

}  // namespace sheaf::cpu
