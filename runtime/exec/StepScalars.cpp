#include "runtime/exec/StepScalars.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "runtime/base/Text.h"

namespace sheaf::exec {

double learningRate(const plan::Training& training, int64_t step) {
  const plan::Schedule& schedule = training.schedule();
  double rate = training.learning_rate();
  if (step < schedule.warmup()) return rate * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup());
  if (schedule.kind() != "cosine") return rate;
  double progress =
      static_cast<double>(step - schedule.warmup()) / static_cast<double>(schedule.steps() - schedule.warmup());
  double share = 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return rate * (schedule.min() + (1 - schedule.min()) * share);
}

std::vector<float> stepScalars(const plan::Plan& plan, double learningRate, int64_t update) {
  std::vector<float> values;
  double t = static_cast<double>(update);
  for (const plan::StepScalar& scalar : plan.scalars()) {
    std::string_view kind = scalar.kind();
    double v = scalar.value(), value = v;  // constant, max_norm
    if (kind == "lr")
      value = learningRate;
    else if (kind == "lr_times")
      value = learningRate * v;
    else if (kind == "one_minus_lr_times")
      value = 1 - learningRate * v;
    else if (kind == "lr_over_bias_correction")
      value = learningRate / (1 - std::pow(v, t));
    else if (kind == "bias_correction")
      value = 1 - std::pow(v, t);
    else if (kind == "sqrt_bias_correction")
      value = std::sqrt(1 - std::pow(v, t));
    else if (kind == "step")
      value = t;
    else if (kind == "first_step")
      value = update == 1 ? 1 : 0;
    values.push_back(static_cast<float>(value));
  }
  return values;
}

Expected<plan::Schedule> parseSchedule(const std::string& text) {
  plan::Schedule schedule;
  size_t colon = text.find(':');
  schedule.set_kind(text.substr(0, colon));
  if (schedule.kind() != "constant" && schedule.kind() != "cosine")
    return Status::error(
        cat("learning-rate schedule '", text, "': expected constant or cosine:warmup=W,steps=S,min=M"));
  std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    size_t equals = item.find('=');
    std::string name = item.substr(0, equals), value = equals == std::string::npos ? "" : item.substr(equals + 1);
    int64_t integer = 0;
    double real = 0;
    if (name == "warmup" && parseInteger(value, integer) && integer >= 0)
      schedule.set_warmup(integer);
    else if (name == "steps" && parseInteger(value, integer) && integer > 0)
      schedule.set_steps(integer);
    else if (name == "min" && parseReal(value, real) && real >= 0 && real <= 1)
      schedule.set_min(real);
    else
      return Status::error(
          cat("learning-rate schedule '", text, "': '", item, "' is none of warmup=STEPS, steps=STEPS, min=FRACTION"));
  }
  if (schedule.kind() == "cosine" && schedule.steps() <= schedule.warmup())
    return Status::error(cat("learning-rate schedule '", text, "': cosine needs steps=S, more than its warmup"));
  return schedule;
}

}  // namespace sheaf::exec
