// Cases of softmax, norms, attention, cross entropy, dropout and random numbers.
#include <cmath>

#include "test/ir/OpCase.h"

namespace sheaf::test {
namespace {

// Softmax of one row by the definition: the inputs are small.
Values softmaxRow(const double* row, size_t n) {
  Values p;
  double sum = 0;
  for (size_t j = 0; j < n; ++j) sum += std::exp(row[j]);
  for (size_t j = 0; j < n; ++j) p.push_back(std::exp(row[j]) / sum);
  return p;
}

OpCase softmax(bool logarithm) {
  std::string op = logarithm ? "log_softmax" : "softmax";
  return {op,
          "",
          {real("2x3x4", 101)},
          "%r = train." + op + " %a0 : tensor<2x3x4xf64>",
          "tensor<2x3x4xf64>",
          [=](const std::vector<Values>& in) {
            Values out;
            for (size_t r = 0; r < 6; ++r)
              for (double p : softmaxRow(&in[0][r * 4], 4)) out.push_back(logarithm ? std::log(p) : p);
            return out;
          }};
}

// Variance as the mean of squares less the square of the mean, unlike the evaluator's.
Values normRows(const Values& x, const Values& scale, const Values* bias, size_t n, double epsilon, bool centre) {
  Values out;
  for (size_t r = 0; r < x.size() / n; ++r) {
    double mean = 0, squares = 0;
    for (size_t j = 0; j < n; ++j) {
      mean += x[r * n + j] / double(n);
      squares += x[r * n + j] * x[r * n + j] / double(n);
    }
    if (!centre) mean = 0;
    for (size_t j = 0; j < n; ++j)
      out.push_back((x[r * n + j] - mean) * std::pow(squares - mean * mean + epsilon, -0.5) * scale[j] +
                    (bias ? (*bias)[j] : 0));
  }
  return out;
}

std::vector<OpCase> normCases() {
  return {
      {"layer_norm",
       "",
       {real("2x3x4", 102), real("4", 103), real("4", 104)},
       "%r = train.layer_norm %a0, %a1, %a2 epsilon 1.0e-2 : (tensor<2x3x4xf64>, tensor<4xf64>, tensor<4xf64>) -> "
       "tensor<2x3x4xf64>",
       "tensor<2x3x4xf64>",
       [](const std::vector<Values>& in) { return normRows(in[0], in[1], &in[2], 4, 1e-2, true); }},
      {"layer_norm",
       "no_bias",
       {real("5x3", 105), real("3", 106)},
       "%r = train.layer_norm %a0, %a1 epsilon 1.0e-5 : (tensor<5x3xf64>, tensor<3xf64>) -> tensor<5x3xf64>",
       "tensor<5x3xf64>",
       [](const std::vector<Values>& in) { return normRows(in[0], in[1], nullptr, 3, 1e-5, true); }},
      {"rms_norm",
       "",
       {real("2x3x4", 107), real("4", 108)},
       "%r = train.rms_norm %a0, %a1 epsilon 1.0e-2 : (tensor<2x3x4xf64>, tensor<4xf64>) -> tensor<2x3x4xf64>",
       "tensor<2x3x4xf64>",
       [](const std::vector<Values>& in) { return normRows(in[0], in[1], nullptr, 4, 1e-2, false); }},
  };
}

// Batch norm of [N, C, inner] by the definition, with the variance as the mean of squares less the square of the mean.
// The results, then the means, then the variances.
Values batchNorm(const std::vector<Values>& in, size_t channels, size_t inner, double epsilon) {
  const Values &x = in[0], &scale = in[1], &bias = in[2];
  const double count = double(x.size() / channels);
  Values out(x.size()), means(channels, 0), variances(channels, 0);
  for (size_t k = 0; k < x.size(); ++k) {
    means[k / inner % channels] += x[k] / count;
    variances[k / inner % channels] += x[k] * x[k] / count;
  }
  for (size_t c = 0; c < channels; ++c) variances[c] -= means[c] * means[c];
  for (size_t k = 0; k < x.size(); ++k) {
    const size_t c = k / inner % channels;
    out[k] = (x[k] - means[c]) * std::pow(variances[c] + epsilon, -0.5) * scale[c] + bias[c];
  }
  out.insert(out.end(), means.begin(), means.end());
  out.insert(out.end(), variances.begin(), variances.end());
  return out;
}

OpCase batchNormCase(const std::string& variant, const std::string& shape, const std::string& channels, size_t inner) {
  const std::string x = "tensor<" + shape + "xf64>", vector = "tensor<" + channels + "xf64>";
  return {"batch_norm",
          variant,
          {real(shape, 115), real(channels, 116), real(channels, 117)},
          "%r, %mean, %variance = train.batch_norm %a0, %a1, %a2 epsilon 1.0e-2 : (" + x + ", " + vector + ", " +
              vector + ") -> (" + x + ", " + vector + ", " + vector + ")",
          x,
          [=](const std::vector<Values>& in) {
            Values all = batchNorm(in, std::stoul(channels), inner, 1e-2);
            all.resize(in[0].size());
            return all;
          }};
}

OpCase batchNormLastCase() {
  OpCase same = batchNormCase("channels_last", "3x2x4", "2", 4);
  same.body =
      "%x = train.transpose %a0 [0, 2, 1] : tensor<3x2x4xf64> -> tensor<3x4x2xf64>\n"
      "%y, %mean, %variance = train.batch_norm %x, %a1, %a2 epsilon 1.0e-2 {channels_last} : (tensor<3x4x2xf64>, "
      "tensor<2xf64>, tensor<2xf64>) -> (tensor<3x4x2xf64>, tensor<2xf64>, tensor<2xf64>)\n"
      "%r = train.transpose %y [0, 2, 1] : tensor<3x4x2xf64> -> tensor<3x2x4xf64>";
  return same;
}

// The moments, which have no gradient.
OpCase batchMomentsCase() {
  return {"batch_norm",
          "moments",
          {data("3x2x4", "f64", numbers(24, 118)), data("2", "f64", {1, 2}), data("2", "f64", {3, 4})},
          "%y, %mean, %variance = train.batch_norm %a0, %a1, %a2 epsilon 1.0e-2 : (tensor<3x2x4xf64>, tensor<2xf64>, "
          "tensor<2xf64>) -> (tensor<3x2x4xf64>, tensor<2xf64>, tensor<2xf64>)\n"
          "%r = train.concat %mean, %variance axis 0 : (tensor<2xf64>, tensor<2xf64>) -> tensor<4xf64>",
          "tensor<4xf64>",
          [](const std::vector<Values>& in) {
            Values all = batchNorm(in, 2, 4, 1e-2);
            return Values(all.end() - 4, all.end());
          }};
}

// Attention with the scores written out: B = 2, S, T, H, G, D = 3, E = 2.
Values attention(const std::vector<Values>& in, size_t S, size_t T, size_t H, size_t G, bool causal, size_t maskHeads,
                 size_t window) {
  const size_t B = 2, D = 3, E = 2;
  Values out;
  for (size_t b = 0; b < B; ++b)
    for (size_t i = 0; i < S; ++i)
      for (size_t h = 0; h < H; ++h) {
        size_t g = h * G / H;
        Values weights;
        double total = 0;
        for (size_t j = 0; j < T; ++j) {
          double score = 0;
          for (size_t d = 0; d < D; ++d)
            score += in[0][((b * S + i) * H + h) * D + d] * in[1][((b * T + j) * G + g) * D + d];
          score *= 0.5;
          if (maskHeads) score += in[3][((maskHeads == 1 ? 0 : h) * S + i) * T + j];
          bool visible = !causal || (j + S <= i + T && (window == 0 || j + S + window > i + T));
          weights.push_back(visible ? std::exp(score) : 0);
          total += weights.back();
        }
        for (size_t e = 0; e < E; ++e) {
          double sum = 0;
          for (size_t j = 0; j < T; ++j) sum += weights[j] * in[2][((b * T + j) * G + g) * E + e];
          out.push_back(total == 0 ? 0 : sum / total);
        }
      }
  return out;
}

OpCase attentionCase(const std::string& variant, size_t S, size_t T, size_t H, size_t G, bool causal, size_t maskHeads,
                     size_t window = 0) {
  auto shape = [](size_t rows, size_t heads, size_t depth) {
    return "2x" + std::to_string(rows) + "x" + std::to_string(heads) + "x" + std::to_string(depth);
  };
  std::vector<Input> inputs{real(shape(S, H, 3), 111), real(shape(T, G, 3), 112), real(shape(T, G, 2), 113)};
  std::string types = inputs[0].type() + ", " + inputs[1].type() + ", " + inputs[2].type(), mask;
  if (maskHeads) {
    std::string m = "1x" + std::to_string(maskHeads) + "x" + std::to_string(S) + "x" + std::to_string(T);
    inputs.push_back(data(m, "f64", numbers(countOf(m), 114)));
    types += ", " + inputs[3].type();
    mask = " mask %a3";
  }
  std::string result = "tensor<" + shape(S, H, 2) + "xf64>";
  std::string lse = "tensor<2x" + std::to_string(H) + "x" + std::to_string(S) + "xf32>";
  return {"attention",
          variant,
          inputs,
          "%r, %lse = train.attention %a0, %a1, %a2" + mask + " scale 5.0e-1" +
              (window   ? " {causal, window = " + std::to_string(window) + "}"
               : causal ? " {causal}"
                        : "") +
              " : (" + types + ") -> (" + result + ", " + lse + ")",
          result,
          [=](const std::vector<Values>& in) { return attention(in, S, T, H, G, causal, maskHeads, window); }};
}

// The gradient op alone, of one query and two keys with D = E = 1, worked out by hand: scores q k, p their softmax,
// dv_j = p_j g, ds_j = p_j (g v_j - g o).
//
// `hidden`: a mask of the lowest number for both keys makes the scores equal; the logarithm is relative to it.
OpCase attentionGradCase(bool hidden) {
  const double q = 0.7, k0 = 0.3, k1 = -1.1, v0 = 2, v1 = -0.5, g = 1.3;
  const double p0 = hidden ? 0.5 : 1 / (1 + std::exp(q * (k1 - k0))), p1 = 1 - p0, o = p0 * v0 + p1 * v1;
  const double lse = hidden ? std::log(2) : std::log(std::exp(q * k0) + std::exp(q * k1));
  const double s0 = p0 * (g * v0 - g * o), s1 = p1 * (g * v1 - g * o);
  std::vector<Input> inputs{data("1x1x1x1", "f64", {q}),      data("1x2x1x1", "f64", {k0, k1}),
                            data("1x2x1x1", "f64", {v0, v1}), data("1x1x1x1", "f64", {o}),
                            data("1x1x1", "f32", {lse}),      data("1x1x1x1", "f64", {g})};
  if (hidden) inputs.push_back(data("1x1x1x2", "f64", {-3.4028234663852886e38, -3.4028234663852886e38}));
  return {"attention_grad",
          hidden ? "hidden" : "",
          inputs,
          std::string("%dq, %dk, %dv = train.attention_grad %a0, %a1, %a2, %a3, %a4, %a5") +
              (hidden ? " mask %a6" : "") + R"( scale 1.0
               : (tensor<1x1x1x1xf64>, tensor<1x2x1x1xf64>, tensor<1x2x1x1xf64>, tensor<1x1x1x1xf64>, tensor<1x1x1xf32>,
                  tensor<1x1x1x1xf64>)" +
              (hidden ? ", tensor<1x1x1x2xf64>" : "") +
              R"() -> (tensor<1x1x1x1xf64>, tensor<1x2x1x1xf64>, tensor<1x2x1x1xf64>)
             %r = train.concat %dq, %dk, %dv axis 1
               : (tensor<1x1x1x1xf64>, tensor<1x2x1x1xf64>, tensor<1x2x1x1xf64>) -> tensor<1x5x1x1xf64>)",
          "tensor<1x5x1x1xf64>",
          [=](const std::vector<Values>&) {
            return Values{s0 * k0 + s1 * k1, s0 * q, s1 * q, p0 * g, p1 * g};
          }};
}

OpCase crossEntropy(const std::string& variant, Values labels, const std::string& attributes, double ignored) {
  return {"cross_entropy",
          variant,
          {real("4x3", 115), data("4x1", "i64", labels)},
          "%r, %lse = train.cross_entropy %a0, %a1" + attributes +
              " : (tensor<4x3xf64>, tensor<4x1xi64>) -> (tensor<4x1xf64>, tensor<4x1xf64>)",
          "tensor<4x1xf64>",
          [=](const std::vector<Values>& in) {
            Values out;
            for (size_t r = 0; r < 4; ++r)
              out.push_back(in[1][r] == ignored ? 0 : -std::log(softmaxRow(&in[0][r * 3], 3)[size_t(in[1][r])]));
            return out;
          }};
}

// Equal logits so large that the log-sum-exp is rounded to their maximum.
OpCase largeLogits(const std::string& op, const std::string& body, double value, Values gradient) {
  OpCase c{op,   "large_logits",    {given("2x2", {1e18, 1e18, -1e18, -1e18})},
           body, "tensor<2x1xf64>", [value](const std::vector<Values>&) { return Values{value, value}; }};
  c.gradients = {std::move(gradient)};
  return c;
}

// Philox 4x32-10 written again, with 64-bit words of the counter and the key: an element's word, by its definition.
uint64_t wordOf(uint64_t seed, uint64_t element, uint64_t node, uint64_t step) {
  uint64_t low = element / 4, high = step << 32 | node, key = seed;
  const uint64_t mask = 0xFFFFFFFF;
  for (int round = 0; round < 10; ++round) {
    uint64_t left = 0xD2511F53ull * (low & mask), right = 0xCD9E8D57ull * (high & mask);
    uint64_t first = (right >> 32) ^ (low >> 32) ^ (key & mask), third = (left >> 32) ^ (high >> 32) ^ (key >> 32);
    low = (right & mask) << 32 | first;
    high = (left & mask) << 32 | third;
    key = ((key & mask) + 0x9E3779B9) % (mask + 1) | ((key >> 32) + 0xBB67AE85) % (mask + 1) << 32;
  }
  uint64_t words[] = {low & mask, low >> 32, high & mask, high >> 32};
  return words[element % 4];
}

OpCase dropout() {
  return {"dropout",
          "",
          {real("6x3", 116)},
          "%r = train.dropout %a0 ratio 2.5e-1 node 7 : tensor<6x3xf64>",
          "tensor<6x3xf64>",
          [](const std::vector<Values>& in) {
            Values out;
            for (size_t k = 0; k < in[0].size(); ++k)
              out.push_back(double(wordOf(0, k, 7, 1)) / 4294967296.0 >= 0.25 ? in[0][k] / 0.75 : 0);
            return out;
          }};
}

OpCase randomUniform() {
  return {"random_uniform",
          "",
          {data("2x3", "i64", {0, 0, 0, 0, 0, 0})},
          "%u = train.random_uniform like %a0 node 5 : tensor<2x3xi64> -> tensor<2x3xf32>\n"
          "%r = train.cast %u : tensor<2x3xf32> -> tensor<2x3xf64>",
          "tensor<2x3xf64>",
          [](const std::vector<Values>&) {
            Values out;
            for (size_t k = 0; k < 6; ++k)
              out.push_back((std::floor(double(wordOf(0, k, 5, 1)) / 512) + 0.5) / 8388608);
            return out;
          }};
}

}  // namespace

