// Convolutions and max pooling against plain loops in double, with the channels first and, on a CPU, last.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

struct Case {
  int64_t n, c, h, w, o, kh, kw, stride = 1, pad = 0, dilation = 1, groups = 1;
  int64_t oh() const { return (h + 2 * pad - dilation * (kh - 1) - 1) / stride + 1; }
  int64_t ow() const { return (w + 2 * pad - dilation * (kw - 1) - 1) / stride + 1; }
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "n" << c.n << " c" << c.c << " " << c.h << "x" << c.w << " o" << c.o << " kernel " << c.kh << "x" << c.kw
       << " stride " << c.stride << " pad " << c.pad << " dilation " << c.dilation << " groups " << c.groups;
}

// A GPU has no others.
std::vector<bool> layouts() {
  return kOnGpu ? std::vector<bool>{false} : std::vector<bool>{false, true};
}

// Images of some channels and pixels, from one layout to the other.
template <typename T>
std::vector<T> turned(const std::vector<T>& from, int64_t channels, int64_t pixels, bool toLast) {
  std::vector<T> to(from.size());
  const int64_t image = channels * pixels;
  for (int64_t e = 0; e < int64_t(from.size()); ++e) {
    const int64_t channel = e % image / pixels, pixel = e % pixels;
    const int64_t last = e / image * image + pixel * channels + channel;
    toLast ? to[last] = from[e] : to[e] = from[last];
  }
  return to;
}

template <typename Call>
Call windowCall(const Case& c, bool channelsLast = false) {
  Call call;
  call.channelsLast = channelsLast;
  call.n = c.n, call.c = c.c, call.h = c.h, call.w = c.w;
  call.kh = c.kh, call.kw = c.kw, call.oh = c.oh(), call.ow = c.ow();
  call.strideH = call.strideW = c.stride;
  call.padTop = call.padLeft = call.padBottom = call.padRight = c.pad;
  call.dilationH = call.dilationW = c.dilation;
  if constexpr (requires { call.groups; }) call.o = c.o, call.groups = c.groups;
  return call;
}

// The operand of that index after runs on 1, 2 and 5 threads, which must have the same bits.
template <typename Call>
std::vector<float> resultOf(const Call& call, std::vector<Argument> arguments, size_t index) {
  if constexpr (requires { call.packedBytes(); })
    if (call.packedBytes() > 0) arguments.push_back(Argument::output<float>(call.packedBytes() / sizeof(float), NAN));
  EXPECT_EQ(runOnThreads(call, arguments).message(), "");
  return arguments[index].values<float>();
}

void expectNear(const std::vector<float>& values, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], tolerance) << "element " << i;
}

class Convolution : public ::testing::TestWithParam<Case> {};

