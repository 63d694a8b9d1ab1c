// attention and attention_grad against plain loops in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

struct Case {
  int64_t b, s, t, h, g, d, e;
  bool causal = false;
  int64_t maskB = 0, maskH = 0;  // 0: no mask
  bool packed = false;           // query, key and value (and their gradients) side by side in one row
  int64_t window = 0;            // 0: none
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "b" << c.b << " s" << c.s << " t" << c.t << " h" << c.h << " g" << c.g << " d" << c.d << " e" << c.e
       << (c.causal ? " causal" : "") << (c.maskB ? " mask" : "") << (c.packed ? " packed" : "") << " window "
       << c.window;
}

// A [batch, tokens, heads, width] tensor and how its rows lie.
struct Tensor {
  int64_t tokens, heads, width, row, offset = 0;
  size_t at(int64_t batch, int64_t token, int64_t head, int64_t i) const {
    return offset + (batch * tokens + token) * row + head * width + i;
  }
};

struct Problem {
  explicit Problem(const Case& c)
      : c(c),
        query{c.s, c.h, c.d, c.h * c.d},
        key{c.t, c.g, c.d, c.g * c.d},
        value{c.t, c.g, c.e, c.g * c.e},
        result{c.s, c.h, c.e, c.h * c.e + 3} {
    if (c.packed) {
      query.row = key.row = value.row = c.h * c.d + c.g * c.d + c.g * c.e;
      key.offset = c.h * c.d;
      value.offset = key.offset + c.g * c.d;
    }
  }
  int64_t elements(const Tensor& tensor) const {
    return (c.b * tensor.tokens - 1) * tensor.row + tensor.heads * tensor.width;
  }
  bool sees(int64_t i, int64_t j) const {
    const int64_t behind = i + c.t - c.s - j;
    return !c.causal || (behind >= 0 && (c.window == 0 || behind < c.window));
  }

  Case c;
  Tensor query, key, value, result;
};

// Everything in double: probabilities, results and gradients of one head.
struct Reference {
  std::vector<double> result, logSumExp, queryGradient, keyGradient, valueGradient;
};

Reference reference(const Problem& p, const std::vector<float>& q, const std::vector<float>& k,
                    const std::vector<float>& v, const std::vector<float>& gradient, const std::vector<float>& mask,
                    double scale) {
  const Case& c = p.c;
  Reference r;
  r.result.assign(c.b * c.s * c.h * c.e, 0);
  r.logSumExp.assign(c.b * c.h * c.s, -INFINITY);
  r.queryGradient.assign(c.b * c.s * c.h * c.d, 0);
  r.keyGradient.assign(c.b * c.t * c.g * c.d, 0);
  r.valueGradient.assign(c.b * c.t * c.g * c.e, 0);
  for (int64_t b = 0; b < c.b; ++b)
    for (int64_t h = 0; h < c.h; ++h)
      for (int64_t i = 0; i < c.s; ++i) {
        const int64_t g = h / (c.h / c.g);
        std::vector<double> scores(c.t, -INFINITY), weights(c.t, 0), weightGradients(c.t, 0);
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < c.t; ++j) {
          if (!p.sees(i, j)) continue;
          double score = 0;
          for (int64_t x = 0; x < c.d; ++x) score += double(q[p.query.at(b, i, h, x)]) * k[p.key.at(b, j, g, x)];
          score *= scale;
          if (c.maskB) score += mask[(((c.maskB == 1 ? 0 : b) * c.maskH + (c.maskH == 1 ? 0 : h)) * c.s + i) * c.t + j];
          scores[j] = score;
          top = std::max(top, score);
        }
        if (top == -INFINITY) continue;
        for (int64_t j = 0; j < c.t; ++j) sum += weights[j] = std::exp(scores[j] - top);
        double delta = 0;
        for (int64_t j = 0; j < c.t; ++j) {
          weights[j] /= sum;
          for (int64_t x = 0; x < c.e; ++x) {
            r.result[((b * c.s + i) * c.h + h) * c.e + x] += weights[j] * v[p.value.at(b, j, g, x)];
            weightGradients[j] += double(gradient[p.result.at(b, i, h, x)]) * v[p.value.at(b, j, g, x)];
            r.valueGradient[((b * c.t + j) * c.g + g) * c.e + x] += weights[j] * gradient[p.result.at(b, i, h, x)];
          }
          delta += weights[j] * weightGradients[j];
        }
        r.logSumExp[(b * c.h + h) * c.s + i] = top + std::log(sum);
        for (int64_t j = 0; j < c.t; ++j) {
          const double scoreGradient = weights[j] * (weightGradients[j] - delta) * scale;
          for (int64_t x = 0; x < c.d; ++x) {
            r.queryGradient[((b * c.s + i) * c.h + h) * c.d + x] += scoreGradient * k[p.key.at(b, j, g, x)];
            r.keyGradient[((b * c.t + j) * c.g + g) * c.d + x] += scoreGradient * q[p.query.at(b, i, h, x)];
          }
        }
      }
  return r;
}

