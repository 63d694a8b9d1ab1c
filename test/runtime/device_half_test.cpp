// Library calls in bf16 and f16 against plain loops in double over the same numbers: f32 sums, then one rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <tuple>

#include "runtime/plan/Tiles.h"
#include "test/runtime/DeviceTesting.h"
#include "test/runtime/GemmShape.h"

namespace sheaf::testing {
namespace {

// Numbers of a type of 16 bits, by the compiler's own conversions.
struct Halves {
  plan::ElementType type;

  // Half the distance of two neighbouring numbers, relative to them: what one rounding may cost.
  double rounding() const { return type == plan::F16 ? 1.0 / 2048 : 1.0 / 256; }
  // 1 plus this is 1, rounded.
  float small() const { return type == plan::F16 ? 1.0f / 4096 : 1.0f / 512; }
  double real(uint16_t half) const {
    if (type == plan::F16) return std::bit_cast<_Float16>(half);
    return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
  }
  uint16_t half(float value) const {
    if (type == plan::F16) return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
    uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  std::vector<uint16_t> halves(Numbers& numbers, size_t count) const {
    std::vector<uint16_t> result;
    for (float value : numbers.reals(count)) result.push_back(half(value));
    return result;
  }
  // One rounding of the result, and f32 sums of terms that are `size` together; of those, `roundedSize` were rounded.
  void expectRounded(double value, double expected, double size, const std::string& where,
                     double roundedSize = 0) const {
    ASSERT_NEAR(value, expected, rounding() * std::abs(expected) + 2e-6 * size + rounding() * roundedSize + 1e-6)
        << where;
  }
};

constexpr uint16_t kNan = 0x7fc0;  // of both types

class HalfTypes : public ::testing::TestWithParam<plan::ElementType>, protected Halves {
 protected:
  HalfTypes() : Halves{GetParam()} {}
};
const auto kTypes = ::testing::Values(plan::BF16, plan::F16);
std::string typeName(const ::testing::TestParamInfo<plan::ElementType>& info) {
  return info.param == plan::F16 ? "f16" : "bf16";
}

INSTANTIATE_TEST_SUITE_P(Types, HalfTypes, kTypes, typeName);

TEST(HalfGemm, ARowOfAProductDoesNotDependOnHowManyThereAre) {
  if (kOnGpu) GTEST_SKIP() << "cuBLASLt chooses an algorithm by the whole shape";
  // More rows are cut into tiles with all columns, fewer into others; a long sum shows any other order. In f16 the
  // blocks that are multiplied are ours on every processor. In bf16 they are oneDNN's, which promises nothing of the
  // kind.
  const Halves f16{plan::F16};
  Numbers numbers(7);
  constexpr int64_t kColumns = 384, kDepth = 3072, kFew = 512, kMany = 2048;
  const auto a = f16.halves(numbers, kMany * kDepth), b = f16.halves(numbers, kColumns * kDepth);
  auto rows = [&](int64_t m) {
    std::vector<Argument> arguments{Argument::input(std::vector<uint16_t>(a.begin(), a.begin() + m * kDepth)),
                                    Argument::input(b), Argument::output<uint16_t>(m * kColumns, kNan)};
    GemmShape shape{.m = m, .n = kColumns, .k = kDepth};
    Status status = runCall(shape.call(f16.type), arguments, {});
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

class HalfGemmShapes : public ::testing::TestWithParam<std::tuple<plan::ElementType, GemmShape>>, protected Halves {
 protected:
  HalfGemmShapes() : Halves{std::get<0>(GetParam())} {}
};

TEST_P(HalfGemmShapes, MatchesLoopsAndDoesNotDependOnThreads) {
  const GemmShape c = std::get<1>(GetParam());
  Numbers numbers(1);
  const auto a = halves(numbers, c.batch * c.strideA()), b = halves(numbers, c.batch * c.strideB());
  const plan::GemmCall call = c.call(type);
  std::vector<Argument> arguments{Argument::input(a), Argument::input(b),
                                  Argument::output<uint16_t>(c.batch * c.strideC(), kNan)};
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
    ::testing::Combine(kTypes,
                       ::testing::Values(GemmShape{1, 1, 1}, GemmShape{3, 5, 7}, GemmShape{64, 64, 64, 3},
                                         GemmShape{1, 384, 129}, GemmShape{512, 384, 100},
                                         GemmShape{200, 1152, 96, 1, false, true},
                                         GemmShape{384, 384, 300, 1, true, false}, GemmShape{65, 63, 31, 2, true, true},
                                         GemmShape{129, 300, 257, 1, false, true, 3, 5, 7},
                                         GemmShape{17, 3000, 64, 1, true},
                                         GemmShape{64, 16, 1300, 12, true, false, 1, 2, 3})));

TEST_P(HalfTypes, PaddingOfAProductIsNotReadAndChangesNoBit) {
  for (const auto& [dense, apart] : oddShapes()) {
    Numbers numbers(3);
    const auto a = halves(numbers, dense.batch * dense.m * dense.k),
               b = halves(numbers, dense.batch * dense.k * dense.n);
    std::vector<uint16_t> results[2];
    for (int i : {0, 1}) {
      const GemmShape& c = i == 0 ? dense : apart;
      std::vector<Argument> arguments{Argument::input(c.laidOutA(a, kNan)), Argument::input(c.laidOutB(b, kNan)),
                                      Argument::output<uint16_t>(c.batch * c.strideC(), kNan)};
      Status status = runCall(c.call(type), arguments);
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

TEST_P(HalfTypes, AttentionForwardAndBackwardMatchLoops) {
  for (const Heads& c : {Heads{2, 5, 5, 2, 1, 8}, Heads{1, 130, 300, 4, 2, 16}, Heads{1, 70, 70, 2, 2, 64, true},
                         Heads{1, 70, 100, 2, 1, 128}, Heads{1, 40, 70, 1, 1, 256, true}, Heads{2, 33, 33, 3, 3, 20}}) {
    Numbers numbers(3);
    const auto q = halves(numbers, c.b * c.s * c.h * c.d), k = halves(numbers, c.b * c.t * c.g * c.d),
               v = halves(numbers, c.b * c.t * c.g * c.d), gradient = halves(numbers, c.b * c.s * c.h * c.d);
    const std::vector<float> mask = numbers.reals(c.s * c.t);
    const double scale = 1 / std::sqrt(double(c.d));
    plan::AttentionGradCall grad;
    grad.b = c.b, grad.s = c.s, grad.t = c.t, grad.h = c.h, grad.g = c.g, grad.d = grad.e = c.d;
    grad.causal = true, grad.mask = c.mask, grad.scale = scale, grad.type = type;
    grad.queryRow = grad.resultRow = grad.gradientRow = grad.queryGradientRow = c.h * c.d;
    grad.keyRow = grad.valueRow = grad.keyGradientRow = grad.valueGradientRow = c.g * c.d;
    std::vector<Argument> forward{Argument::input(q), Argument::input(k), Argument::input(v)};
    if (c.mask) forward.push_back(Argument::input(mask));
    forward.push_back(Argument::output<uint16_t>(q.size(), kNan));
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
    for (size_t size : {q.size(), k.size(), v.size()}) backward.push_back(Argument::output<uint16_t>(size, kNan));
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
    auto compare = [&](const Argument& argument, const Sums& sums, const char* what) {
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

TEST_P(HalfTypes, ScatterAddSumsInF32AndRoundsOnce) {
  // Summed in 16 bits the small terms would be lost one by one.
  constexpr int64_t kRows = 1100, kInner = 3, kCount = 600;
  std::vector<uint16_t> update(kCount * kInner, half(small()));
  std::vector<int64_t> indices(kCount, 1099);
  for (int64_t x = 0; x < kInner; ++x) update[x] = half(1);
  for (int64_t i = 257; i < kCount; ++i) indices[i] = i % 2 ? -kRows : 700;  // rows 0 and 700
  std::vector<Argument> arguments{Argument::input(update), Argument::input(indices),
                                  Argument::output<uint16_t>(kRows * kInner, kNan)};
  Status status = runCall(
      plan::ScatterAddCall{.outer = 1, .rows = kRows, .inner = kInner, .count = kCount, .indexBytes = 8, .type = type},
      arguments, {.threads = 3});
  ASSERT_TRUE(status.ok()) << status.message();
  auto result = arguments[2].values<uint16_t>();
  for (int64_t row = 0; row < kRows; ++row) {
    double expected = row == 1099 ? 1 + 256 * small() : row == 0 ? 172 * small() : row == 700 ? 171 * small() : 0;
    for (int64_t x = 0; x < kInner; ++x) ASSERT_EQ(result[row * kInner + x], half(static_cast<float>(expected))) << row;
  }
}

TEST_P(HalfTypes, PartialsAreSummedInF32AndRoundedOnce) {
  constexpr int64_t kParts = 257, kColumns = 1500;
  std::vector<float> partials(kParts * kColumns, small());
  std::fill_n(partials.begin(), kColumns, 1.0f);
  std::vector<Argument> arguments{Argument::input(partials), Argument::output<uint16_t>(kColumns, kNan)};
  Status status = runCall(plan::SumPartialsCall{kParts, kColumns, type}, arguments, {.threads = 2});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(arguments[1].values<uint16_t>(), ::testing::Each(half(1 + 256 * small())));
}

TEST_P(HalfTypes, SquareSumIsExact) {
  Numbers numbers(4);
  const auto values = halves(numbers, 10000);
  double expected = 0;
  for (uint16_t value : values) expected += real(value) * real(value);
  std::vector<Argument> arguments{Argument::input(values), Argument::output<double>(1, NAN)};
  Status status = runCall(plan::SquareSumCall{10000, type}, arguments, {.threads = 2});
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
  EXPECT_TRUE(std::isnan(Halves{plan::BF16}.real(result[0])));
  EXPECT_EQ(result[1], 0x3f80);
  EXPECT_EQ(result[2], 0x3f82);
  EXPECT_TRUE(std::isnan(Halves{plan::BF16}.real(result[3])));
  EXPECT_EQ(result[4], 0x7f80);
  EXPECT_EQ(result[5], 0x8000);
}

TEST(HalfFunctions, F16HasSubnormalsAndOverflows) {
  // 65,520 lies between the largest number and what would be the next one; numbers below 2^-14 are multiples of 2^-24.
  const std::vector<std::pair<float, uint16_t>> cases{{1 + 0x1p-11f, 0x3c00},
                                                      {1 + 3 * 0x1p-11f, 0x3c02},
                                                      {65519.99f, 0x7bff},
                                                      {65520, 0x7c00},
                                                      {-1e30f, 0xfc00},
                                                      {INFINITY, 0x7c00},
                                                      {0x1p-14f, 0x0400},
                                                      {0x1p-14f - 0x1p-24f, 0x03ff},
                                                      {0x1p-14f - 0x1p-25f, 0x0400},
                                                      {0x1p-24f, 0x0001},
                                                      {0x1p-25f, 0x0000},
                                                      {0x1.8p-25f, 0x0001},
                                                      {3 * 0x1p-25f, 0x0002},
                                                      {-0x1p-26f, 0x8000},
                                                      {-0.0f, 0x8000}};
  const int64_t count = static_cast<int64_t>(cases.size());
  std::vector<float> partials{NAN};
  for (const auto& [value, bits] : cases) partials.push_back(value);
  std::vector<Argument> arguments{Argument::input(partials), Argument::output<uint16_t>(count + 1, 0)};
  Status status = runCall(plan::SumPartialsCall{1, count + 1, plan::F16}, arguments);
  ASSERT_TRUE(status.ok()) << status.message();
  auto result = arguments[1].values<uint16_t>();
  EXPECT_TRUE(std::isnan(Halves{plan::F16}.real(result[0])));
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(result[i + 1], cases[i].second) << cases[i].first;
}

TEST(HalfFunctions, EveryF16IsWidenedExactly) {
  // Their squares are exact in f64: of each number alone its own.
  const Halves f16{plan::F16};
  for (uint32_t bits = 0; bits < 0x7c00; bits += 7) {
    std::vector<Argument> arguments{Argument::input(std::vector<uint16_t>{static_cast<uint16_t>(bits)}),
                                    Argument::output<double>(1, NAN)};
    ASSERT_TRUE(runCall(plan::SquareSumCall{1, plan::F16}, arguments).ok());
    ASSERT_EQ(arguments[1].values<double>()[0], f16.real(bits) * f16.real(bits)) << bits;
  }
}

}  // namespace
}  // namespace sheaf::testing
