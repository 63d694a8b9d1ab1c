#include "runtime/exec/StepScalars.h"

#include <cmath>

#include "runtime/plan/Schedules.h"

namespace sheaf::exec {

std::vector<double> learningRates(const plan::Training& training, int64_t step) {
  const double factor = plan::scheduleFactor(training.schedule(), step), rate = training.learning_rate();
  if (training.groups().empty()) return {rate * factor};
  std::vector<double> rates;
  for (const plan::ParameterGroup& group : training.groups())
    rates.push_back((group.has_learning_rate() ? group.learning_rate() : rate) * factor);
  return rates;
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

std::vector<float> stepScalars(const plan::Plan& plan, std::span<const double> rates, int64_t update) {
  std::vector<float> values;
  for (const plan::StepScalar& scalar : plan.scalars())
    values.push_back(static_cast<float>(valueOf(scalar, rates[scalar.group()], update)));
  return values;
}

}  // namespace sheaf::exec
