// The state of a loss scale, what follows from it, and how it changes: the same bits on every device. The state is
// three f64: the loss scale, the good steps since it last changed, and the number of updates.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define SHEAF_EVERYWHERE __host__ __device__
#else
#define SHEAF_EVERYWHERE
#endif

namespace sheaf::plan {

inline constexpr int64_t kLossScaleState = 3;

// With t = updates + 1, the number of the update that this step applies unless it is skipped.
enum class UpdateScalar {
  kLossScale,             // the loss scale
  kLrOverBiasCorrection,  // rate / (1 - value^t)
  kBiasCorrection,        // 1 - value^t
  kSqrtBiasCorrection,    // sqrt(1 - value^t)
  kStep,                  // t
  kFirstStep,             // 1 if t is 1, else 0
};

// As the message LossScale of plan.proto.
struct LossScaleRule {
  int64_t interval = 0;  // 0: the scale is fixed
  double growth = 1, backoff = 1, floor = 0;
};

// value^exponent by squaring.
SHEAF_EVERYWHERE inline double powerBySquaring(double value, uint64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, value *= value)
    if (exponent & 1) result *= value;
  return result;
}

// A step scalar. `rate` is read for kLrOverBiasCorrection only.
SHEAF_EVERYWHERE inline float updateScalar(UpdateScalar kind, double value, const double* state, const float* rate) {
  const uint64_t t = static_cast<uint64_t>(state[2]) + 1;
  switch (kind) {
    case UpdateScalar::kLossScale:
      return static_cast<float>(state[0]);
    case UpdateScalar::kLrOverBiasCorrection:
      return static_cast<float>(static_cast<double>(*rate) / (1 - powerBySquaring(value, t)));
    case UpdateScalar::kBiasCorrection:
      return static_cast<float>(1 - powerBySquaring(value, t));
    case UpdateScalar::kSqrtBiasCorrection:
      return static_cast<float>(sqrt(1 - powerBySquaring(value, t)));
    case UpdateScalar::kStep:
      return static_cast<float>(t);
    case UpdateScalar::kFirstStep:
      return t == 1 ? 1.0f : 0.0f;
  }
  return 0;
}

// The state after a step: the rule of PyTorch's GradScaler.update(), with a floor.
SHEAF_EVERYWHERE inline void advanceLossScale(const LossScaleRule& rule, bool finite, double* state) {
  if (finite) state[2] += 1;
  if (rule.interval == 0) return;
  if (!finite) {
    const double less = static_cast<float>(state[0] * rule.backoff);
    state[0] = less > rule.floor ? less : rule.floor;
    state[1] = 0;
    return;
  }
  state[1] += 1;
  if (state[1] < static_cast<double>(rule.interval)) return;
  constexpr float kLargest = 3.4028234663852886e38f;
  const float more = static_cast<float>(state[0] * rule.growth);
  if (more <= kLargest) state[0] = more;
  state[1] = 0;
}

}  // namespace sheaf::plan

#undef SHEAF_EVERYWHERE
