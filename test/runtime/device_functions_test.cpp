// The library functions that move, index and reduce, against plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

TEST(Gather, TakesSlicesByIndexFromEitherEnd) {
  const int64_t outer = 3, rows = 11, inner = 37, count = 900;
  Numbers numbers(1);
  std::vector<float> data = numbers.reals(outer * rows * inner);
  std::vector<int64_t> indices(count);
  for (int64_t& index : indices) index = numbers.below(2 * rows) - rows;
  std::vector<Argument> arguments{Argument::input(data), Argument::input(indices),
                                  Argument::output<float>(outer * count * inner, NAN)};
  ASSERT_EQ(runOnThreads(
                plan::GatherCall{
                    .outer = outer, .rows = rows, .inner = inner, .count = count, .elementBytes = 4, .indexBytes = 8},
                arguments)
                .message(),
            "");
  std::vector<float> result = arguments[2].values<float>();
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < inner; ++j)
        ASSERT_EQ(result[(o * count + i) * inner + j], data[(o * rows + (indices[i] + rows) % rows) * inner + j]);
}

TEST(Gather, TakesAnyElementWidth) {
  for (int64_t width : {1, 2, 4, 8}) {
    std::vector<uint8_t> data(10 * width);
    for (size_t i = 0; i < data.size(); ++i) data[i] = uint8_t(i);
    std::vector<int32_t> indices{9, -10, 3};
    std::vector<Argument> arguments{Argument::input(data), Argument::input(indices),
                                    Argument::output<uint8_t>(3 * width, 0)};
    Status status = runCall(
        plan::GatherCall{.outer = 1, .rows = 10, .inner = 1, .count = 3, .elementBytes = width, .indexBytes = 4},
        arguments);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<uint8_t> result = arguments[2].values<uint8_t>();
    for (int64_t i = 0; i < 3 * width; ++i)
      EXPECT_EQ(result[i], data[(indices[i / width] + 10) % 10 * width + i % width]);
  }
}

TEST(Gather, NamesAnIndexOutOfRange) {
  for (int64_t wrong : {int64_t(5), int64_t(-6), std::numeric_limits<int64_t>::min()}) {
    for (const char* function : {"gather", "scatter_add"}) {
      std::vector<int64_t> indices{0, 4, wrong, 7};
      bool gather = std::string(function) == "gather";
      std::vector<Argument> arguments{Argument::input(std::vector<float>(gather ? 5 : 4)), Argument::input(indices),
                                      Argument::output<float>(gather ? 4 : 5, 0)};
      const plan::GatherCall taking{.outer = 1, .rows = 5, .inner = 1, .count = 4, .elementBytes = 4, .indexBytes = 8};
      const plan::ScatterAddCall adding{.outer = 1, .rows = 5, .inner = 1, .count = 4, .indexBytes = 8};
      Status status = runCall(gather ? plan::AnyCall(taking) : plan::AnyCall(adding), arguments);
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("(" + std::string(function) + " '"));
      // A GPU says that there is one, not which.
      EXPECT_THAT(status.message(),
                  HasSubstr(kOnGpu ? "index" : "index " + std::to_string(wrong) + " at position 2 is outside [-5, 5)"));
    }
  }
}

TEST(ScatterAdd, AddsInTheOrderOfTheIndices) {
  struct Shape {
    int64_t outer, rows, inner, count;
  };
  for (Shape s : {Shape{1, 50, 384, 300}, Shape{2, 9, 200, 60}, Shape{700, 13, 1, 1}, Shape{1, 3, 1, 5000}}) {
    Numbers numbers(3);
    std::vector<float> update = numbers.reals(s.outer * s.count * s.inner);
    std::vector<int64_t> indices(s.count);
    for (int64_t& index : indices) index = numbers.below(s.rows) - (numbers.below(2) ? s.rows : 0);
    std::vector<Argument> arguments{Argument::input(update), Argument::input(indices),
                                    Argument::output<float>(s.outer * s.rows * s.inner, NAN)};
    ASSERT_EQ(
        runOnThreads(
            plan::ScatterAddCall{.outer = s.outer, .rows = s.rows, .inner = s.inner, .count = s.count, .indexBytes = 8},
            arguments)
            .message(),
        "");
    std::vector<float> expected(s.outer * s.rows * s.inner, 0);
    for (int64_t o = 0; o < s.outer; ++o)
      for (int64_t i = 0; i < s.count; ++i)
        for (int64_t j = 0; j < s.inner; ++j)
          expected[(o * s.rows + (indices[i] + s.rows) % s.rows) * s.inner + j] +=
              update[(o * s.count + i) * s.inner + j];
    EXPECT_EQ(arguments[2].values<float>(), expected);
  }
}

