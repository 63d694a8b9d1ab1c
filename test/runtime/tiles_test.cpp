// The tiles of matrix products: oneDNN's, on which bits depend, and those of Sheaf's own products.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "runtime/plan/Tiles.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {
namespace {

struct Product {
  int64_t m, n, k;
  bool transposeA, transposeB;
  plan::GemmTile tile;
};

void PrintTo(const Product& p, std::ostream* out) {
  *out << p.m << " x " << p.n << " x " << p.k << " " << (p.transposeA ? "T" : "N") << (p.transposeB ? "T" : "N");
}

plan::GemmTile tileOf(const Product& p) {
  return plan::gemmTile(p.m, p.n, p.k, 1, p.transposeA, p.transposeB, false);
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

// Bits on AVX-512 depend on tiles.
TEST_P(Tiles, AreWhatTheyWere) {
  const plan::GemmTile tile = tileOf(GetParam());
  EXPECT_EQ(tile.rows, GetParam().tile.rows);
  EXPECT_EQ(tile.columns, GetParam().tile.columns);
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

// Plans state bounds by oneDNN's tiles.
TEST(OwnTiles, NeedNoMoreMemoryThanOneDnns) {
  Numbers numbers(1);
  for (int i = 0; i < 5000; ++i) {
    const Product p = random(numbers);
    const int threads = 1 + static_cast<int>(numbers.below(64));
    const int64_t batch = numbers.below(4) == 0 ? 1 + numbers.below(64) : 1;
    const plan::GemmTile declared = plan::gemmTile(p.m, p.n, p.k, batch, p.transposeA, p.transposeB, false),
                         own = plan::threadTile(p.m, p.n, p.k, batch, p.transposeA, p.transposeB, threads);
    ASSERT_TRUE(own.rows >= 1 && own.rows <= p.m && own.columns >= 1 && own.columns <= p.n)
        << ::testing::PrintToString(p);
    ASSERT_LE(plan::sgemmRoom(own.rows, own.columns, p.k),
              plan::sgemmPackingBytes(declared.rows, declared.columns, p.k))
        << ::testing::PrintToString(p);
  }
}

// Calls that cut a product themselves state the bound of the pieces.
TEST(OwnTiles, APieceNeedsNoMoreMemoryThanOneDnns) {
  Numbers numbers(2);
  for (int i = 0; i < 5000; ++i) {
    const int64_t m = 1 + numbers.below(3000), n = 1 + numbers.below(3000), k = 1 + numbers.below(3000);
    ASSERT_LE(plan::sgemmRoom(m, n, k), plan::sgemmPackingBytes(m, n, k)) << m << " x " << n << " x " << k;
  }
}

TEST(OwnTiles, GiveEachThreadWork) {
  for (const Product& p : {Product{768, 3072, 1024, true, false, {}}, Product{384, 1536, 2048, true, false, {}},
                           Product{2048, 384, 1536, false, true, {}}, Product{1024, 768, 3072, false, false, {}}})
    for (int threads : {2, 3, 4, 8, 16, 32}) {
      const plan::GemmTile tile = plan::threadTile(p.m, p.n, p.k, 1, p.transposeA, p.transposeB, threads);
      const double tiles = std::ceil(static_cast<double>(p.m) / static_cast<double>(tile.rows)) *
                           std::ceil(static_cast<double>(p.n) / static_cast<double>(tile.columns));
      // The time of the last round of tiles over that of an even division.
      const double elements = static_cast<double>(tile.rows * tile.columns) / static_cast<double>(p.m * p.n);
      EXPECT_LE(std::ceil(tiles / threads) * threads * elements, 1.1)
          << ::testing::PrintToString(p) << ", " << threads << " threads";
    }
}

TEST(OwnTiles, OfSmallProductsAreWhole) {
  const plan::GemmTile small = plan::threadTile(120, 130, 150, 1, true, false, 4);
  EXPECT_TRUE(small.rows == 120 && small.columns == 130);
}

}  // namespace
}  // namespace sheaf::testing
