// gemm with epilogues against plain loops in double, in f32 and in bf16.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "test/runtime/DeviceTesting.h"
#include "test/runtime/GemmShape.h"

namespace sheaf::testing {
namespace {

using plan::GemmEpilogue;

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
double slope(double x) {
  const double h = 1e-5;
  return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

// Half the distance of two neighbouring numbers, relative to them.
template <typename T>
constexpr double kRounding = std::is_same_v<T, float> ? 1e-7 : 1.0 / 256;

double real(float value) {
  return value;
}
double real(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}
template <typename T>
std::vector<T> stored(Numbers& numbers, size_t count) {
  std::vector<T> result;
  for (float value : numbers.reals(count)) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if constexpr (std::is_same_v<T, float>)
      result.push_back(value);
    else
      result.push_back(static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }
  return result;
}

struct EpilogueCase {
  GemmEpilogue epilogue;
  GemmShape shape;
};
void PrintTo(const EpilogueCase& c, std::ostream* out) {
  *out << "epilogue " << static_cast<int64_t>(c.epilogue) << " of ";
  PrintTo(c.shape, out);
}

class GemmEpilogueTest : public ::testing::TestWithParam<EpilogueCase> {
 protected:
  template <typename T>
  void expectLoops() {
    const auto [epilogue, s] = GetParam();
    const bool biased = epilogue == GemmEpilogue::kBias || epilogue == GemmEpilogue::kBiasGelu;
    const bool gated = epilogue == GemmEpilogue::kGelu || epilogue == GemmEpilogue::kBiasGelu;
    const bool sloped = epilogue == GemmEpilogue::kGeluGrad;
    Numbers numbers(1);
    const std::vector<T> a = stored<T>(numbers, s.strideA()), b = stored<T>(numbers, s.strideB());
    const std::vector<T> side = stored<T>(numbers, biased ? s.n : sloped ? s.m * s.n : 0);
    const size_t secondElements = gated                             ? s.m * s.n
                                  : epilogue == GemmEpilogue::kSumA ? s.m
                                  : epilogue == GemmEpilogue::kSumB ? s.n
                                                                    : 0;
    plan::GemmCall call = s.call(std::is_same_v<T, float> ? plan::F32 : plan::BF16);
    call.epilogue = epilogue;
    std::vector<Argument> arguments{Argument::input(a), Argument::input(b)};
    if (!side.empty()) arguments.push_back(Argument::input(side));
    const size_t result = arguments.size();
    arguments.push_back(Argument::output<T>(s.strideC(), T(0x7fc0)));
    if (secondElements > 0) arguments.push_back(Argument::output<T>(secondElements, T(0x7fc0)));
    ASSERT_EQ(runOnThreads(call, arguments).message(), "");
    const auto c = arguments[result].template values<T>();
    const auto also = secondElements > 0 ? arguments[result + 1].template values<T>() : std::vector<T>();
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < s.k; ++l) {
          const double x = real(a[s.atA(0, i, l)]), y = real(b[s.atB(0, l, j)]);
          sum += x * y, size += std::abs(x * y);
        }
        // A product may be rounded before its epilogue.
        double error = kRounding<T> * std::abs(sum);
        if (biased) sum += real(side[j]), size += std::abs(real(side[j]));
        error += 2e-6 * size + kRounding<T> * std::abs(sum) + 1e-6;
        const std::string where = "row " + std::to_string(i) + ", column " + std::to_string(j);
        if (gated) {
          ASSERT_NEAR(real(also[i * s.n + j]), sum, error) << where;
          sum = gelu(sum), error = 1.2 * error + kRounding<T> * std::abs(sum);
        }
        if (sloped) {
          const double factor = slope(real(side[i * s.n + j]));
          sum *= factor, error = (std::abs(factor) + 1e-3) * error + kRounding<T> * std::abs(sum);
        }
        ASSERT_NEAR(real(c[s.atC(0, i, j)]), sum, error + 1e-6) << where;
      }
    if (epilogue != GemmEpilogue::kSumA && epilogue != GemmEpilogue::kSumB) return;
    for (size_t i = 0; i < secondElements; ++i) {
      double sum = 0, size = 0;
      for (int64_t l = 0; l < s.k; ++l) {
        const double x = epilogue == GemmEpilogue::kSumA ? real(a[s.atA(0, i, l)]) : real(b[s.atB(0, l, i)]);
        sum += x, size += std::abs(x);
      }
      ASSERT_NEAR(real(also[i]), sum, 2e-6 * size + kRounding<T> * std::abs(sum) + 1e-6) << "sum " << i;
    }
  }
};

TEST_P(GemmEpilogueTest, MatchesLoopsInF32) {
  expectLoops<float>();
}
TEST_P(GemmEpilogueTest, MatchesLoopsInBf16) {
  expectLoops<uint16_t>();
}

std::vector<EpilogueCase> epilogueCases() {
  std::vector<EpilogueCase> cases;
  // The second is one whose rows no GPU library takes with a GELU; the third has elements between its rows.
  for (GemmEpilogue e : {GemmEpilogue::kBias, GemmEpilogue::kGelu, GemmEpilogue::kBiasGelu, GemmEpilogue::kGeluGrad,
                         GemmEpilogue::kSumA, GemmEpilogue::kSumB})
    for (GemmShape shape : {GemmShape{64, 520, 96}, GemmShape{37, 61, 130},
                            GemmShape{130, 40, 33, 1, false, false, 3, 5, 8}, GemmShape{1, 8, 1}}) {
      shape.transposeA = e == GemmEpilogue::kSumA || e == GemmEpilogue::kSumB;
      shape.transposeB = e == GemmEpilogue::kGeluGrad;
      cases.push_back({e, shape});
    }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GemmEpilogueTest, ::testing::ValuesIn(epilogueCases()));

}  // namespace
}  // namespace sheaf::testing