using plan::CopyDimension;

void expectCopy(int64_t width, const std::vector<CopyDimension>& dimensions, int64_t offset, bool zero) {
  int64_t source = offset, destination = 0, all = 1;
  for (const CopyDimension& d : dimensions) {
    source += std::max<int64_t>(d.source, 0) * (d.size - 1);
    destination += d.destination * (d.size - 1);
    all *= d.size;
  }
  ++source;
  destination += 1 + (zero ? 17 : 0);
  std::vector<uint8_t> from(source * width), expected(destination * width, zero ? 0 : 0xEE);
  Numbers numbers(4);
  for (uint8_t& byte : from) byte = uint8_t(numbers.bits());
  for (int64_t i = 0; i < all; ++i) {
    int64_t rest = i, a = offset, b = 0;
    for (size_t d = dimensions.size(); d-- > 0;) {
      a += rest % dimensions[d].size * dimensions[d].source;
      b += rest % dimensions[d].size * dimensions[d].destination;
      rest /= dimensions[d].size;
    }
    for (int64_t byte = 0; byte < width; ++byte) expected[b * width + byte] = from[a * width + byte];
  }
  std::vector<Argument> arguments{Argument::input(from), Argument::output<uint8_t>(destination * width, 0xEE)};
  ASSERT_EQ(runOnThreads(plan::CopyCall{width, dimensions, offset, zero}, arguments).message(), "");
  EXPECT_TRUE(arguments[1].values<uint8_t>() == expected);
}

TEST(Copy, AnyStrides) {
  for (int64_t width : {1, 2, 4, 8}) {
    expectCopy(width, {}, 0, false);                                                  // one element
    expectCopy(width, {{5, 1, 1}}, 3, false);                                         // a run
    expectCopy(width, {{7, 3, 2}}, 0, true);                                          // gaps on both sides
    expectCopy(width, {{6, -1, 1}}, 5, false);                                        // reversed
    expectCopy(width, {{4, 0, 5}, {5, 1, 1}}, 0, false);                              // repeated rows
    expectCopy(width, {{37, 1, 53}, {53, 37, 1}}, 0, false);                          // a transpose
    expectCopy(width, {{3, 4 * 5, 4 * 5}, {4, 1, 5}, {5, 4, 1}}, 0, false);           // a batch of them
    expectCopy(width, {{3, 35, 70}, {1, 999, 999}, {5, 7, 14}, {7, 1, 2}}, 0, true);  // padding between elements
    expectCopy(width, {{4, -20, 16}, {4, 4, 1}, {4, -1, 4}}, 63, false);
  }
}

TEST(Copy, LargeOnesInParts) {
  expectCopy(4, {{500000, 1, 1}}, 0, false);
  expectCopy(2, {{300001, 2, 1}}, 0, false);
  expectCopy(4, {{1000, 1, 700}, {700, 1000, 1}}, 0, false);
  expectCopy(4, {{2, 12 * 64, 12 * 64 * 70}, {70, 2 * 12 * 64, 64}, {12, 64, 64 * 70}, {64, 1, 1}}, 0, false);
}

