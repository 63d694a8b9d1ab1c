#include "runtime/plan/Tiles.h"

#include <algorithm>

namespace sheaf::plan {
namespace {

int64_t ceilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Products with fewer multiplications than this (some 20 us) are one tile.
constexpr double kSmallProduct = 2e6;

}  // namespace

GemmTile gemmTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB) {
  if (double(m) * n * k < 2 * kSmallProduct) return {m, n};
  // Each tile packs its rows of a and its columns of b anew, which costs about as much as 16 more columns or 24 more
  // rows would; threads idle for half a tile on average at the end.
  constexpr int64_t kRows[] = {64, 128, 192, 256, 384, 512, 768, 1024};
  constexpr int64_t kColumns[] = {128, 192, 256, 384, 512, 768, 1024, 1536, 2304, 3072};
  GemmTile best{m, n};
  double bestCost = 1e30;
  auto consider = [&](int64_t rows, int64_t columns) {
    if (double(rows) * columns * k < kSmallProduct) return;
    double tiles = double(batch) * ceilDiv(m, rows) * ceilDiv(n, columns);
    double cost = 1 + 16.0 / rows + 24.0 / columns + 1.0 / tiles;
    if (cost < bestCost) bestCost = cost, best = {rows, columns};
  };
  for (int64_t rows : kRows) {
    if (rows >= m) break;
    for (int64_t columns : kColumns) {
      if (columns >= n) break;
      consider(rows, columns);
    }
    consider(rows, n);
  }
  for (int64_t columns : kColumns) {
    if (columns >= n) break;
    consider(m, columns);
  }
  consider(m, n);
  return best;
}

uint64_t sgemmPackingBytes(int64_t m, int64_t n, int64_t k) {
  return 8 << 20;
}

int64_t convPixels(int64_t patch, int64_t pixels) {
  // The unrolled columns and the result's tile stay in the second-level cache.
  int64_t fitting = std::max<int64_t>((256 << 10) / (4 * std::max<int64_t>(patch, 1)) / 16 * 16, 16);
  return std::min(pixels, fitting);
}

}  // namespace sheaf::plan