plan::AttentionGradCall gradientCall(const Problem& p, double scale) {
  const Case& c = p.c;
  plan::AttentionGradCall call;
  call.b = c.b, call.s = c.s, call.t = c.t, call.h = c.h, call.g = c.g, call.d = c.d, call.e = c.e;
  call.causal = c.causal, call.window = c.window, call.scale = scale;
  call.mask = c.maskB > 0;
  if (call.mask) call.maskB = c.maskB, call.maskH = c.maskH;
  call.queryRow = call.queryGradientRow = p.query.row;
  call.keyRow = call.keyGradientRow = p.key.row;
  call.valueRow = call.valueGradientRow = p.value.row;
  call.resultRow = call.gradientRow = p.result.row;
  return call;
}
plan::AttentionCall attentionCall(const Problem& p, double scale) {
  return {gradientCall(p, scale)};
}

void expectTensor(const char* what, const Problem& p, const Tensor& tensor, const std::vector<float>& values,
                  const std::vector<double>& expected, double tolerance) {
  size_t i = 0;
  for (int64_t b = 0; b < p.c.b; ++b)
    for (int64_t token = 0; token < tensor.tokens; ++token)
      for (int64_t head = 0; head < tensor.heads; ++head)
        for (int64_t x = 0; x < tensor.width; ++x, ++i)
          ASSERT_NEAR(values[tensor.at(b, token, head, x)], expected[i], tolerance)
              << what << " of batch " << b << ", token " << token << ", head " << head << ", element " << x;
}

class Attention : public ::testing::TestWithParam<Case> {};

