// Loss scales as text, and what a plan's must be.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/calls/LossScaleState.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Reads "none", a number (a fixed scale), or "dynamic[:init=65536,growth=2,interval=2000,backoff=0.5,floor=1]".
Expected<std::optional<LossScale>> parseLossScale(const std::string& text);
// What parseLossScale reads back to the same scale; settings at their defaults are left out.
std::string lossScaleText(const LossScale& scale);
// For the help of an option.
std::string lossScaleSyntax();

// Whether all settings are in range and fit together.
Status checkLossScale(const LossScale& scale);

// Whether the scale changes.
inline bool isDynamic(const LossScale& scale) {
  return scale.interval() > 0;
}
// What the scale does not fall below.
inline double leastOf(const LossScale& scale) {
  return isDynamic(scale) ? scale.floor() : scale.initial();
}
// The rule of the call advance_loss_scale.
LossScaleRule ruleOf(const LossScale& scale);

}  // namespace sheaf::plan