TEST(SumPartials, AddsRowsInOrder) {
  for (auto [p, c] : {std::pair<int64_t, int64_t>{1, 5}, {7, 3000}, {64, 1}, {33, 1025}}) {
    std::vector<float> source = Numbers(5).reals(p * c), expected(source.begin(), source.begin() + c);
    for (int64_t i = 1; i < p; ++i)
      for (int64_t j = 0; j < c; ++j) expected[j] += source[i * c + j];
    std::vector<Argument> arguments{Argument::input(source), Argument::output<float>(c, NAN)};
    ASSERT_EQ(runOnThreads(plan::SumPartialsCall{p, c}, arguments).message(), "");
    EXPECT_EQ(arguments[1].values<float>(), expected);
  }
}

template <typename T>
void expectCumSum(plan::ElementType type, bool exclusive, bool reverse) {
  const int64_t outer = 3, n = 9, inner = 5;
  Numbers numbers(6);
  std::vector<T> source(outer * n * inner), expected(source.size());
  for (T& value : source) value = T(numbers.below(2000) - 1000) / T(std::is_integral_v<T> ? 1 : 64);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      T total = 0;
      for (int64_t j = 0; j < n; ++j) {
        int64_t at = (o * n + (reverse ? n - 1 - j : j)) * inner + i;
        expected[at] = exclusive ? total : total + source[at];
        total += source[at];
      }
    }
  std::vector<Argument> arguments{Argument::input(source), Argument::output<T>(source.size(), T(77))};
  ASSERT_EQ(runOnThreads(plan::CumSumCall{outer, n, inner, exclusive, reverse, type}, arguments).message(), "");
  EXPECT_EQ(arguments[1].values<T>(), expected);
}

TEST(CumSum, AllFormsAndTypes) {
  for (bool exclusive : {false, true})
    for (bool reverse : {false, true}) {
      expectCumSum<float>(plan::F32, exclusive, reverse);
      expectCumSum<double>(plan::F64, exclusive, reverse);
      expectCumSum<int64_t>(plan::I64, exclusive, reverse);
      expectCumSum<int32_t>(plan::I32, exclusive, reverse);
    }
}

