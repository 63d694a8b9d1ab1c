// sum_partials, cumsum, square_sum and gradient_norm: sums in a fixed order.
#pragma once

#include "runtime/plan/CallSchema.h"

namespace sheaf::plan {

struct SumPartialsCall {
  int64_t p = 0, c = 0;
  ElementType type = F32;
};

template <>
struct Schema<SumPartialsCall> {
  using Call = SumPartialsCall;
  static constexpr std::string_view kName = "sum_partials";
  static constexpr std::string_view kText = "Adds rows in order.";
  static constexpr auto kFields = std::tuple{
      required("p", &Call::p, kSizes, "rows"),
      required("c", &Call::c, kSizes, "columns"),
      defaulted("type", &Call::type, kFloatTypes, "of the destination"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"source", READ, Width::kF32,
       [](const Call& c) {
         return product({c.p, c.c});
       },
       "[p, c]"},
      {"destination", WRITE, Width::kType, [](const Call& c) { return c.c; }, "[c]"},
  });
};

struct CumSumCall {
  int64_t outer = 0, n = 0, inner = 0;
  bool exclusive = false, reverse = false;
  ElementType type = F32;
};

template <>
struct Schema<CumSumCall> {
  using Call = CumSumCall;
  static constexpr std::string_view kName = "cumsum";
  static constexpr std::string_view kText = "Running sums along a dimension; those of integers wrap.";
  static constexpr auto kFields = std::tuple{
      required("outer", &Call::outer, kSizes, "the sizes before the dimension, multiplied"),
      required("n", &Call::n, kSizes, "the dimension's size"),
      required("inner", &Call::inner, kSizes, "the sizes after it, multiplied"),
      flag("exclusive", &Call::exclusive, "a sum leaves out its own element"),
      flag("reverse", &Call::reverse, "from the dimension's end"),
      defaulted("type", &Call::type, kArithmeticTypes, "of both operands"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"source", READ, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.n, c.inner});
       },
       "[outer, n, inner]"},
      {"destination", WRITE, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.n, c.inner});
       },
       "[outer, n, inner]"},
  });
};

struct SquareSumCall {
  int64_t n = 0;
  ElementType type = F32;

  uint64_t deviceScratch() const;
};

template <>
struct Schema<SquareSumCall> {
  using Call = SquareSumCall;
  static constexpr std::string_view kName = "square_sum";
  static constexpr std::string_view kText = "The sum of squares in f64, by fixed blocks of 4,096 elements.";
  static constexpr auto kFields = std::tuple{
      required("n", &Call::n, Range{1, kMaxStride}, "elements"),
      defaulted("type", &Call::type, kFloatTypes, "of the source"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"source", READ, Width::kType, [](const Call& c) { return c.n; }, "[n]"},
      {"destination", WRITE, Width::kF64, [](const Call&) { return int64_t{1}; }, "[1]"},
  });
};

struct GradientNormCall {
  int64_t ranks = 0, buckets = 0;
  bool clip = false, scaled = false, judged = false;
};

template <>
struct Schema<GradientNormCall> {
  using Call = GradientNormCall;
  static constexpr std::string_view kName = "gradient_norm";
  static constexpr std::string_view kText =
      "The root of the sum over buckets, then ranks, divided by the loss scale. scalars[0] is what gradients are "
      "multiplied by: the scale that clips, 1 without clip, divided by the loss scale; scalars[1] is 1 if the norm is "
      "finite and so is the loss, where it is judged, else 0.";
  static constexpr auto kFields = std::tuple{
      required("ranks", &Call::ranks, kSizes, "rows of partials"),
      required("buckets", &Call::buckets, kSizes, "columns of partials"),
      flag("clip", &Call::clip, "gradients are scaled so that their norm is at most max_norm"),
      flag("scaled", &Call::scaled, "the loss was multiplied by loss_scale"),
      flag("judged", &Call::judged, "a loss that is not finite makes scalars[1] 0, too"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"partials", READ, Width::kF64,
       [](const Call& c) {
         return product({c.ranks, c.buckets});
       },
       "[ranks, buckets]"},
      {"norm", WRITE, Width::kF64, [](const Call&) { return int64_t{1}; }, "[1]"},
      {"scalars", WRITE, Width::kF32, [](const Call&) { return int64_t{2}; }, "[2]"},
      {"max_norm", READ, Width::kF32, [](const Call&) { return int64_t{1}; }, "[1]",
       [](const Call& c) { return c.clip; }},
      {"loss_scale", READ, Width::kF32, [](const Call&) { return int64_t{1}; }, "[1]",
       [](const Call& c) { return c.scaled; }},
      {"loss", READ, Width::kF32, [](const Call&) { return int64_t{1}; }, "[1]",
       [](const Call& c) { return c.judged; }},
  });
};

}  // namespace sheaf::plan