std::vector<OpCase> compositeCases() {
  std::vector<OpCase> all = normCases();
  all.push_back(batchNormCase("vectors", "5x3", "3", 1));
  all.push_back(batchNormCase("sequences", "2x3x4", "3", 4));
  all.push_back(batchNormCase("images", "2x3x2x3", "3", 6));
  all.push_back(batchNormCase("volumes", "2x2x2x1x3", "2", 6));
  all.push_back(batchNormCase("one_sample", "1x2x3x2", "2", 6));
  all.push_back(batchNormCase("one_channel", "4x1x3", "1", 3));
  all.push_back(batchMomentsCase());
  all.push_back(batchNormLastCase());
  all.push_back(softmax(false));
  all.push_back(softmax(true));
  all.push_back(attentionCase("", 3, 3, 2, 2, false, 0));
  all.push_back(attentionCase("causal", 3, 3, 2, 2, true, 0));
  all.push_back(attentionCase("causal_longer_keys", 2, 4, 2, 1, true, 0));
  // The first query sees no key at all.
  all.push_back(attentionCase("causal_shorter_keys", 3, 2, 2, 1, true, 0));
  all.push_back(attentionCase("window", 4, 4, 2, 2, true, 0, 2));
  all.push_back(attentionCase("window_longer_keys", 2, 5, 2, 1, true, 1, 3));
  all.push_back(attentionCase("grouped_masked", 3, 4, 4, 2, false, 1));
  all.push_back(attentionCase("mask_per_head", 3, 4, 4, 2, false, 4));
  all.push_back(attentionGradCase(false));
  all.push_back(attentionGradCase(true));
  all.push_back(crossEntropy("", {2, 0, 1, 1}, "", -1));
  all.push_back(crossEntropy("ignore", {2, -100, 1, -100}, " {ignore_index = -100 : i64}", -100));
  all.push_back(crossEntropy("ignore_a_class", {2, 0, 1, 0}, " {ignore_index = 0 : i64}", 0));
  all.push_back(largeLogits("cross_entropy",
                            "%l = train.constant dense<0> : tensor<2x1xi64>\n%r, %s = train.cross_entropy %a0, %l : "
                            "(tensor<2x2xf64>, tensor<2x1xi64>) -> (tensor<2x1xf64>, tensor<2x1xf64>)",
                            std::log(2), {-0.5, 0.5, -0.5, 0.5}));
  all.push_back(
      largeLogits("log_softmax",
                  "%s = train.log_softmax %a0 : tensor<2x2xf64>\n%r = train.slice %s starts [0, 0] sizes [2, 1] "
                  "steps [1, 1] : tensor<2x2xf64> -> tensor<2x1xf64>",
                  -std::log(2), {0.5, -0.5, 0.5, -0.5}));
  all.push_back(dropout());
  all.push_back(randomUniform());
  return all;
}

}  // namespace sheaf::test
