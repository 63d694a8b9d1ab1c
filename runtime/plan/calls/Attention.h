// attention and attention_grad: train.attention and its gradient.
#pragma once

#include "runtime/plan/CallSchema.h"
#include "runtime/plan/calls/HidingMask.h"

namespace sheaf::plan {

// What both share.
struct AttentionShape {
  int64_t b = 0, s = 0, t = 0, h = 0, g = 0, d = 0, e = 0;
  bool causal = false;
  int64_t window = 0;
  bool mask = false;
  int64_t maskB = 1, maskH = 1;
  int64_t queryRow = 0, keyRow = 0, valueRow = 0, resultRow = 0;
  double scale = 0;
  ElementType type = F32;

  // Elements of a token: of all heads of the query, the key, the value and the result.
  int64_t queryToken() const { return product({h, d}); }
  int64_t keyToken() const { return product({g, d}); }
  int64_t valueToken() const { return product({g, e}); }
  int64_t resultToken() const { return product({h, e}); }

  Status check() const;
  uint64_t packingBytes() const;
};

struct AttentionCall : AttentionShape {
  uint64_t scratchPerThread() const;
};

struct AttentionGradCall : AttentionShape {
  int64_t gradientRow = 0, queryGradientRow = 0, keyGradientRow = 0, valueGradientRow = 0;

  uint64_t scratchPerThread() const;
  uint64_t deviceScratch() const;
};

inline constexpr auto kAttentionFields = std::tuple{
    required("b", &AttentionShape::b, kSizes, "sequences"),
    required("s", &AttentionShape::s, kSizes, "queries of a sequence"),
    required("t", &AttentionShape::t, kSizes, "keys of a sequence"),
    required("h", &AttentionShape::h, kSizes, "query heads, a multiple of g"),
    required("g", &AttentionShape::g, kSizes, "key and value heads"),
    required("d", &AttentionShape::d, kSizes, "elements of a head of query and key"),
    required("e", &AttentionShape::e, kSizes, "elements of a head of value and result"),
    flag("causal", &AttentionShape::causal, "a query sees the keys up to its own place, counted from the last"),
    defaulted("window", &AttentionShape::window, Range{0, kMaxSize},
              "of causal attention: the keys that a query sees at most; 0: all"),
    flag("mask", &AttentionShape::mask, "a mask is added to the scores"),
    defaulted("mask_b", &AttentionShape::maskB, kSizes, "sequences of the mask: 1 or b"),
    defaulted("mask_h", &AttentionShape::maskH, kSizes, "heads of the mask: 1 or h"),
    required("query_row", &AttentionShape::queryRow, {[](const AttentionShape& c) { return c.queryToken(); }, "h * d"},
             "elements from one token of query to the next; heads are next to each other, then sequences"),
    required("key_row", &AttentionShape::keyRow, {[](const AttentionShape& c) { return c.keyToken(); }, "g * d"},
             "elements from one token of key to the next"),
    required("value_row", &AttentionShape::valueRow, {[](const AttentionShape& c) { return c.valueToken(); }, "g * e"},
             "elements from one token of value to the next"),
    required("result_row", &AttentionShape::resultRow,
             {[](const AttentionShape& c) { return c.resultToken(); }, "h * e"},
             "elements from one token of result to the next"),
    required("scale", &AttentionShape::scale, RealRange{-1e30, 1e30}, "scores are multiplied by it"),
    defaulted("type", &AttentionShape::type, kFloatTypes, "of all operands but log_sum_exp and mask, which are f32"),
};

// Elements of an operand with rows of tokens.
constexpr int64_t tokensSpan(const AttentionShape& c, int64_t tokens, int64_t row, int64_t width) {
  return rowsSpan(product({c.b, tokens}), row, width);
}
inline Runs tokenRuns(const AttentionShape& c, int64_t tokens, int64_t row, int64_t width) {
  return {{{product({c.b, tokens}), row}}, width};
}
constexpr int64_t logSumExpElements(const AttentionShape& c) {
  return product({c.b, c.h, c.s});
}

// The operands that both read.
template <typename Call>
inline constexpr OperandRow<Call> kQueryOperand{
    "query", READ, Width::kType, [](const Call& c) { return tokensSpan(c, c.s, c.queryRow, c.queryToken()); },
    "[b, s, h, d]"};
template <typename Call>
inline constexpr OperandRow<Call> kKeyOperand{"key", READ, Width::kType,
                                              [](const Call& c) { return tokensSpan(c, c.t, c.keyRow, c.keyToken()); },
                                              "[b, t, g, d]"};
template <typename Call>
inline constexpr OperandRow<Call> kValueOperand{
    "value", READ, Width::kType, [](const Call& c) { return tokensSpan(c, c.t, c.valueRow, c.valueToken()); },
    "[b, t, g, e]"};
template <typename Call>
inline constexpr OperandRow<Call> kMaskOperand{"mask",
                                               READ,
                                               Width::kF32,
                                               [](const Call& c) {
                                                 return product({c.maskB, c.maskH, c.s, c.t});
                                               },
                                               "[mask_b, mask_h, s, t]",
                                               [](const Call& c) { return c.mask; }};

template <>
struct Schema<AttentionCall> {
  using Call = AttentionCall;
  static constexpr std::string_view kName = "attention";
  static constexpr std::string_view kText =
      "result = softmax(scale query key^T + mask) value, and the logarithm of the sum of each query's exponentials; a "
      "query that sees no key has the result 0. If the largest number of the mask that a query sees is finite and "
      "-1000 or less, the logarithm is of scores less this number.";
  static_assert(kHidingMask == -1000);  // as the text says
  static constexpr auto kFields = kAttentionFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      kQueryOperand<Call>,
      kKeyOperand<Call>,
      kValueOperand<Call>,
      kMaskOperand<Call>,
      {"result", WRITE, Width::kType, [](const Call& c) { return tokensSpan(c, c.s, c.resultRow, c.resultToken()); },
       "[b, s, h, e]", nullptr, [](const Call& c) { return tokenRuns(c, c.s, c.resultRow, c.resultToken()); }},
      {"log_sum_exp", WRITE, Width::kF32, [](const Call& c) { return logSumExpElements(c); }, "[b, h, s]"},
  });
};

