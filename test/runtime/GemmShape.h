// A matrix product of the tests, whatever its type: its shape, and where its elements lie.
#pragma once

#include <cstdint>
#include <ostream>
#include <utility>
#include <vector>

#include "runtime/plan/Library.h"

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

  // Elements of op(a) [batch, m, k] and op(b) [batch, k, n] as they lie in memory, with `between` between rows; those
  // of c [batch, m, n] taken from there.
  template <typename T>
  std::vector<T> laidOutA(const std::vector<T>& elements, T between) const {
    std::vector<T> memory(batch * strideA(), between);
    for (int64_t at = 0; at < batch * m * k; ++at) memory[atA(at / (m * k), at / k % m, at % k)] = elements[at];
    return memory;
  }
  template <typename T>
  std::vector<T> laidOutB(const std::vector<T>& elements, T between) const {
    std::vector<T> memory(batch * strideB(), between);
    for (int64_t at = 0; at < batch * k * n; ++at) memory[atB(at / (k * n), at / n % k, at % n)] = elements[at];
    return memory;
  }
  template <typename T>
  std::vector<T> elementsOfC(const std::vector<T>& memory) const {
    std::vector<T> elements;
    for (int64_t at = 0; at < batch * m * n; ++at) elements.push_back(memory[atC(at / (m * n), at / n % m, at % n)]);
    return elements;
  }

  plan::GemmCall call(plan::ElementType type = plan::F32) const {
    return {.m = m,
            .n = n,
            .k = k,
            .batch = batch,
            .transposeA = transposeA,
            .transposeB = transposeB,
            .lda = lda(),
            .ldb = ldb(),
            .ldc = ldc(),
            .strideA = strideA(),
            .strideB = strideB(),
            .strideC = strideC(),
            .type = type};
  }
};

// Products whose rows are not a whole number of vectors, dense and padded; every operand is one of those.
inline std::vector<std::pair<GemmShape, GemmShape>> oddShapes() {
  std::vector<std::pair<GemmShape, GemmShape>> shapes;
  for (GemmShape dense : {GemmShape{96, 263, 129, 2}, GemmShape{64, 1021, 48, 1, false, true}, GemmShape{80, 49, 1021},
                          GemmShape{1021, 97, 64, 1, true}}) {
    GemmShape apart = dense;
    apart.padA = (apart.lda() + 63) / 64 * 64 - apart.lda();
    apart.padB = (apart.ldb() + 63) / 64 * 64 - apart.ldb();
    apart.padC = (apart.ldc() + 63) / 64 * 64 - apart.ldc();
    shapes.push_back({dense, apart});
  }
  return shapes;
}

inline void PrintTo(const GemmShape& c, std::ostream* out) {
  *out << c.m << "x" << c.n << "x" << c.k << " batch " << c.batch << (c.transposeA ? " T" : " N")
       << (c.transposeB ? "T" : "N");
}

}  // namespace sheaf::testing
