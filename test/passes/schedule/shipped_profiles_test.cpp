// The shipped profiles, and how a profile is found by name or path.
#include "passes/schedule/ShippedProfiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/runtime/TrainingPlan.h"

namespace sheaf::schedule {
namespace {

using profile::Profile;
using profile::Work;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ShippedProfiles, AreWholeAndReadBack) {
  for (const std::string& name : profileNames()) {
    Expected<Profile> profile = loadProfile(name);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    EXPECT_EQ(profile->name(), name);
    Expected<Profile> again = Profile::parse(json::write(profile->toJson()), "again");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(json::write(again->toJson()), json::write(profile->toJson()));
    EXPECT_EQ(json::write(profile->toJson()).find("\"source\":\"\""), std::string::npos)
        << name << ": a figure without source";
  }
}

TEST(ShippedProfiles, H100IsRealistic) {
  const Profile p = *loadProfile("h100x8");
  const Work large = profile::gemmWork(plan::BF16, 8192, 8192, 8192, 1, false, false);
  const double rate = large.flops / p.seconds(large);
  EXPECT_GT(rate, 0.68 * 989.4e12);
  EXPECT_LT(rate, 0.78 * 989.4e12);
  const double sent = 7.0 / 8 * (1ull << 34),
               linkRate = sent / p.seconds(profile::Transfer{plan::ALL_GATHER, 1ull << 34, 8});
  EXPECT_GT(linkRate, 0.99 * 360e9);
  EXPECT_LT(linkRate, 1.003 * 360e9);
  EXPECT_FALSE(p.withRanks(16).ok());
  EXPECT_TRUE(loadProfile("h100x64")->withRanks(4096).ok());
}

TEST(ShippedProfiles, LoadSaysWhatThereIs) {
  EXPECT_THAT(loadProfile("h100x9").status().message(),
              AllOf(HasSubstr("did you mean h100x8?"), HasSubstr("sheaf profile")));
  EXPECT_THAT(loadProfile("/nonexistent/p.json").status().message(), HasSubstr("/nonexistent/p.json"));
  testing::TemporaryFolder folder;
  EXPECT_THAT(loadProfile(folder.path()).status().message(), HasSubstr("is not a file"));
  testing::writeFile(folder / "empty.json", "");
  EXPECT_THAT(loadProfile(folder / "empty.json").status().message(), HasSubstr("empty.json"));
  testing::writeFile(folder / "p.json", json::write(loadProfile("h100x8")->toJson()));
  EXPECT_TRUE(loadProfile(folder / "p.json").ok());
}

}  // namespace
}  // namespace sheaf::schedule
