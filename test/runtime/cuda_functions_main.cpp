// Where there is no GPU, one test is skipped, with the device's own words, and the others are not run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

// Why a plan cannot be opened; empty if it can.
std::string openError() {
  if (!testDevice()) return "no device library";
  PlanBuilder builder;
  builder.buffer(128);
  return testDevice()->open(builder.plan, {}).status().message();
}

constexpr char kNone[] = "there is no GPU to run on";

TEST(Gpu, IsThere) {
  const std::string error = openError();
  if (error.find(kNone) != std::string::npos) GTEST_SKIP() << error;
  ASSERT_EQ(error, "");
}

}  // namespace
}  // namespace sheaf::testing

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (sheaf::testing::openError().find(sheaf::testing::kNone) != std::string::npos)
    testing::GTEST_FLAG(filter) = "Gpu.IsThere";
  return RUN_ALL_TESTS();
}
