// Skips everything where there is no GPU, with the device's own words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

class Gpu : public ::testing::Environment {
 public:
  void SetUp() override {
    ASSERT_NE(testDevice(), nullptr);
    PlanBuilder builder;
    builder.buffer(128);
    auto contexts = testDevice()->open(builder.plan, {});
    if (contexts.ok()) return;
    ASSERT_THAT(contexts.status().message(), ::testing::HasSubstr("there is no GPU to run on"));
    GTEST_SKIP() << contexts.status().message();
  }
};

const auto* const kGpu = ::testing::AddGlobalTestEnvironment(new Gpu);

}  // namespace
}  // namespace sheaf::testing
