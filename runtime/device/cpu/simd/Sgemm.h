// f32 matrix products in one order of additions, which depends on k alone (docs/zero.md, "The order of a matrix
// product"). Like the other files of this folder it includes nothing of the standard library that has code in it.
#pragma once

#include <stdint.h>

namespace sheaf::cpu::simd {

// c = alpha * op(a) op(b), or c += alpha * op(a) op(b); row-major, op(a) [m, k], op(b) [k, n].
struct Sgemm {
  bool transposeA, transposeB;
  int64_t m, n, k;
  float alpha;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  bool accumulate;
  float* c;
  int64_t ldc;
};

// Computes the product on the calling thread. `room` holds plan::sgemmRoom(m, n, k) bytes for packed operands.
void sgemmV3(const Sgemm& product, float* room);

}  // namespace sheaf::cpu::simd
