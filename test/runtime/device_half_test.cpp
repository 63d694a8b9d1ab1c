// Library calls in bf16 against plain loops in double over the same bf16 numbers: f32 sums, then one rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "runtime/plan/Tiles.h"
#include "test/runtime/DeviceTesting.h"
#include "test/runtime/GemmShape.h"

namespace sheaf::testing {
namespace {

// Half the distance of two neighbouring bf16 numbers, relative to them: what one rounding may cost.
constexpr double kRounding = 1.0 / 256;

double real(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}
uint16_t half(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
std::vector<uint16_t> halves(Numbers& numbers, size_t count) {
  std::vector<uint16_t> result;
  for (float value : numbers.reals(count)) result.push_back(half(value));
  return result;
}
// One rounding of the result, and f32 sums of terms that are `size` together; of those, `roundedSize` were rounded.
void expectRounded(double value, double expected, double size, const std::string& where, double roundedSize = 0) {
  ASSERT_NEAR(value, expected, kRounding * std::abs(expected) + 2e-6 * size + kRounding * roundedSize + 1e-6) << where;
}

TEST(HalfGemm, ARowDoesNotDependOnHowManyThereAre) {
  if (kOnGpu) GTEST_SKIP() << "cuBLASLt chooses an algorithm by the whole shape";
  // More rows are cut into tiles with all columns, fewer into others; a long sum shows any other order.
  Numbers numbers(7);
  constexpr int64_t kColumns = 384, kDepth = 3072, kFew = 512, kMany = 2048;
  const auto a = halves(numbers, kMany * kDepth), b = halves(numbers, kColumns * kDepth);
  auto rows = [&](int64_t m) {
    std::vector<Argument> arguments{Argument::input(std::vector<uint16_t>(a.begin(), a.begin() + m * kDepth)),
                                    Argument::input(b), Argument::output<uint16_t>(m * kColumns, 0x7fc0)};
    GemmShape shape{.m = m, .n = kColumns, .k = kDepth};
    Status status = runCall(shape.call(plan::BF16), arguments, {});
    EXPECT_TRUE(status.ok()) << status.message();
    auto values = arguments[2].values<uint16_t>();
    values.resize(kFew * kColumns);
    return values;
  };
  EXPECT_TRUE(rows(kFew) == rows(kMany));
}

TEST(HalfGemm, TilesFitTheirScratch) {
  for (int64_t m : {1, 8, 100, 512, 769, 2048, 50257})
    for (int64_t n : {1, 48, 384, 768, 3072, 50257})
      for (int64_t k : {1, 64, 768, 50257})
        for (bool transposeA : {false, true}) {
          const plan::GemmTile tile = plan::gemmTile(m, n, k, 1, transposeA, !transposeA, true);
          EXPECT_LE(tile.rows * tile.columns, plan::kHalfGemmScratch) << m << " x " << n << " x " << k;
          EXPECT_TRUE(tile.rows >= 1 && tile.rows <= m && tile.columns >= 1 && tile.columns <= n);
        }
}

class HalfGemmShapes : public ::testing::TestWithParam<GemmShape> {};

TEST_P(HalfGemmShapes, MatchesLoopsAndDoesNotDependOnThreads) {
  const GemmShape c = GetParam();
  Numbers numbers(1);
  const auto a = halves(numbers, c.batch * c.strideA()), b = halves(numbers, c.batch * c.strideB());
  const plan::GemmCall call = c.call(plan::BF16);
  std::vector<Argument> arguments{Argument::input(a), Argument::input(b),
                                  Argument::output<uint16_t>(c.batch * c.strideC(), 0x7fc0)};
  ASSERT_EQ(runOnThreads(call, arguments).message(), "");
  const auto first = arguments[2].values<uint16_t>();
  for (int64_t entry = 0; entry < c.batch; ++entry)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < c.k; ++l) {
          double x = real(a[c.atA(entry, i, l)]);
          double y = real(b[c.atB(entry, l, j)]);
          sum += x * y;
          size += std::abs(x * y);
        }
        expectRounded(real(first[c.atC(entry, i, j)]), sum, size,
                      "row " + std::to_string(i) + ", column " + std::to_string(j));
      }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HalfGemmShapes,
    ::testing::Values(GemmShape{1, 1, 1}, GemmShape{3, 5, 7}, GemmShape{64, 64, 64, 3}, GemmShape{1, 384, 129},
                      GemmShape{512, 384, 100}, GemmShape{200, 1152, 96, 1, false, true},
                      GemmShape{384, 384, 300, 1, true, false}, GemmShape{65, 63, 31, 2, true, true},
                      GemmShape{129, 300, 257, 1, false, true, 3, 5, 7}, GemmShape{17, 3000, 64, 1, true},
                      GemmShape{64, 16, 1300, 12, true, false, 1, 2, 3}));

TEST(HalfGemmRows, PaddingIsNotReadAndChangesNoBit) {
  constexpr uint16_t kNan = 0x7fc0;
  for (const auto& [dense, apart] : oddShapes()) {
    Numbers numbers(3);
    const auto a = halves(numbers, dense.batch * dense.m * dense.k),
               b = halves(numbers, dense.batch * dense.k * dense.n);
    std::vector<uint16_t> results[2];
    for (int i : {0, 1}) {
      const GemmShape& c = i == 0 ? dense : apart;
      std::vector<Argument> arguments{Argument::input(c.laidOutA(a, kNan)), Argument::input(c.laidOutB(b, kNan)),
                                      Argument::output<uint16_t>(c.batch * c.strideC(), kNan)};
      Status status = runCall(c.call(plan::BF16), arguments);
      ASSERT_TRUE(status.ok()) << status.message();
      results[i] = c.elementsOfC(arguments[2].values<uint16_t>());
    }
    EXPECT_EQ(results[0], results[1]) << ::testing::PrintToString(dense);
  }
}

// query [b, s, h, d], key and value [b, t, g, d]: everything contiguous, causal.
struct Heads {
  int64_t b, s, t, h, g, d;
  bool mask = false;
};

TEST(HalfAttention, ForwardAndBackwardMatchLoops) {
  for (const Heads& c : {Heads{2, 5, 5, 2, 1, 8}, Heads{1, 130, 300, 4, 2, 16}, Heads{1, 70, 70, 2, 2, 64, true},
                         Heads{1, 70, 100, 2, 1, 128}, Heads{1, 40, 70, 1, 1, 256, true}, Heads{2, 33, 33, 3, 3, 20}}) {
    Numbers numbers(3);
    const auto q = halves(numbers, c.b * c.s * c.h * c.d), k = halves(numbers, c.b * c.t * c.g * c.d),
               v = halves(numbers, c.b * c.t * c.g * c.d), gradient = halves(numbers, c.b * c.s * c.h * c.d);
    const std::vector<float> mask = numbers.reals(c.s * c.t);
    const double scale = 1 / std::sqrt(double(c.d));
    plan::AttentionGradCall grad;
    grad.b = c.b, grad.s = c.s, grad.t = c.t, grad.h = c.h, grad.g = c.g, grad.d = grad.e = c.d;
    grad.causal = true, grad.mask = c.mask, grad.scale = scale, grad.type = plan::BF16;
    grad.queryRow = grad.resultRow = grad.gradientRow = grad.queryGradientRow = c.h * c.d;
    grad.keyRow = grad.valueRow = grad.keyGradientRow = grad.valueGradientRow = c.g * c.d;
    std::vector<Argument> forward{Argument::input(q), Argument::input(k), Argument::input(v)};
    if (c.mask) forward.push_back(Argument::input(mask));
    forward.push_back(Argument::output<uint16_t>(q.size(), 0x7fc0));
    forward.push_back(Argument::output<float>(c.b * c.h * c.s, NAN));
    Status status = runCall(plan::AttentionCall{grad}, forward, {.threads = 2});
    ASSERT_TRUE(status.ok()) << status.message();
    const Argument &resultArgument = forward[forward.size() - 2], &sumArgument = forward.back();
    const auto result = resultArgument.values<uint16_t>();
    std::vector<Argument> backward{Argument::input(q),
                                   Argument::input(k),
                                   Argument::input(v),
                                   Argument::input(result),
                                   Argument::input(sumArgument.values<float>()),
                                   Argument::input(gradient)};
    if (c.mask) backward.push_back(Argument::input(mask));
    for (size_t size : {q.size(), k.size(), v.size()}) backward.push_back(Argument::output<uint16_t>(size, 0x7fc0));
    status = runCall(grad, backward, {.threads = 2});
    ASSERT_TRUE(status.ok()) << status.message();

    // A GPU's matrix instructions take rounded weights, and rounded gradients of the scores: sums of the terms' sizes.
    struct Sums {
      explicit Sums(size_t size) : values(size), sizes(size) {}
      void add(int64_t at, double term) { values[at] += term, sizes[at] += std::abs(term); }
      std::vector<double> values, sizes;
    };
    Sums expected(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
    for (int64_t b = 0; b < c.b; ++b)
      for (int64_t h = 0; h < c.h; ++h)
        for (int64_t i = 0; i < c.s; ++i) {
          const int64_t g = h / (c.h / c.g), seen = std::min(c.t, i + c.t - c.s + 1);
          const int64_t query = ((b * c.s + i) * c.h + h) * c.d;
          auto key = [&](int64_t j) { return ((b * c.t + j) * c.g + g) * c.d; };
          std::vector<double> weights(seen), slopes(seen);
          double sum = 0, delta = 0;
          for (int64_t j = 0; j < seen; ++j) {
            double score = c.mask ? double(mask[i * c.t + j]) : 0;
            for (int64_t x = 0; x < c.d; ++x) score += scale * real(q[query + x]) * real(k[key(j) + x]);
            sum += weights[j] = std::exp(score);
          }
          for (int64_t j = 0; j < seen; ++j) {
            weights[j] /= sum;
            for (int64_t x = 0; x < c.d; ++x) {
              expected.add(query + x, weights[j] * real(v[key(j) + x]));
              slopes[j] += real(gradient[query + x]) * real(v[key(j) + x]);
              dv.add(key(j) + x, weights[j] * real(gradient[query + x]));
            }
          }
          // Both sides take the result as it is stored: rounded.
          for (int64_t x = 0; x < c.d; ++x) delta += real(gradient[query + x]) * real(result[query + x]);
          for (int64_t j = 0; j < seen; ++j)
            for (int64_t x = 0; x < c.d; ++x) {
              dq.add(query + x, weights[j] * (slopes[j] - delta) * scale * real(k[key(j) + x]));
              dk.add(key(j) + x, weights[j] * (slopes[j] - delta) * scale * real(q[query + x]));
            }
        }
    auto compare = [](const Argument& argument, const Sums& sums, const char* what) {
      const auto ours = argument.values<uint16_t>();
      for (size_t i = 0; i < ours.size(); ++i)
        expectRounded(real(ours[i]), sums.values[i], 5, std::string(what) + " " + std::to_string(i),
                      kOnGpu ? sums.sizes[i] : 0);
    };
    compare(resultArgument, expected, "result");
    const size_t first = backward.size() - 3;
    compare(backward[first], dq, "query gradient");
    compare(backward[first + 1], dk, "key gradient");
    compare(backward[first + 2], dv, "value gradient");
  }
}

TEST(HalfFunctions, ScatterAddSumsInF32AndRoundsOnce) {
  // 1 + 256 * 2^-9 is 1.5; summed in bf16 the small terms would be lost one by one.
  constexpr int64_t kRows = 1100, kInner = 3, kCount = 600;
  std::vector<uint16_t> update(kCount * kInner, half(1.0f / 512));
  std::vector<int64_t> indices(kCount, 1099);
  for (int64_t x = 0; x < kInner; ++x) update[x] = half(1);
  for (int64_t i = 257; i < kCount; ++i) indices[i] = i % 2 ? -kRows : 700;  // rows 0 and 700
  std::vector<Argument> arguments{Argument::input(update), Argument::input(indices),
                                  Argument::output<uint16_t>(kRows * kInner, 0x7fc0)};
  Status status = runCall(
      plan::ScatterAddCall{
          .outer = 1, .rows = kRows, .inner = kInner, .count = kCount, .indexBytes = 8, .type = plan::BF16},
      arguments, {.threads = 3});
  ASSERT_TRUE(status.ok()) << status.message();
  auto result = arguments[2].values<uint16_t>();
  for (int64_t row = 0; row < kRows; ++row) {
    double expected = row == 1099 ? 1.5 : row == 0 ? 172.0 / 512 : row == 700 ? 171.0 / 512 : 0;
    for (int64_t x = 0; x < kInner; ++x) ASSERT_EQ(result[row * kInner + x], half(static_cast<float>(expected))) << row;
  }
}

TEST(HalfFunctions, PartialsAreSummedInF32AndRoundedOnce) {
  constexpr int64_t kParts = 257, kColumns = 1500;
  std::vector<float> partials(kParts * kColumns, 1.0f / 512);
  std::fill_n(partials.begin(), kColumns, 1.0f);
  std::vector<Argument> arguments{Argument::input(partials), Argument::output<uint16_t>(kColumns, 0x7fc0)};
  Status status = runCall(plan::SumPartialsCall{kParts, kColumns, plan::BF16}, arguments, {.threads = 2});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(arguments[1].values<uint16_t>(), ::testing::Each(half(1.5f)));
}

TEST(HalfFunctions, SquareSumIsExact) {
  Numbers numbers(4);
  const auto values = halves(numbers, 10000);
  double expected = 0;
  for (uint16_t value : values) expected += real(value) * real(value);
  std::vector<Argument> arguments{Argument::input(values), Argument::output<double>(1, NAN)};
  Status status = runCall(plan::SquareSumCall{10000, plan::BF16}, arguments, {.threads = 2});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NEAR(arguments[1].values<double>()[0], expected, 1e-12 * expected);
}

TEST(HalfFunctions, NanStaysOneAndTiesGoToEven) {
  // 1 + 2^-8 lies between 1 and 1 + 2^-7, 1 + 3 * 2^-8 between that and 1 + 2^-6.
  std::vector<float> partials{NAN, 1 + 1.0f / 256, 1 + 3.0f / 256, std::bit_cast<float>(0x7f800001u), INFINITY, -0.0f};
  std::vector<Argument> arguments{Argument::input(partials), Argument::output<uint16_t>(6, 0)};
  Status status = runCall(plan::SumPartialsCall{1, 6, plan::BF16}, arguments);
  ASSERT_TRUE(status.ok()) << status.message();
  auto result = arguments[1].values<uint16_t>();
  EXPECT_TRUE(std::isnan(real(result[0])));
  EXPECT_EQ(result[1], 0x3f80);
  EXPECT_EQ(result[2], 0x3f82);
  EXPECT_TRUE(std::isnan(real(result[3])));
  EXPECT_EQ(result[4], 0x7f80);
  EXPECT_EQ(result[5], 0x8000);
}

}  // namespace
}  // namespace sheaf::testing
