// The tiles of matrix products: gemmTile() for both instruction sets of a CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "runtime/plan/Tiles.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {
namespace {

using plan::CpuIsa;

struct Product {
  int64_t m, n, k;
  bool transposeA, transposeB;
  plan::GemmTile avx512;
};

void PrintTo(const Product& p, std::ostream* out) {
  *out << p.m << " x " << p.n << " x " << p.k << " " << (p.transposeA ? "T" : "N") << (p.transposeB ? "T" : "N");
}

plan::GemmTile tileOf(CpuIsa isa, const Product& p) {
  return plan::gemmTile(isa, p.m, p.n, p.k, 1, p.transposeA, p.transposeB, false);
}

// The share of the multiplications in tiles of oneDNN's no-copy kernel.
double noCopyShare(CpuIsa isa, const Product& p, plan::GemmTile tile) {
  double sum = 0;
  for (int64_t row = 0; row < p.m; row += tile.rows)
    for (int64_t column = 0; column < p.n; column += tile.columns) {
      const int64_t rows = std::min(tile.rows, p.m - row), columns = std::min(tile.columns, p.n - column);
      if (plan::usesNoCopyKernel(isa, rows, columns)) sum += static_cast<double>(rows * columns);
    }
  return sum / static_cast<double>(p.m * p.n);
}

// A product that is too large to be computed whole.
Product random(Numbers& numbers) {
  auto size = [&](double low, double high) {
    const double share = static_cast<double>(numbers.below(1 << 20)) / (1 << 20);
    return static_cast<int64_t>(low * std::pow(high / low, share));
  };
  for (;;) {
    const Product p{size(1, 60000), size(1, 60000), size(1, 60000), numbers.below(2) == 1, numbers.below(2) == 1, {}};
    if (static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) > 4e6) return p;
  }
}

class Tiles : public ::testing::TestWithParam<Product> {};

// Bits depend on tiles. These are from before AVX2 had tiles of its own.
TEST_P(Tiles, OfAvx512AreWhatTheyWere) {
  const plan::GemmTile tile = tileOf(CpuIsa::kAvx512, GetParam());
  EXPECT_EQ(tile.rows, GetParam().avx512.rows);
  EXPECT_EQ(tile.columns, GetParam().avx512.columns);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Tiles,
    ::testing::Values(
        Product{512, 384, 128, false, false, {128, 192}}, Product{512, 128, 384, false, true, {256, 96}},
        Product{128, 384, 512, true, false, {128, 96}}, Product{128, 128, 512, true, false, {64, 96}},
        Product{2048, 1152, 384, false, false, {512, 576}}, Product{384, 1152, 2048, true, false, {192, 288}},
        Product{2048, 384, 1536, false, true, {256, 384}}, Product{384, 1536, 2048, true, false, {384, 192}},
        Product{768, 2304, 1024, true, false, {384, 576}}, Product{768, 768, 1024, true, false, {384, 192}},
        Product{1024, 768, 3072, false, true, {256, 384}}, Product{768, 3072, 1024, true, false, {768, 384}},
        Product{3072, 768, 1024, true, false, {768, 384}}, Product{1024, 50257, 768, false, true, {1024, 6288}},
        Product{50257, 768, 1024, true, false, {6288, 768}}, Product{64, 256, 64, false, true, {64, 256}}));

// oneDNN's no-copy kernel takes up to twice as long there.
TEST(TilesOfAvx2, DoNotUseTheNoCopyKernelForWeightGradients) {
  for (const Product& p : {Product{768, 3072, 1024, true, false, {}}, Product{3072, 768, 1024, true, false, {}},
                           Product{768, 2304, 1024, true, false, {}}, Product{1600, 6400, 1024, true, false, {}},
                           Product{4096, 4096, 4096, true, false, {}}}) {
    const plan::GemmTile tile = tileOf(CpuIsa::kAvx2, p);
    EXPECT_LT(noCopyShare(CpuIsa::kAvx2, p, tile), 0.1) << ::testing::PrintToString(p);
    // Four threads have work.
    EXPECT_LT(tile.rows * tile.columns, p.m * p.n * 3 / 10) << ::testing::PrintToString(p);
  }
}

// Plans state bounds by the tiles of AVX-512, and run on both.
TEST(TilesOfAvx2, NeedNoMoreMemoryThanThoseOfAvx512) {
  Numbers numbers(1);
  int others = 0;
  for (int i = 0; i < 5000; ++i) {
    const Product p = random(numbers);
    const plan::GemmTile wide = tileOf(CpuIsa::kAvx512, p), narrow = tileOf(CpuIsa::kAvx2, p);
    ASSERT_TRUE(narrow.rows >= 1 && narrow.rows <= p.m && narrow.columns >= 1 && narrow.columns <= p.n)
        << ::testing::PrintToString(p);
    ASSERT_LE(plan::sgemmPackingBytes(narrow.rows, narrow.columns, p.k, CpuIsa::kAvx2),
              plan::sgemmPackingBytes(wide.rows, wide.columns, p.k))
        << ::testing::PrintToString(p);
    others += narrow.rows != wide.rows || narrow.columns != wide.columns;
  }
  EXPECT_GT(others, 50);
}

TEST(TilesOfAvx2, AreThoseOfAvx512ForSmallAndForHalfProducts) {
  const plan::GemmTile small = plan::gemmTile(CpuIsa::kAvx2, 120, 130, 150, 1, true, false, false);
  EXPECT_TRUE(small.rows == 120 && small.columns == 130);
  for (bool transposeA : {false, true}) {
    const plan::GemmTile wide = plan::gemmTile(CpuIsa::kAvx512, 3072, 768, 1024, 1, transposeA, false, true),
                         narrow = plan::gemmTile(CpuIsa::kAvx2, 3072, 768, 1024, 1, transposeA, false, true);
    EXPECT_TRUE(narrow.rows == wide.rows && narrow.columns == wide.columns);
  }
}

}  // namespace
}  // namespace sheaf::testing
