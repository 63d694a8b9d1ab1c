// Sheaf's own f32 products: every bit by a scalar reference in the stated order (docs/zero.md), and the memory that
// they need. SHEAF_SGEMM_CASES=10000 tries as many products, SHEAF_SGEMM_SEED others.
#include "runtime/device/cpu/simd/Sgemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <thread>
#include <vector>

#include "runtime/device/cpu/Features.h"
#include "runtime/plan/Tiles.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {
namespace {

using cpu::simd::Sgemm;

// The stated order: a block of 256 along k is one chain of fused multiply-adds from zero.
constexpr int64_t kBlock = 256;

float element(const Sgemm& p, int64_t row, int64_t column, float before) {
  float result = p.accumulate ? before : 0;
  for (int64_t begin = 0; begin < p.k; begin += kBlock) {
    float sum = 0;
    for (int64_t k = begin; k < std::min(begin + kBlock, p.k); ++k)
      sum = std::fma(p.a[p.transposeA ? k * p.lda + row : row * p.lda + k],
                     p.b[p.transposeB ? column * p.ldb + k : k * p.ldb + column], sum);
    volatile const float scaled = sum * p.alpha;  // rounded before it is added
    result = begin == 0 && !p.accumulate ? scaled : result + scaled;
  }
  return result;
}

struct Case {
  Sgemm product;
  std::vector<float> a, b, c;  // c has what is there before
  plan::GemmTile tile;
  int threads;
};

void PrintTo(const Case& t, std::ostream* out) {
  const Sgemm& p = t.product;
  *out << (p.transposeA ? "T" : "N") << (p.transposeB ? "T " : "N ") << p.m << " x " << p.n << " x " << p.k << ", lda "
       << p.lda << ", ldb " << p.ldb << ", ldc " << p.ldc << ", alpha " << p.alpha
       << (p.accumulate ? ", accumulating" : "") << ", tiles of " << t.tile.rows << " x " << t.tile.columns << ", "
       << t.threads << " threads";
}

// Sizes around those of tiles, panels and blocks are as likely as all others together.
int64_t size(Numbers& numbers, int64_t limit) {
  constexpr int64_t kUnits[] = {1, 6, 8, 16, plan::kSgemmRows, kBlock, plan::kSgemmColumns};
  if (numbers.below(2) == 0) return 1 + numbers.below(limit);
  const int64_t unit = kUnits[numbers.below(std::size(kUnits))];
  const int64_t near = unit * (1 + numbers.below(3)) + numbers.below(5) - 2;
  return std::clamp<int64_t>(near, 1, limit);
}

Case random(Numbers& numbers, int64_t multiplications) {
  Case t;
  Sgemm& p = t.product;
  p.transposeA = numbers.below(2) == 1, p.transposeB = numbers.below(2) == 1, p.accumulate = numbers.below(2) == 1;
  do {
    p.m = size(numbers, 400), p.n = size(numbers, 1300), p.k = numbers.below(20) == 0 ? 0 : size(numbers, 1200);
  } while (p.m * p.n * p.k > multiplications || p.m * p.n > multiplications / 8);
  constexpr float kAlphas[] = {1, 1, 0.125F, -0.7F};
  p.alpha = kAlphas[numbers.below(4)];
  p.lda = std::max<int64_t>(p.transposeA ? p.m : p.k, 1) + numbers.below(20);
  p.ldb = std::max<int64_t>(p.transposeB ? p.k : p.n, 1) + numbers.below(20);
  p.ldc = p.n + numbers.below(20);
  t.a = numbers.reals((p.transposeA ? p.k : p.m) * p.lda);
  t.b = numbers.reals((p.transposeB ? p.n : p.k) * p.ldb);
  t.c = numbers.reals(p.m * p.ldc);
  p.a = t.a.data(), p.b = t.b.data();
  t.threads = 1 + static_cast<int>(numbers.below(3));
  t.tile = {1 + numbers.below(p.m), 1 + numbers.below(p.n)};
  if (numbers.below(2) == 0) t.tile = {p.m, p.n};
  return t;
}

// Computes one tile in exactly the room that it is said to need. Returns false if it wrote beyond.
bool computeTile(const Case& t, int64_t row, int64_t column, float* c) {
  Sgemm p = t.product;
  p.m = std::min(t.tile.rows, p.m - row), p.n = std::min(t.tile.columns, p.n - column);
  p.a += p.transposeA ? row : row * p.lda;
  p.b += p.transposeB ? column * p.ldb : column;
  p.c = c + row * p.ldc + column;
  constexpr float kMark = 12345;
  constexpr size_t kMarks = 64;
  const size_t floats = plan::sgemmRoom(p.m, p.n, p.k) / sizeof(float);
  std::vector<float> room(floats + kMarks, NAN);
  std::fill(room.begin() + static_cast<std::ptrdiff_t>(floats), room.end(), kMark);
  cpu::simd::sgemmV3(p, room.data());
  return std::count(room.begin() + static_cast<std::ptrdiff_t>(floats), room.end(), kMark) == kMarks;
}

// Computes the product by its tiles, which are dealt to threads.
std::vector<float> compute(const Case& t) {
  std::vector<float> c = t.c;
  std::vector<char> kept(t.threads, true);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < t.threads; ++thread)
    threads.emplace_back([&, thread] {
      int64_t number = 0;
      for (int64_t row = 0; row < t.product.m; row += t.tile.rows)
        for (int64_t column = 0; column < t.product.n; column += t.tile.columns)
          if (number++ % t.threads == thread) kept[thread] &= computeTile(t, row, column, c.data());
    });
  for (std::thread& thread : threads) thread.join();
  for (char one : kept) EXPECT_TRUE(one) << "more memory than sgemmRoom()";
  return c;
}