// Runs forward and backward. With `packed`, all of query, key, value lie in one buffer, and so do their gradients.
TEST_P(Attention, MatchesLoopsAndDoesNotDependOnThreads) {
  const Case c = GetParam();
  Problem p(c);
  // Unpacked here: each tensor is an operand of its own that starts at the tensor's first element.
  const int64_t shift[3] = {p.query.offset, p.key.offset, p.value.offset};
  Numbers numbers(1);
  const double scale = 1 / std::sqrt(double(c.d));
  std::vector<float> all = numbers.reals(c.b * std::max(c.s, c.t) * (p.query.row + p.key.row + p.value.row));
  for (float& x : all) x *= 3;
  const std::vector<float> mask = [&] {
    std::vector<float> values = numbers.reals(c.maskB * c.maskH * c.s * c.t);
    for (float& x : values) x = x < -0.5f ? -INFINITY : x;
    return values;
  }();
  const std::vector<float> gradient = numbers.reals(p.elements(p.result));
  const Reference r = reference(p, all, all, all, gradient, mask, scale);

  auto part = [&](int which, const Tensor& tensor) {
    return std::vector<float>(all.begin() + shift[which], all.begin() + shift[which] + p.elements(tensor));
  };
  std::vector<Argument> forward{Argument::input(part(0, p.query)), Argument::input(part(1, p.key)),
                                Argument::input(part(2, p.value))};
  if (c.maskB) forward.push_back(Argument::input(mask));
  forward.push_back(Argument::output<float>(p.elements(p.result), NAN));
  forward.push_back(Argument::output<float>(c.b * c.h * c.s, NAN));
  const size_t out = forward.size() - 2;
  Tensor plain[3] = {p.query, p.key, p.value};
  for (Tensor& tensor : plain) tensor.offset = 0;

  std::vector<Argument> first = forward;
  ASSERT_EQ(runOnThreads(attentionCall(p, scale), first).message(), "");
  std::vector<Argument> firstGradients{first[0],
                                       first[1],
                                       first[2],
                                       Argument::input(first[out].values<float>()),
                                       Argument::input(first[out + 1].values<float>()),
                                       Argument::input(gradient)};
  if (c.maskB) firstGradients.push_back(first[3]);
  for (const Tensor& tensor : plain) firstGradients.push_back(Argument::output<float>(p.elements(tensor), NAN));
  ASSERT_EQ(runOnThreads(gradientCall(p, scale), firstGradients).message(), "");
  expectTensor("result", p, p.result, first[out].values<float>(), r.result, 1e-5);
  std::vector<float> logSumExp = first[out + 1].values<float>();
  for (size_t i = 0; i < logSumExp.size(); ++i) {
    if (std::isinf(r.logSumExp[i]))
      ASSERT_EQ(logSumExp[i], -INFINITY);
    else
      ASSERT_NEAR(logSumExp[i], r.logSumExp[i], 3e-6 * (1 + std::abs(r.logSumExp[i])));
  }
  const size_t gradients = firstGradients.size() - 3;
  const double tolerance = 2e-5;
  expectTensor("query gradient", p, plain[0], firstGradients[gradients].values<float>(), r.queryGradient, tolerance);
  expectTensor("key gradient", p, plain[1], firstGradients[gradients + 1].values<float>(), r.keyGradient, tolerance);
  expectTensor("value gradient", p, plain[2], firstGradients[gradients + 2].values<float>(), r.valueGradient,
               tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    ::testing::Values(
        Case{1, 1, 1, 1, 1, 1, 1}, Case{2, 64, 64, 4, 4, 32, 32, true},
        Case{1, 257, 257, 2, 2, 16, 16, true, 0, 0, true}, Case{2, 65, 300, 2, 1, 8, 24},
        Case{1, 300, 70, 2, 2, 8, 8, true},  // the first queries see nothing
        Case{1, 70, 300, 4, 2, 8, 8, true}, Case{2, 33, 47, 4, 2, 5, 3, false, 2, 4},
        Case{2, 66, 66, 2, 2, 7, 7, true, 1, 1, true}, Case{2, 31, 31, 3, 3, 4, 4, false, 1, 3},
        Case{1, 130, 520, 6, 2, 12, 12, false, 1, 1},
        // Wide heads: other tiles on a GPU.
        Case{1, 70, 90, 2, 1, 128, 100, true}, Case{1, 66, 66, 1, 1, 128, 128, true},
        Case{1, 50, 70, 1, 1, 200, 256, true, 1, 1}, Case{2, 40, 40, 1, 1, 64, 64},
        Case{1, 130, 140, 2, 2, 64, 64, true, 0, 0, true},
        // Windows: of a key, within a tile, over several, with a mask, wider than all.
        Case{1, 70, 70, 2, 1, 8, 8, true, 0, 0, false, 1}, Case{2, 300, 300, 4, 2, 16, 16, true, 0, 0, true, 17},
        Case{1, 520, 520, 1, 1, 8, 8, true, 0, 0, false, 150}, Case{1, 70, 300, 2, 2, 8, 12, true, 1, 2, false, 64},
        Case{1, 300, 70, 1, 1, 8, 8, true, 0, 0, false, 33}, Case{1, 200, 200, 2, 1, 128, 100, true, 0, 0, false, 90},
        Case{1, 65, 65, 1, 1, 4, 4, true, 0, 0, false, 1000}));

// One query over five keys, of which the mask hides some.
std::vector<float> attend(std::vector<float> mask, std::vector<float> value, std::vector<float> query = {1, 1}) {
  const int64_t t = value.size();
  Problem p({1, 1, t, 1, 1, 2, 1, false, 1, 1});
  std::vector<Argument> arguments{Argument::input(query),         Argument::input(std::vector<float>(2 * t, 0.5f)),
                                  Argument::input(value),         Argument::input(mask),
                                  Argument::output<float>(1, 77), Argument::output<float>(1, 77)};
  Status status = runCall(attentionCall(p, 1), arguments);
  EXPECT_TRUE(status.ok()) << status.message();
  return {arguments[4].values<float>()[0], arguments[5].values<float>()[0]};
}

TEST(AttentionMask, HiddenKeysCountForNothing) {
  const float hidden = -INFINITY, lowest = std::numeric_limits<float>::lowest();
  EXPECT_NEAR(attend({0, hidden, 0}, {1, 100, 3})[0], 2, 1e-6);
  EXPECT_NEAR(attend({0, lowest, 0}, {1, 100, 3})[0], 2, 1e-6);
  // Nothing is seen: zero, whose log-sum-exp is minus infinity.
  EXPECT_EQ(attend({hidden, hidden}, {1, 2}), (std::vector<float>{0, -INFINITY}));
  // The largest negative numbers hide only where another key is left, as in PyTorch.
  EXPECT_NEAR(attend({lowest, lowest}, {1, 3})[0], 2, 1e-6);
}

struct Gradients {
  std::vector<float> logSumExp, query, key, value;
};

Gradients gradientsOf(const Problem& p, std::vector<std::vector<float>> operands, const std::vector<float>& mask,
                      const std::vector<float>& gradient, double scale) {
  std::vector<Argument> forward;
  for (const auto& operand : operands) forward.push_back(Argument::input(operand));
  forward.push_back(Argument::input(mask));
  forward.push_back(Argument::output<float>(p.elements(p.result), NAN));
  forward.push_back(Argument::output<float>(p.c.b * p.c.h * p.c.s, NAN));
  EXPECT_EQ(runCall(attentionCall(p, scale), forward, {.threads = 2}).message(), "");
  const std::vector<float> logSumExp = forward[5].values<float>();
  std::vector<Argument> backward{forward[0],
                                 forward[1],
                                 forward[2],
                                 Argument::input(forward[4].values<float>()),
                                 Argument::input(logSumExp),
                                 Argument::input(gradient),
                                 forward[3]};
  for (const auto& operand : operands) backward.push_back(Argument::output<float>(operand.size(), NAN));
  EXPECT_EQ(runCall(gradientCall(p, scale), backward, {.threads = 2}).message(), "");
  return {logSumExp, backward[7].values<float>(), backward[8].values<float>(), backward[9].values<float>()};
}

// Every third query sees no key but for a finite number that hides them all: its weights are those without the number,
// and its log-sum-exp is relative to it. Of others some keys are hidden.
TEST(AttentionMask, RowsThatAFiniteNumberHidesHaveGradients) {
  const Case shapes[] = {{2, 5, 70, 2, 1, 8, 5, false, 2, 1},
                         {1, 66, 66, 2, 2, 16, 16, true, 1, 2},
                         {1, 70, 300, 2, 1, 8, 8, true, 1, 1, false, 33},
                         {1, 9, 530, 1, 1, 4, 4, false, 1, 1},
                         {1, 5, 90, 1, 1, 100, 128, true, 1, 1},
                         {1, 5, 40, 1, 1, 256, 200, false, 1, 1}};
  for (const Case& c : shapes)
    for (float low : {std::numeric_limits<float>::lowest(), -1e9f, -1e8f, -1e6f, -1e4f, -2000.0f})
      // Sums with a large number are rounded: all scores of such a query are equal here, by the query or by the keys.
      for (bool equalKeys : {false, true}) {
        std::ostringstream name;
        PrintTo(c, &name);
        SCOPED_TRACE(name.str() + " low " + std::to_string(low) + (equalKeys ? " equal keys" : ""));
        const Problem p(c);
        Numbers numbers(7);
        std::vector<float> query = numbers.reals(p.elements(p.query)), key = numbers.reals(p.elements(p.key));
        const std::vector<float> value = numbers.reals(p.elements(p.value)),
                                 gradient = numbers.reals(p.elements(p.result));
        if (equalKeys) std::fill(key.begin(), key.end(), 0.25f);
        for (size_t i = 0; i < query.size(); ++i)
          if (equalKeys)
            query[i] = std::round(query[i] * 8) / 8;  // sums are exact
          else if (i / p.query.row % c.s % 3 == 1)
            query[i] = 0;
        std::vector<float> mask(c.maskB * c.maskH * c.s * c.t), plain(mask.size());
        for (size_t i = 0; i < mask.size(); ++i) {
          const int64_t row = i / c.t % c.s, column = i % c.t;
          const bool hidden = row % 3 == 1 || (row % 3 == 2 && column != row + c.t - c.s);
          mask[i] = hidden ? low : 0.0f;
          plain[i] = row % 3 == 1 ? 0.0f : mask[i];
          // Some keys are hidden twice.
          if (row % 3 == 1 && column % 4 == 3) mask[i] = plain[i] = -INFINITY;
        }
        const double scale = 0.5;
        const Reference r = reference(p, query, key, value, gradient, plain, scale);
        const Gradients g = gradientsOf(p, {query, key, value}, mask, gradient, scale);
        for (size_t i = 0; i < g.logSumExp.size() && !equalKeys; ++i)
          ASSERT_NEAR(g.logSumExp[i], r.logSumExp[i], 2e-5) << "log-sum-exp " << i;
        const double tolerance = 2e-5;
        expectTensor("query gradient", p, p.query, g.query, r.queryGradient, tolerance);
        expectTensor("key gradient", p, p.key, g.key, r.keyGradient, tolerance);
        expectTensor("value gradient", p, p.value, g.value, r.valueGradient, tolerance);
        if (HasFatalFailure()) return;
      }
}

// In 16 bits: one hidden query over 64 equal keys, whose weights are 1/64 exactly.
TEST(AttentionMask, RowsThatAFiniteNumberHidesHaveGradientsIn16Bits) {
  const int64_t keys = 64;
  const Problem p({1, 1, keys, 1, 1, 8, 8, false, 1, 1});
  for (plan::ElementType type : {plan::BF16, plan::F16})
    for (float low : {std::numeric_limits<float>::lowest(), -1e9f, -65504.0f, -1e4f}) {
      SCOPED_TRACE(std::to_string(type) + " " + std::to_string(low));
      const uint16_t one = type == plan::F16 ? 0x3c00 : 0x3f80, part = type == plan::F16 ? 0x2400 : 0x3c80;  // 1, 1/64
      const std::vector<uint16_t> row(8, one), rows(keys * 8, one);
      plan::AttentionGradCall call = gradientCall(p, 0.5);
      call.type = type;
      call.resultRow = call.gradientRow = 8;
      std::vector<Argument> forward{Argument::input(row),
                                    Argument::input(rows),
                                    Argument::input(rows),
                                    Argument::input(std::vector<float>(keys, low)),
                                    Argument::output<uint16_t>(8, 0x7fc0),
                                    Argument::output<float>(1, NAN)};
      ASSERT_EQ(runCall(plan::AttentionCall{call}, forward, {.threads = 2}).message(), "");
      EXPECT_EQ(forward[4].values<uint16_t>(), row);
      std::vector<Argument> backward{forward[0],
                                     forward[1],
                                     forward[2],
                                     Argument::input(forward[4].values<uint16_t>()),
                                     Argument::input(forward[5].values<float>()),
                                     Argument::input(row),
                                     forward[3]};
      for (int64_t count : {int64_t(8), keys * 8, keys * 8})
        backward.push_back(Argument::output<uint16_t>(count, 0x7fc0));
      ASSERT_EQ(runCall(call, backward, {.threads = 2}).message(), "");
      EXPECT_EQ(backward[9].values<uint16_t>(), std::vector<uint16_t>(keys * 8, part));
    }
}

TEST(AttentionMask, NanPropagates) {
  EXPECT_TRUE(std::isnan(attend({0, NAN, 0}, {1, 2, 3})[0]));
  EXPECT_TRUE(std::isnan(attend({0, 0, 0}, {1, NAN, 3})[0]));
  EXPECT_TRUE(std::isnan(attend({0, 0, 0}, {1, 2, 3}, {NAN, 1})[0]));
  EXPECT_TRUE(std::isnan(attend({0, INFINITY, 0}, {1, 2, 3})[0]));
}

}  // namespace
}  // namespace sheaf::testing
