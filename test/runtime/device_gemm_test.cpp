// gemm against plain loops in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

struct Case {
  int64_t m, n, k, batch = 1;
  bool transposeA = false, transposeB = false;
  int64_t padA = 0, padB = 0, padC = 0;  // elements between rows
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.m << "x" << c.n << "x" << c.k << " batch " << c.batch << (c.transposeA ? " T" : " N")
       << (c.transposeB ? "T" : "N");
}

class Gemm : public ::testing::TestWithParam<Case> {};

TEST_P(Gemm, MatchesLoopsAndDoesNotDependOnThreads) {
  const Case c = GetParam();
  const int64_t rowsA = c.transposeA ? c.k : c.m, lda = (c.transposeA ? c.m : c.k) + c.padA;
  const int64_t rowsB = c.transposeB ? c.n : c.k, ldb = (c.transposeB ? c.k : c.n) + c.padB, ldc = c.n + c.padC;
  Numbers numbers(1);
  const std::vector<float> a = numbers.reals(c.batch * rowsA * lda), b = numbers.reals(c.batch * rowsB * ldb);
  plan::LibraryCall call = libraryCall("gemm", {{"m", c.m},
                                                {"n", c.n},
                                                {"k", c.k},
                                                {"batch", c.batch},
                                                {"transpose_a", c.transposeA},
                                                {"transpose_b", c.transposeB},
                                                {"lda", lda},
                                                {"ldb", ldb},
                                                {"ldc", ldc},
                                                {"stride_a", rowsA * lda},
                                                {"stride_b", rowsB * ldb},
                                                {"stride_c", c.m * ldc}});
  std::vector<float> first;
  for (int threads : {1, 2, 5}) {
    // What the result holds before is not read: a NaN there must not survive.
    std::vector<Argument> arguments{Argument::input(a), Argument::input(b),
                                    Argument::output<float>(c.batch * c.m * ldc, NAN)};
    CallOptions options;
    options.threads = threads;
    Status status = runCall(call, arguments, options);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> result = arguments[2].values<float>();
    if (threads == 1)
      first = result;
    else
      ASSERT_EQ(std::memcmp(result.data(), first.data(), result.size() * sizeof(float)), 0) << threads << " threads";
  }
  Numbers samples(2);
  const int64_t all = c.batch * c.m * c.n, checked = std::min<int64_t>(all, 20000);
  for (int64_t sample = 0; sample < checked; ++sample) {
    const int64_t at = all == checked ? sample : samples.below(all);
    const int64_t entry = at / (c.m * c.n), i = at / c.n % c.m, j = at % c.n;
    double sum = 0, size = 0;
    for (int64_t l = 0; l < c.k; ++l) {
      double x = a[entry * rowsA * lda + (c.transposeA ? l * lda + i : i * lda + l)];
      double y = b[entry * rowsB * ldb + (c.transposeB ? j * ldb + l : l * ldb + j)];
      sum += x * y;
      size += std::abs(x * y);
    }
    ASSERT_NEAR(first[entry * c.m * ldc + i * ldc + j], sum, 2e-6 * size + 1e-6) << "row " << i << ", column " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Gemm,
                         ::testing::Values(Case{1, 1, 1}, Case{3, 5, 7}, Case{64, 64, 64, 3}, Case{1, 384, 129},
                                           Case{512, 384, 100}, Case{200, 1152, 96, 1, false, true},
                                           Case{384, 384, 300, 1, true, false}, Case{65, 63, 31, 2, true, true},
                                           Case{129, 300, 257, 1, false, true, 3, 5, 7}, Case{1024, 256, 64},
                                           Case{17, 3000, 64, 1, true}, Case{64, 16, 300, 12, true, false, 1, 2, 3}));

TEST(GemmErrors, NanPropagates) {
  std::vector<float> a(64 * 64, 1), b(64 * 64, 1);
  a[5 * 64 + 9] = NAN;
  std::vector<Argument> arguments{Argument::input(a), Argument::input(b), Argument::output<float>(64 * 64, 0)};
  Status status = runCall(
      libraryCall("gemm", {{"m", 64}, {"n", 64}, {"k", 64}, {"batch", 1}, {"lda", 64}, {"ldb", 64}, {"ldc", 64}}),
      arguments);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> result = arguments[2].values<float>();
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) EXPECT_EQ(std::isnan(result[i * 64 + j]), i == 5);
}

}  // namespace
}  // namespace sheaf::testing