TEST_P(Convolution, MatchesLoopsAndDoesNotDependOnThreads) {
  const Case c = GetParam();
  const int64_t inputs = c.c / c.groups, outputs = c.o / c.groups, oh = c.oh(), ow = c.ow();
  Numbers numbers(1);
  const std::vector<float> input = numbers.reals(c.n * c.c * c.h * c.w);
  const std::vector<float> filter = numbers.reals(c.o * inputs * c.kh * c.kw);
  const std::vector<float> gradient = numbers.reals(c.n * c.o * oh * ow);
  std::vector<double> result(gradient.size(), 0), inputGradient(input.size(), 0), filterGradient(filter.size(), 0);
  for (int64_t n = 0; n < c.n; ++n)
    for (int64_t o = 0; o < c.o; ++o)
      for (int64_t y = 0; y < oh; ++y)
        for (int64_t x = 0; x < ow; ++x)
          for (int64_t channel = 0; channel < inputs; ++channel)
            for (int64_t i = 0; i < c.kh; ++i)
              for (int64_t j = 0; j < c.kw; ++j) {
                const int64_t row = y * c.stride - c.pad + i * c.dilation,
                              column = x * c.stride - c.pad + j * c.dilation;
                if (row < 0 || row >= c.h || column < 0 || column >= c.w) continue;
                const int64_t from = ((n * c.c + o / outputs * inputs + channel) * c.h + row) * c.w + column;
                const int64_t with = ((o * inputs + channel) * c.kh + i) * c.kw + j;
                const int64_t to = ((n * c.o + o) * oh + y) * ow + x;
                result[to] += double(input[from]) * filter[with];
                inputGradient[from] += double(gradient[to]) * filter[with];
                filterGradient[with] += double(gradient[to]) * input[from];
              }
  auto out = [](size_t count) { return Argument::output<float>(count, NAN); };
  const double most = double(inputs) * c.kh * c.kw, sums = double(c.n) * oh * ow;
  for (const bool last : layouts()) {
    SCOPED_TRACE(last ? "channels last" : "channels first");
    auto images = [&](const std::vector<float>& values) {
      return Argument::input(last ? turned(values, c.c, c.h * c.w, true) : values);
    };
    auto results = [&](const std::vector<float>& values) {
      return Argument::input(last ? turned(values, c.o, oh * ow, true) : values);
    };
    std::vector<float> made =
        resultOf(windowCall<plan::ConvCall>(c, last), {images(input), Argument::input(filter), out(result.size())}, 2);
    expectNear(last ? turned(made, c.o, oh * ow, false) : made, result, 1e-4 + 1e-7 * most);
    made = resultOf(windowCall<plan::ConvGradInputCall>(c, last),
                    {results(gradient), Argument::input(filter), out(input.size())}, 2);
    expectNear(last ? turned(made, c.c, c.h * c.w, false) : made, inputGradient, 1e-4 + 1e-7 * most);
    made = resultOf(windowCall<plan::ConvGradFilterCall>(c, last),
                    {images(input), results(gradient), out(filter.size())}, 2);
    expectNear(made, filterGradient, 3e-4 + 1e-7 * sums);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Convolution,
                         ::testing::Values(Case{1, 1, 1, 1, 1, 1, 1}, Case{2, 3, 17, 13, 5, 3, 3, 1, 1},
                                           Case{2, 8, 30, 30, 16, 5, 5, 2, 2}, Case{1, 16, 9, 9, 32, 1, 1},
                                           Case{3, 6, 11, 12, 9, 3, 2, 2, 1, 2, 3},
                                           Case{2, 4, 8, 8, 4, 3, 3, 1, 1, 1, 4}, Case{1, 40, 12, 70, 8, 3, 3, 1, 0},
                                           Case{2, 2, 1, 50, 3, 1, 7, 3, 0}));

// By what oneDNN has primitives for, and how their work is cut: the stem and strided 1x1 convolutions of residual
// networks, channels that fill no register, depthwise convolutions and other groups; filters that are cut into pieces,
// the last of fewer channels; sums over images in parts, the last of fewer images.
INSTANTIATE_TEST_SUITE_P(Networks, Convolution,
                         ::testing::Values(Case{3, 3, 22, 22, 64, 7, 7, 2, 3}, Case{5, 32, 9, 9, 48, 1, 1, 2},
                                           Case{3, 17, 7, 6, 33, 3, 3, 1, 1}, Case{2, 16, 12, 12, 80, 3, 3, 1, 2, 2},
                                           Case{9, 32, 8, 8, 32, 3, 3, 1, 1, 1, 32},
                                           Case{3, 5, 9, 9, 5, 5, 5, 2, 2, 1, 5},
                                           Case{4, 32, 6, 6, 64, 3, 3, 1, 1, 1, 4}, Case{3, 200, 4, 4, 176, 3, 3, 1, 1},
                                           Case{2, 272, 3, 3, 256, 2, 2, 1, 1}, Case{7, 3, 40, 40, 40, 3, 3, 1, 1}));

class Pooling : public ::testing::TestWithParam<Case> {};

TEST_P(Pooling, TakesTheFirstMaximum) {
  const Case c = GetParam();
  Numbers numbers(2);
  std::vector<float> input(c.n * c.c * c.h * c.w);
  for (float& x : input) x = float(numbers.below(5));  // many ties
  const std::vector<float> gradient = numbers.reals(c.n * c.c * c.oh() * c.ow());
  std::vector<float> result(gradient.size()), inputGradient(input.size(), 0);
  std::vector<int64_t> indices(gradient.size());
  for (int64_t plane = 0; plane < c.n * c.c; ++plane)
    for (int64_t y = 0; y < c.oh(); ++y)
      for (int64_t x = 0; x < c.ow(); ++x) {
        int64_t best = -1;
        for (int64_t i = 0; i < c.kh; ++i)
          for (int64_t j = 0; j < c.kw; ++j) {
            const int64_t row = y * c.stride - c.pad + i * c.dilation, column = x * c.stride - c.pad + j * c.dilation;
            if (row < 0 || row >= c.h || column < 0 || column >= c.w) continue;
            const int64_t at = (plane * c.h + row) * c.w + column;
            if (best < 0 || input[at] > input[best]) best = at;
          }
        const int64_t to = (plane * c.oh() + y) * c.ow() + x;
        result[to] = best < 0 ? -INFINITY : input[best];
        indices[to] = best < 0 ? -1 : best - plane * c.h * c.w;
        if (best >= 0) inputGradient[best] += gradient[to];
      }
  const int64_t pixels = c.h * c.w, pooled = c.oh() * c.ow();
  for (const bool last : layouts()) {
    SCOPED_TRACE(last ? "channels last" : "channels first");
    auto arranged = [&](const auto& values, int64_t size) { return last ? turned(values, c.c, size, true) : values; };
    EXPECT_EQ(resultOf(windowCall<plan::MaxPoolCall>(c, last),
                       {Argument::input(arranged(input, pixels)), Argument::output<float>(result.size(), 9)}, 1),
              arranged(result, pooled));
    std::vector<Argument> arguments{Argument::input(arranged(input, pixels)),
                                    Argument::output<int64_t>(indices.size(), 9)};
    ASSERT_EQ(runOnThreads(windowCall<plan::MaxPoolIndicesCall>(c, last), arguments).message(), "");
    EXPECT_EQ(arguments[1].values<int64_t>(), arranged(indices, pooled));
    EXPECT_EQ(resultOf(windowCall<plan::MaxPoolGradCall>(c, last),
                       {Argument::input(arranged(input, pixels)), Argument::input(arranged(gradient, pooled)),
                        Argument::output<float>(input.size(), 9)},
                       2),
              arranged(inputGradient, pixels));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Pooling,
                         ::testing::Values(Case{2, 3, 8, 8, 1, 2, 2, 2}, Case{1, 2, 9, 7, 1, 3, 3, 2, 1},
                                           Case{2, 1, 10, 10, 1, 3, 2, 1, 0, 3}, Case{1, 1, 2, 2, 1, 1, 1, 3, 1},
                                           Case{2, 300, 5, 6, 1, 3, 3, 2, 1}));

TEST(PoolingNan, IsAMaximum) {
  const Case c{1, 1, 2, 2, 1, 2, 2};
  for (const bool last : layouts()) {
    const auto input = Argument::input(std::vector<float>{1, NAN, 3, NAN});
    std::vector<Argument> arguments{input, Argument::output<float>(1, 0)};
    ASSERT_TRUE(runCall(windowCall<plan::MaxPoolCall>(c, last), arguments).ok());
    EXPECT_TRUE(std::isnan(arguments[1].values<float>()[0]));
    arguments = {input, Argument::input(std::vector<float>{5}), Argument::output<float>(4, 9)};
    ASSERT_TRUE(runCall(windowCall<plan::MaxPoolGradCall>(c, last), arguments).ok());
    EXPECT_EQ(arguments[2].values<float>(), (std::vector<float>{0, 5, 0, 0}));
  }
}

}  // namespace
}  // namespace sheaf::testing