int number(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value ? std::atoi(value) : otherwise;
}

class SgemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cpu::abiLevel() < 3) GTEST_SKIP() << "this processor has no AVX2";
  }
};

TEST_F(SgemmTest, BitsAreThoseOfTheStatedOrder) {
  Numbers numbers(number("SHEAF_SGEMM_SEED", 1));
  int64_t blocks = 0;
  const int cases = number("SHEAF_SGEMM_CASES", 500);
  for (int i = 0; i < cases; ++i) {
    const Case t = random(numbers, 1 << 20);
    const Sgemm& p = t.product;
    std::vector<float> expected = t.c;
    for (int64_t row = 0; row < p.m; ++row)
      for (int64_t column = 0; column < p.n; ++column)
        expected[row * p.ldc + column] = element(p, row, column, t.c[row * p.ldc + column]);
    const std::vector<float> result = compute(t);
    ASSERT_EQ(std::memcmp(result.data(), expected.data(), result.size() * sizeof(float)), 0)
        << "case " << i << ": " << ::testing::PrintToString(t);
    blocks += p.k > kBlock;
  }
  EXPECT_GT(blocks, cases / 10);
}

// NaN between the rows of operands reaches no result, and nothing is written between the rows of c.
TEST_F(SgemmTest, ReadsNothingBeyondTheOperands) {
  Numbers numbers(2);
  for (int i = 0; i < 200; ++i) {
    Case t = random(numbers, 1 << 16);
    const Sgemm& p = t.product;
    auto fence = [](std::vector<float>& values, int64_t used, int64_t leading) {
      for (size_t at = 0; at < values.size(); ++at)
        if (static_cast<int64_t>(at) % leading >= used) values[at] = NAN;
    };
    fence(t.a, p.transposeA ? p.m : p.k, p.lda), fence(t.b, p.transposeB ? p.k : p.n, p.ldb);
    const std::vector<float> result = compute(t);
    for (int64_t row = 0; row < p.m; ++row)
      for (int64_t column = 0; column < p.ldc; ++column) {
        const float value = result[row * p.ldc + column];
        if (column < p.n)
          ASSERT_FALSE(std::isnan(value)) << ::testing::PrintToString(t);
        else
          ASSERT_EQ(value, t.c[row * p.ldc + column]) << ::testing::PrintToString(t);
      }
  }
}

}  // namespace
}  // namespace sheaf::testing
