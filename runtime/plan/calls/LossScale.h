// update_scalar and advance_loss_scale: step scalars that follow from the state of a loss scale, and the state's
// change.
#pragma once

#include "runtime/plan/CallSchema.h"
#include "runtime/plan/calls/LossScaleState.h"

namespace sheaf::plan {

inline constexpr Choice<UpdateScalar> kUpdateScalars[] = {
    {UpdateScalar::kLossScale, "loss_scale"},
    {UpdateScalar::kLrOverBiasCorrection, "lr_over_bias_correction"},
    {UpdateScalar::kBiasCorrection, "bias_correction"},
    {UpdateScalar::kSqrtBiasCorrection, "sqrt_bias_correction"},
    {UpdateScalar::kStep, "step"},
    {UpdateScalar::kFirstStep, "first_step"}};

struct UpdateScalarCall {
  UpdateScalar kind = UpdateScalar::kLossScale;
  double value = 0;

  bool hasRate() const { return kind == UpdateScalar::kLrOverBiasCorrection; }
};

template <>
struct Schema<UpdateScalarCall> {
  using Call = UpdateScalarCall;
  static constexpr std::string_view kName = "update_scalar";
  static constexpr std::string_view kText =
      "A step scalar that depends on the number of updates, or the loss scale. With t = state[2] + 1: state[0], rate / "
      "(1 - value^t), 1 - value^t, its root, t, or 1 where t is 1, else 0; in f64, powers by squaring, rounded to f32.";
  static constexpr auto kFields = std::tuple{
      defaulted("kind", &Call::kind, kUpdateScalars, "which of them"),
      required("value", &Call::value, RealRange{0, 1}, "0 where the kind takes none"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"state", READ, Width::kF64, [](const Call&) { return kLossScaleState; }, "[3]"},
      {"result", WRITE, Width::kF32, [](const Call&) { return int64_t{1}; }, "[1]"},
      {"rate", READ, Width::kF32, [](const Call&) { return int64_t{1}; }, "[1]",
       [](const Call& c) { return c.hasRate(); }},
  });
};

struct AdvanceLossScaleCall : LossScaleRule {};

template <>
struct Schema<AdvanceLossScaleCall> {
  using Call = AdvanceLossScaleCall;
  static constexpr std::string_view kName = "advance_loss_scale";
  static constexpr std::string_view kText =
      "The state after a step. Where scalars[1] is not 0: one update and one good step more, and after `interval` good "
      "steps the scale times growth, unless that overflows, and no good steps. Else the scale times backoff, but at "
      "least floor, and no good steps. The scale is rounded to f32. With interval 0 the number of updates changes "
      "alone.";
  static constexpr auto kFields = std::tuple{
      required("interval", &LossScaleRule::interval, kStrides, "good steps until the scale grows; 0: it is fixed"),
      required("growth", &LossScaleRule::growth, RealRange{1, 1e38}, "factor of the scale"),
      required("backoff", &LossScaleRule::backoff, RealRange{0, 1}, "factor of the scale"),
      required("floor", &LossScaleRule::floor, RealRange{0, 1e38}, "least scale"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"scalars", READ, Width::kF32, [](const Call&) { return int64_t{2}; }, "[2], of gradient_norm"},
      {"state", READ_WRITE, Width::kF64, [](const Call&) { return kLossScaleState; }, "[3]"},
  });
};

}  // namespace sheaf::plan
