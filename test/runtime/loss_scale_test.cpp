// Loss scales as text.
#include "runtime/plan/LossScale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

TEST(LossScale, TextGoesThereAndBack) {
  for (const char* text : {"dynamic", "1024", "0.5", "dynamic:init=1024",
                           "dynamic:init=3.5,growth=1.5,interval=7,backoff=0.25,floor=0.125"}) {
    auto scale = plan::parseLossScale(text);
    ASSERT_TRUE(scale.ok() && *scale) << scale.status().message();
    EXPECT_TRUE(plan::checkLossScale(**scale).ok());
    EXPECT_EQ(plan::lossScaleText(**scale), text);
  }
  EXPECT_EQ(plan::lossScaleText(**plan::parseLossScale("dynamic:init=65536,floor=1")), "dynamic");
  auto none = plan::parseLossScale("none");
  EXPECT_TRUE(none.ok() && !*none);
}

TEST(LossScale, DefaultsAreThoseOfPyTorch) {
  const plan::LossScale scale = **plan::parseLossScale("dynamic");
  EXPECT_EQ(scale.initial(), 65536);
  EXPECT_EQ(scale.growth(), 2);
  EXPECT_EQ(scale.interval(), 2000);
  EXPECT_EQ(scale.backoff(), 0.5);
  EXPECT_EQ(scale.floor(), 1);
  EXPECT_TRUE(plan::isDynamic(scale));
  const plan::LossScale fixed = **plan::parseLossScale("128");
  EXPECT_FALSE(plan::isDynamic(fixed));
  EXPECT_EQ(plan::leastOf(fixed), 128);
  EXPECT_EQ(plan::leastOf(scale), 1);
}

TEST(LossScale, ErrorsNameTheSetting) {
  for (const auto& [text, error] : std::vector<std::pair<const char*, const char*>>{
           {"", "expected none, a number or dynamic"},
           {"Dynamic", "expected none, a number or dynamic"},
           {"0", "a fixed scale must be from 1e-30 to 1e38"},
           {"-2", "a fixed scale must be from 1e-30 to 1e38"},
           {"dynamic:", "dynamic has no ''"},
           {"dynamic:scale=2", "dynamic has no 'scale': it takes init, growth, interval, backoff and floor"},
           {"dynamic:init", "init must be a number"},
           {"dynamic:init=x", "init must be a number"},
           {"dynamic:init=1e39", "init must be a number from 1e-30 to 1e38"},
           {"dynamic:growth=0.5", "growth must be a number of at least 1"},
           {"dynamic:interval=1.5", "interval must be a number of steps"},
           {"dynamic:interval=0", "interval must be a number of steps"},
           {"dynamic:backoff=0", "backoff must be a number between 0 and 1"},
           {"dynamic:backoff=1", "backoff must be a number between 0 and 1"},
           {"dynamic:floor=0", "floor must be a number"},
           {"dynamic:init=2,floor=4", "floor must be at most init"},
           {"dynamic:init=2,init=2", "'init' is given twice"}}) {
    auto scale = plan::parseLossScale(text);
    ASSERT_FALSE(scale.ok()) << text;
    EXPECT_THAT(scale.status().message(), HasSubstr(error)) << text;
  }
  plan::LossScale odd;
  odd.set_initial(2);
  odd.set_growth(2);
  EXPECT_FALSE(plan::checkLossScale(odd).ok()) << "a growth without an interval";
}

}  // namespace
}  // namespace sheaf::testing