TEST(SquareSum, AddsBlocksOf4096InOrder) {
  for (int64_t n : {1, 15, 16, 4095, 4096, 4097, 100003, 5000000}) {
    std::vector<float> source = Numbers(7).reals(n);
    double expected = 0, total = 0;
    for (int64_t block = 0; block < n; block += 4096) {
      // A block's sum alone has the whole result of a shorter call.
      const int64_t size = std::min<int64_t>(4096, n - block);
      double lanes[16] = {};
      for (int64_t i = 0; i < size; ++i) lanes[i % 16] += double(source[block + i]) * source[block + i];
      for (int half = 8; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      expected += lanes[0];
    }
    for (float x : source) total += double(x) * x;
    std::vector<Argument> arguments{Argument::input(source), Argument::output<double>(1, NAN)};
    ASSERT_EQ(runOnThreads(plan::SquareSumCall{n}, arguments).message(), "");
    EXPECT_EQ(arguments[1].values<double>()[0], expected);
    EXPECT_NEAR(expected, total, 1e-10 * total);
  }
}

TEST(SquareSum, NanAndInfinityPropagate) {
  std::vector<float> source(10000, 1.0f);
  source[9000] = NAN;
  std::vector<Argument> arguments{Argument::input(source), Argument::output<double>(1, 0)};
  ASSERT_TRUE(runCall(plan::SquareSumCall{10000}, arguments).ok());
  EXPECT_TRUE(std::isnan(arguments[1].values<double>()[0]));
  source[9000] = INFINITY;
  arguments = {Argument::input(source), Argument::output<double>(1, 0)};
  ASSERT_TRUE(runCall(plan::SquareSumCall{10000}, arguments).ok());
  EXPECT_TRUE(std::isinf(arguments[1].values<double>()[0]));
}

struct Norm {
  double norm;
  float scale, finite;
};

Norm gradientNorm(const std::vector<double>& partials, int64_t ranks, const float* maximum,
                  const float* lossScale = nullptr, const float* loss = nullptr) {
  std::vector<Argument> arguments{Argument::input(partials), Argument::output<double>(1, -1),
                                  Argument::output<float>(2, -1)};
  if (maximum) arguments.push_back(Argument::input(std::vector<float>{*maximum}));
  if (lossScale) arguments.push_back(Argument::input(std::vector<float>{*lossScale}));
  if (loss) arguments.push_back(Argument::input(std::vector<float>{*loss}));
  Status status = runCall(plan::GradientNormCall{ranks, int64_t(partials.size()) / ranks, maximum != nullptr,
                                                 lossScale != nullptr, loss != nullptr},
                          arguments);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<float> scalars = arguments[2].values<float>();
  return {arguments[1].values<double>()[0], scalars[0], scalars[1]};
}

TEST(GradientNorm, ClipsAndTellsWhatIsFinite) {
  const float one = 1, ten = 10;
  Norm norm = gradientNorm({4, 5, 7, 9}, 2, nullptr);
  EXPECT_EQ(norm.norm, 5);
  EXPECT_EQ(norm.scale, 1);
  EXPECT_EQ(norm.finite, 1);
  EXPECT_EQ(gradientNorm({4, 5, 7, 9}, 2, &one).scale, float(1 / (5 + 1e-6)));
  EXPECT_EQ(gradientNorm({4, 5, 7, 9}, 4, &ten).scale, 1);
  EXPECT_EQ(gradientNorm({4, INFINITY}, 1, &one).finite, 0);
  Norm none = gradientNorm({4, NAN}, 1, &one);
  EXPECT_TRUE(std::isnan(none.norm));
  EXPECT_TRUE(std::isnan(none.scale));
  EXPECT_EQ(none.finite, 0);
}

// The loss was multiplied by 8: norm and gradients are divided by it, before clipping.
TEST(GradientNorm, IsOfTheUnscaledGradient) {
  const float one = 1, ten = 10, eight = 8;
  Norm norm = gradientNorm({4, 5, 7, 9}, 2, nullptr, &eight);
  EXPECT_EQ(norm.norm, 5.0 / 8);
  EXPECT_EQ(norm.scale, 1.0f / 8);
  EXPECT_EQ(norm.finite, 1);
  EXPECT_EQ(gradientNorm({4, 5, 7, 9}, 2, &one, &eight).scale, 1.0f / 8) << "5 / 8 is not above 1";
  EXPECT_EQ(gradientNorm({1600, 0}, 1, &one, &eight).scale, float(1 / (40.0 / 8 + 1e-6) / 8));
  EXPECT_EQ(gradientNorm({4, 5, 7, 9}, 4, &ten, &eight).scale, 1.0f / 8);
  EXPECT_EQ(gradientNorm({4, INFINITY}, 1, &one, &eight).finite, 0);
}

// A step is bad if its loss or its gradients are not finite. What gradients are multiplied by is that of the norm.
TEST(GradientNorm, JudgesTheLossToo) {
  const float one = 1, eight = 8;
  const std::pair<float, float> losses[] = {{2.5f, 1},     {0, 1},         {FLT_MAX, 1}, {-FLT_MAX, 1}, {1e-45f, 1},
                                            {INFINITY, 0}, {-INFINITY, 0}, {NAN, 0},     {-NAN, 0}};
  for (auto [loss, finite] : losses)
    for (const float* scale : {static_cast<const float*>(nullptr), &eight}) {
      const Norm norm = gradientNorm({4, 5, 7, 9}, 2, &one, scale, &loss);
      EXPECT_EQ(norm.finite, finite) << loss;
      EXPECT_EQ(norm.norm, scale ? 5.0 / 8 : 5) << loss;
      EXPECT_EQ(norm.scale, gradientNorm({4, 5, 7, 9}, 2, &one, scale).scale) << loss;
      EXPECT_EQ(gradientNorm({4, NAN}, 1, &one, scale, &loss).finite, 0) << loss;
    }
}

TEST(Zero, FillsItsOperand) {
  std::vector<Argument> arguments{Argument::output<uint8_t>(3000001, 0xFF)};
  ASSERT_EQ(runOnThreads(plan::ZeroCall(), arguments).message(), "");
  EXPECT_EQ(arguments[0].values<uint8_t>(), std::vector<uint8_t>(3000001, 0));
}

// Philox 4x32-10, written from the paper.
void philox(uint32_t (&counter)[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(0xD2511F53) * counter[0], b = uint64_t(0xCD9E8D57) * counter[2];
    uint32_t next[4] = {uint32_t(b >> 32) ^ counter[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key1,
                        uint32_t(a)};
    std::copy(next, next + 4, counter);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

TEST(Dropout, PhiloxKnownAnswer) {
  uint32_t counter[4] = {0, 0, 0, 0};
  philox(counter, 0, 0);
  EXPECT_THAT(counter, ::testing::ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
}

// Values of rank 2 of 3: one range of a value, blocks, some of which are larger than what a thread does at once, and
// whole.
std::vector<plan::RandomShape> randomShapes(int64_t node) {
  std::vector<plan::RandomShape> shapes;
  for (int64_t count : {1, 3, 66, 40001}) shapes.push_back({count, node});
  for (auto [count, blocks] : {std::pair(66, 66), {66, 22}, {70, 10}, {40000, 2}, {40000, 8000}})
    shapes.push_back({count, node, blocks, 3});
  shapes.push_back({66, node, 1, 1, true});
  return shapes;
}

uint64_t globalIndex(const plan::RandomShape& shape, int64_t i) {
  if (shape.whole) return uint64_t(i);
  const int64_t run = shape.count / shape.blocks;
  return uint64_t((i / run * 3 + 2) * run + i % run);
}

TEST(Dropout, MaskIsAFunctionOfSeedStepNodeAndGlobalIndex) {
  const int64_t seed = 0x123456789abcdef, node = 7, step = 41;
  for (const plan::RandomShape& shape : randomShapes(node)) {
    const int64_t count = shape.count;
    for (double ratio : {0.0, 0.1, 0.5, 1.0}) {
      std::vector<float> source = Numbers(8).reals(count), expected(count);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t element = globalIndex(shape, i);
        uint32_t counter[4] = {uint32_t(element / 4), uint32_t(element / 4 >> 32), uint32_t(node), uint32_t(step)};
        philox(counter, uint32_t(seed), uint32_t(uint64_t(seed) >> 32));
        const bool keep = counter[element % 4] * 0x1p-32 >= ratio;
        expected[i] = keep ? source[i] * float(1 / (1 - ratio)) : 0;
      }
      std::vector<Argument> arguments{Argument::input(source), Argument::output<float>(count, NAN)};
      CallOptions options;
      options.ranks = 3;
      options.step = step;
      options.seed = seed;
      ASSERT_EQ(runOnThreads(plan::DropoutCall{shape, ratio}, arguments, options).message(), "");
      EXPECT_EQ(arguments[1].values<float>(), expected) << count << " elements, ratio " << ratio;
    }
  }
}

TEST(RandomUniform, DependsOnTheGlobalIndexAndLiesBetweenZeroAndOne) {
  const int64_t seed = 0x123456789abcdef, node = 7, step = 41;
  for (const plan::RandomShape& shape : randomShapes(node)) {
    const int64_t count = shape.count;
    std::vector<float> expected(count);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t element = globalIndex(shape, i);
      uint32_t counter[4] = {uint32_t(element / 4), uint32_t(element / 4 >> 32), uint32_t(node), uint32_t(step)};
      philox(counter, uint32_t(seed), uint32_t(uint64_t(seed) >> 32));
      expected[i] = float((double(counter[element % 4] >> 9) + 0.5) / (1 << 23));
      ASSERT_TRUE(expected[i] > 0 && expected[i] < 1);
    }
    std::vector<Argument> arguments{Argument::output<float>(count, NAN)};
    CallOptions options;
    options.ranks = 3;
    options.step = step;
    options.seed = seed;
    ASSERT_EQ(runOnThreads(plan::RandomUniformCall{shape}, arguments, options).message(), "");
    EXPECT_EQ(arguments[0].values<float>(), expected) << count << " elements";
  }
}

}  // namespace
}  // namespace sheaf::testing
