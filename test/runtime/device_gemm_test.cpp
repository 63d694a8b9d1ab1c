// gemm against plain loops in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "test/runtime/DeviceTesting.h"
#include "test/runtime/GemmShape.h"

namespace sheaf::testing {
namespace {

class Gemm : public ::testing::TestWithParam<GemmShape> {};

TEST_P(Gemm, MatchesLoopsAndDoesNotDependOnThreads) {
  const GemmShape c = GetParam();
  Numbers numbers(1);
  const std::vector<float> a = numbers.reals(c.batch * c.strideA()), b = numbers.reals(c.batch * c.strideB());
  // What the result holds before is not read: a NaN there must not survive.
  std::vector<Argument> arguments{Argument::input(a), Argument::input(b),
                                  Argument::output<float>(c.batch * c.strideC(), NAN)};
  ASSERT_EQ(runOnThreads(c.call(), arguments).message(), "");
  const std::vector<float> first = arguments[2].values<float>();
  Numbers samples(2);
  const int64_t all = c.batch * c.m * c.n, checked = std::min<int64_t>(all, 20000);
  for (int64_t sample = 0; sample < checked; ++sample) {
    const int64_t at = all == checked ? sample : samples.below(all);
    const int64_t entry = at / (c.m * c.n), i = at / c.n % c.m, j = at % c.n;
    double sum = 0, size = 0;
    for (int64_t l = 0; l < c.k; ++l) {
      double x = a[c.atA(entry, i, l)];
      double y = b[c.atB(entry, l, j)];
      sum += x * y;
      size += std::abs(x * y);
    }
    ASSERT_NEAR(first[c.atC(entry, i, j)], sum, 2e-6 * size + 1e-6) << "row " << i << ", column " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Gemm,
                         ::testing::Values(GemmShape{1, 1, 1}, GemmShape{3, 5, 7}, GemmShape{64, 64, 64, 3},
                                           GemmShape{1, 384, 129}, GemmShape{512, 384, 100},
                                           GemmShape{200, 1152, 96, 1, false, true},
                                           GemmShape{384, 384, 300, 1, true, false},
                                           GemmShape{65, 63, 31, 2, true, true},
                                           GemmShape{129, 300, 257, 1, false, true, 3, 5, 7}, GemmShape{1024, 256, 64},
                                           GemmShape{17, 3000, 64, 1, true}, GemmShape{1250, 1050, 24, 1, true},
                                           GemmShape{64, 16, 300, 12, true, false, 1, 2, 3}));

TEST(GemmRows, PaddingIsNotReadAndChangesNoBit) {
  for (const auto& [dense, apart] : oddShapes()) {
    Numbers numbers(3);
    const std::vector<float> a = numbers.reals(dense.batch * dense.m * dense.k),
                             b = numbers.reals(dense.batch * dense.k * dense.n);
    std::vector<float> results[2];
    for (int i : {0, 1}) {
      const GemmShape& c = i == 0 ? dense : apart;
      std::vector<Argument> arguments{Argument::input(c.laidOutA<float>(a, NAN)),
                                      Argument::input(c.laidOutB<float>(b, NAN)),
                                      Argument::output<float>(c.batch * c.strideC(), NAN)};
      Status status = runCall(c.call(), arguments);
      ASSERT_TRUE(status.ok()) << status.message();
      results[i] = c.elementsOfC(arguments[2].values<float>());
    }
    EXPECT_EQ(results[0], results[1]) << ::testing::PrintToString(dense);
  }
}

TEST(GemmErrors, NanPropagates) {
  std::vector<float> a(64 * 64, 1), b(64 * 64, 1);
  a[5 * 64 + 9] = NAN;
  std::vector<Argument> arguments{Argument::input(a), Argument::input(b), Argument::output<float>(64 * 64, 0)};
  Status status = runCall(GemmShape{64, 64, 64}.call(), arguments);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> result = arguments[2].values<float>();
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) EXPECT_EQ(std::isnan(result[i * 64 + j]), i == 5);
}

}  // namespace
}  // namespace sheaf::testing
