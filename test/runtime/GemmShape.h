// A matrix product of the tests, whatever its type: its shape, and where its elements lie.
#pragma once

#include <cstdint>
#include <ostream>

#include "test/runtime/LibraryCalls.h"

namespace sheaf::testing {

struct GemmShape {
  int64_t m, n, k, batch = 1;
  bool transposeA = false, transposeB = false;
  int64_t padA = 0, padB = 0, padC = 0;  // elements between rows

  int64_t lda() const { return (transposeA ? m : k) + padA; }
  int64_t ldb() const { return (transposeB ? k : n) + padB; }
  int64_t ldc() const { return n + padC; }
  // Elements of one of the batch's matrices.
  int64_t strideA() const { return (transposeA ? k : m) * lda(); }
  int64_t strideB() const { return (transposeB ? n : k) * ldb(); }
  int64_t strideC() const { return m * ldc(); }
  // The element (i, l) of op(a), (l, j) of op(b), (i, j) of c, of the batch's `entry`.
  int64_t atA(int64_t entry, int64_t i, int64_t l) const {
    return entry * strideA() + (transposeA ? l * lda() + i : i * lda() + l);
  }
  int64_t atB(int64_t entry, int64_t l, int64_t j) const {
    return entry * strideB() + (transposeB ? j * ldb() + l : l * ldb() + j);
  }
  int64_t atC(int64_t entry, int64_t i, int64_t j) const { return entry * strideC() + i * ldc() + j; }

  // Of the library call.
  Integers attributes() const {
    return {{"m", m},
            {"n", n},
            {"k", k},
            {"batch", batch},
            {"transpose_a", transposeA},
            {"transpose_b", transposeB},
            {"lda", lda()},
            {"ldb", ldb()},
            {"ldc", ldc()},
            {"stride_a", strideA()},
            {"stride_b", strideB()},
            {"stride_c", strideC()}};
  }
};

inline void PrintTo(const GemmShape& c, std::ostream* out) {
  *out << c.m << "x" << c.n << "x" << c.k << " batch " << c.batch << (c.transposeA ? " T" : " N")
       << (c.transposeB ? "T" : "N");
}

}  // namespace sheaf::testing
