// update_scalar and advance_loss_scale against what docs/precision.md says of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

using plan::UpdateScalar;
using ::testing::ElementsAre;

float scalar(UpdateScalar kind, double value, double updates, double scale = 3) {
  const plan::UpdateScalarCall call{kind, value};
  std::vector<Argument> arguments{Argument::input(std::vector<double>{scale, 1, updates}),
                                  Argument::output<float>(1, NAN)};
  if (call.hasRate()) arguments.push_back(Argument::input(std::vector<float>{0.25f}));
  Status status = runCall(call, arguments);
  EXPECT_TRUE(status.ok()) << status.message();
  return arguments[1].values<float>()[0];
}

TEST(UpdateScalar, FollowsFromTheNumberOfUpdates) {
  // t is the number of the update to come.
  for (double updates : {0.0, 1.0, 2.0, 6.0, 99.0, 100000.0}) {
    const double t = updates + 1;
    for (double beta : {0.0, 0.9, 0.95, 0.999}) {
      const double correction = 1 - std::pow(beta, t);
      EXPECT_NEAR(scalar(UpdateScalar::kBiasCorrection, beta, updates), correction, 1e-6 * correction) << beta << t;
      EXPECT_NEAR(scalar(UpdateScalar::kSqrtBiasCorrection, beta, updates), std::sqrt(correction), 1e-7 + 1e-7 * t);
      EXPECT_NEAR(scalar(UpdateScalar::kLrOverBiasCorrection, beta, updates), 0.25 / correction, 1e-6 / correction);
    }
    EXPECT_EQ(scalar(UpdateScalar::kStep, 0, updates), static_cast<float>(t));
    EXPECT_EQ(scalar(UpdateScalar::kFirstStep, 0, updates), updates == 0 ? 1 : 0);
    EXPECT_EQ(scalar(UpdateScalar::kLossScale, 0, updates), 3);
  }
}

std::vector<double> advanced(const plan::LossScaleRule& rule, bool finite, std::vector<double> state) {
  std::vector<Argument> arguments{Argument::input(std::vector<float>{1, finite ? 1.0f : 0.0f}), Argument::inOut(state)};
  Status status = runCall(plan::AdvanceLossScaleCall{rule}, arguments);
  EXPECT_TRUE(status.ok()) << status.message();
  return arguments[1].values<double>();
}

TEST(AdvanceLossScale, GrowsAfterTheIntervalAndBacksOffToTheFloor) {
  const plan::LossScaleRule rule{.interval = 3, .growth = 4, .backoff = 0.5, .floor = 1};
  EXPECT_THAT(advanced(rule, true, {8, 0, 7}), ElementsAre(8, 1, 8));
  EXPECT_THAT(advanced(rule, true, {8, 1, 7}), ElementsAre(8, 2, 8));
  EXPECT_THAT(advanced(rule, true, {8, 2, 7}), ElementsAre(32, 0, 8));
  EXPECT_THAT(advanced(rule, false, {8, 2, 7}), ElementsAre(4, 0, 7));
  EXPECT_THAT(advanced(rule, false, {1.5, 0, 7}), ElementsAre(1, 0, 7));
  EXPECT_THAT(advanced(rule, false, {1, 0, 7}), ElementsAre(1, 0, 7));
  EXPECT_THAT(advanced(rule, true, {2e38, 2, 7}), ElementsAre(2e38, 0, 8)) << "an infinite scale is not taken";
  // The scale is an f32.
  EXPECT_THAT(advanced({.interval = 1, .growth = 1.1, .backoff = 0.5, .floor = 1}, true, {1, 0, 0}),
              ElementsAre(static_cast<double>(1.1f), 0, 1));
}

TEST(AdvanceLossScale, AFixedScaleCountsUpdates) {
  EXPECT_THAT(advanced({}, true, {100, 0, 7}), ElementsAre(100, 0, 8));
  EXPECT_THAT(advanced({}, false, {100, 0, 7}), ElementsAre(100, 0, 7));
}

}  // namespace
}  // namespace sheaf::testing