template <>
struct Schema<AttentionGradCall> {
  using Call = AttentionGradCall;
  static constexpr std::string_view kName = "attention_grad";
  static constexpr std::string_view kText = "The gradients of attention's query, key and value.";
  static constexpr auto kFields = std::tuple_cat(
      kAttentionFields,
      std::tuple{
          required("gradient_row", &Call::gradientRow, {[](const Call& c) { return c.resultToken(); }, "h * e"},
                   "elements from one token of gradient to the next"),
          required("query_gradient_row", &Call::queryGradientRow,
                   {[](const Call& c) { return c.queryToken(); }, "h * d"},
                   "elements from one token of query_gradient to the next"),
          required("key_gradient_row", &Call::keyGradientRow, {[](const Call& c) { return c.keyToken(); }, "g * d"},
                   "elements from one token of key_gradient to the next"),
          required("value_gradient_row", &Call::valueGradientRow,
                   {[](const Call& c) { return c.valueToken(); }, "g * e"},
                   "elements from one token of value_gradient to the next"),
      });
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      kQueryOperand<Call>,
      kKeyOperand<Call>,
      kValueOperand<Call>,
      {"result", READ, Width::kType, [](const Call& c) { return tokensSpan(c, c.s, c.resultRow, c.resultToken()); },
       "[b, s, h, e]"},
      {"log_sum_exp", READ, Width::kF32, [](const Call& c) { return logSumExpElements(c); }, "[b, h, s]"},
      {"gradient", READ, Width::kType, [](const Call& c) { return tokensSpan(c, c.s, c.gradientRow, c.resultToken()); },
       "[b, s, h, e]"},
      kMaskOperand<Call>,
      {"query_gradient", WRITE, Width::kType,
       [](const Call& c) { return tokensSpan(c, c.s, c.queryGradientRow, c.queryToken()); }, "[b, s, h, d]", nullptr,
       [](const Call& c) { return tokenRuns(c, c.s, c.queryGradientRow, c.queryToken()); }},
      {"key_gradient", WRITE, Width::kType,
       [](const Call& c) { return tokensSpan(c, c.t, c.keyGradientRow, c.keyToken()); }, "[b, t, g, d]", nullptr,
       [](const Call& c) { return tokenRuns(c, c.t, c.keyGradientRow, c.keyToken()); }},
      {"value_gradient", WRITE, Width::kType,
       [](const Call& c) { return tokensSpan(c, c.t, c.valueGradientRow, c.valueToken()); }, "[b, t, g, e]", nullptr,
       [](const Call& c) { return tokenRuns(c, c.t, c.valueGradientRow, c.valueToken()); }},
  });
};

}  // namespace sheaf::plan
