#include "runtime/measure/LeastSquares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sheaf::measure {

namespace {

std::vector<double> fitWeighted(const std::vector<Sample>& samples, const std::vector<double>& weights) {
  const size_t n = samples.front().terms.size();
  // Every sample is divided by its seconds, every term by its largest value, so that all is of order one.
  std::vector<double> scale(n, 0);
  for (const Sample& sample : samples)
    for (size_t i = 0; i < n; ++i) scale[i] = std::max(scale[i], std::abs(sample.terms[i] / sample.seconds));
  std::vector<std::vector<double>> products(n, std::vector<double>(n, 0));
  std::vector<double> target(n, 0), result(n, 0);
  for (size_t s = 0; s < samples.size(); ++s)
    for (size_t i = 0; i < n; ++i) {
      if (scale[i] == 0) continue;
      const double a = weights[s] * samples[s].terms[i] / samples[s].seconds / scale[i];
      target[i] += a;
      for (size_t j = 0; j < n; ++j)
        if (scale[j] > 0) products[i][j] += a * (samples[s].terms[j] / samples[s].seconds / scale[j]);
    }
  // Coordinate descent on the normal equations converges for a convex problem with bounds.
  constexpr int kMaxSweeps = 100000;
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double moved = 0;
    for (size_t i = 0; i < n; ++i) {
      if (products[i][i] <= 0) continue;
      double gradient = -target[i];
      for (size_t j = 0; j < n; ++j) gradient += products[i][j] * result[j];
      const double next = std::max(result[i] - gradient / products[i][i], 0.0);
      moved = std::max(moved, std::abs(next - result[i]));
      result[i] = next;
    }
    if (moved < 1e-12) break;
  }
  for (size_t i = 0; i < n; ++i)
    if (scale[i] > 0) result[i] /= scale[i];
  return result;
}

}  // namespace

std::vector<double> fitNonNegative(const std::vector<Sample>& samples) {
  if (samples.empty()) return {};
  // Iteratively reweighted: an error beyond the tolerance counts in proportion, not squared (Huber's loss).
  constexpr int kRounds = 20;
  constexpr double kTolerance = 0.05;
  std::vector<double> weights(samples.size(), 1), fitted;
  for (int round = 0; round < kRounds; ++round) {
    fitted = fitWeighted(samples, weights);
    for (size_t s = 0; s < samples.size(); ++s) {
      double seconds = 0;
      for (size_t i = 0; i < fitted.size(); ++i) seconds += fitted[i] * samples[s].terms[i];
      weights[s] = kTolerance / std::max(std::abs(seconds / samples[s].seconds - 1), kTolerance);
    }
  }
  if (fitted[0] > 0) return fitted;
  std::vector<Sample> alone = samples;
  for (Sample& sample : alone) sample.terms.resize(1);
  fitted = fitWeighted(alone, std::vector<double>(samples.size(), 1));
  fitted.resize(samples.front().terms.size(), 0);
  return fitted;
}

}  // namespace sheaf::measure
