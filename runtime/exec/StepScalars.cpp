#include "runtime/exec/StepScalars.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "runtime/base/Text.h"
#include "runtime/plan/Words.h"

namespace sheaf::exec {

double learningRate(const plan::Training& training, int64_t step) {
  const plan::Schedule& schedule = training.schedule();
  double rate = training.learning_rate();
  if (step < schedule.warmup()) return rate * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup());
  if (schedule.kind() != plan::Schedule::COSINE) return rate;
  double progress =
      static_cast<double>(step - schedule.warmup()) / static_cast<double>(schedule.steps() - schedule.warmup());
  double share = 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return rate * (schedule.min() + (1 - schedule.min()) * share);
}

static double valueOf(const plan::StepScalar& scalar, double learningRate, int64_t update) {
  const double v = scalar.value(), t = static_cast<double>(update);
  switch (scalar.kind()) {
    case plan::StepScalar::LR_TIMES:
      return learningRate * v;
    case plan::StepScalar::ONE_MINUS_LR_TIMES:
      return 1 - learningRate * v;
    case plan::StepScalar::LR_OVER_BIAS_CORRECTION:
      return learningRate / (1 - std::pow(v, t));
    case plan::StepScalar::BIAS_CORRECTION:
      return 1 - std::pow(v, t);
    case plan::StepScalar::SQRT_BIAS_CORRECTION:
      return std::sqrt(1 - std::pow(v, t));
    case plan::StepScalar::STEP:
      return t;
    case plan::StepScalar::FIRST_STEP:
      return update == 1 ? 1 : 0;
    case plan::StepScalar::CONSTANT:
    case plan::StepScalar::MAX_NORM:
    default:
      return v;
  }
}

std::vector<float> stepScalars(const plan::Plan& plan, double learningRate, int64_t update) {
  std::vector<float> values;
  for (const plan::StepScalar& scalar : plan.scalars())
    values.push_back(static_cast<float>(valueOf(scalar, learningRate, update)));
  return values;
}

Expected<plan::Schedule> parseSchedule(const std::string& text) {
  plan::Schedule schedule;
  size_t colon = text.find(':');
  std::optional<plan::Schedule::Kind> kind = plan::valueOf<plan::Schedule::Kind>(text.substr(0, colon));
  if (!kind)
    return Status::error(
        cat("learning-rate schedule '", text, "': expected constant or cosine:warmup=W,steps=S,min=M"));
  schedule.set_kind(*kind);
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
      return Status::error(cat("learning-rate schedule '", text, "': '", item,
                               "' is not one of warmup=STEPS, steps=STEPS, min=FRACTION"));
  }
  if (schedule.kind() == plan::Schedule::COSINE && schedule.steps() <= schedule.warmup())
    return Status::error(cat("learning-rate schedule '", text, "': cosine needs steps=S, more than its warmup"));
  return schedule;
}

}  // namespace sheaf::exec
