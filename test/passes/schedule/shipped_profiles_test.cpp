// The shipped profiles, and how a profile is found by name or path.
#include "passes/schedule/ShippedProfiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

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
  const Profile p = *loadProfile("h100");
  const Work large = profile::gemmWork(plan::BF16, 8192, 8192, 8192, 1, false, false);
  const double rate = large.flops / p.seconds(large);
  EXPECT_GT(rate, 0.68 * 989.4e12);
  EXPECT_LT(rate, 0.78 * 989.4e12);
  const double sent = 7.0 / 8 * (1ull << 34),
               linkRate = sent / p.seconds(profile::Transfer{plan::ALL_GATHER, 1ull << 34, 8});
  EXPECT_GT(linkRate, 0.99 * 360e9);
  EXPECT_LT(linkRate, 1.003 * 360e9);
}

// Attention is that of runtime/device/cuda/kernels, which has not been measured: mma.sync, and seven products of tiles
// in the backward pass where cuDNN computes five. So a third of cuDNN's rate at heads of 128, and 5/7 of a third.
TEST(ShippedProfiles, H100HasTheSpeedOfOurAttention) {
  const Profile p = *loadProfile("h100");
  auto rate = [&](int64_t keys, bool gradient) {
    const Work work = profile::attentionWork(plan::BF16, 16, 16, keys, keys, 128, 128, false, gradient);
    return work.flops / p.seconds(work);
  };
  // arXiv:2407.08608, fig. 5 and 6: cuDNN at 512 and 4k keys.
  for (auto [keys, forward, backward] : {std::tuple(512, 497e12, 305e12), std::tuple(4096, 609e12, 499e12)}) {
    EXPECT_NEAR(rate(keys, false) / forward, 1.0 / 3, 0.02) << keys;
    EXPECT_NEAR(rate(keys, true) / backward, 5.0 / 7 / 3, 0.02) << keys;
  }
}

// No kernel of attention is faster than a third of what products reach, and every figure says that it is an estimate.
TEST(ShippedProfiles, EstimateTheSpeedOfOurAttentionUntilItIsMeasured) {
  for (const std::string& name : profileNames()) {
    const Profile p = *loadProfile(name);
    if (!p.isOfGpus()) continue;
    for (bool gradient : {false, true}) {
      const Work work = profile::attentionWork(plan::BF16, 16, 16, 8192, 8192, 128, 128, false, gradient);
      const Work product = profile::gemmWork(plan::BF16, 8192, 8192, 8192, 1, false, false);
      EXPECT_LT(work.flops / p.seconds(work), product.flops / p.seconds(product) / 3) << name;
    }
    const json::Value written = p.toJson();
    const json::Array* attention =
        written.object()->find("compute")->array()->front().object()->find("attention")->array();
    ASSERT_EQ(attention->size(), 4u) << name;
    for (const json::Value& entry : *attention)
      EXPECT_THAT(*entry.object()->find("source")->string(), ::testing::StartsWith("estimate, not measured: ")) << name;
  }
}

TEST(ShippedProfiles, AreOfTypesOfMachines) {
  EXPECT_THAT(profileNames(), ::testing::UnorderedElementsAre("cpu", "h100", "a100", "rtx4090", "gb200"));
  for (const std::string& name : profileNames())
    for (int64_t ranks : {1, 2, 8, 64, 72, 144, 4096}) {
      const Expected<Profile> p = loadProfile(name)->withRanks(ranks);
      ASSERT_TRUE(p.ok()) << p.status().message();
      EXPECT_EQ(p->ranks(), ranks);
    }
  // 72 GPUs of a rack have no network between them, eight of a node neither.
  auto hops = [](const char* name, int64_t ranks) {
    return loadProfile(name)->seconds(profile::Transfer{plan::ALL_GATHER, 1, ranks});
  };
  EXPECT_LT(hops("gb200", 72), hops("h100", 72));
  EXPECT_GT(hops("gb200", 73), hops("gb200", 72) + 1e-6);
  EXPECT_GT(hops("h100", 9), hops("h100", 8) + 1e-6);
}

// So that `--offload` can be scheduled for all of them.
TEST(ShippedProfiles, KnowWhatOffloadCosts) {
  using plan::Transfer;
  for (const std::string& name : profileNames()) {
    const Profile p = *loadProfile(name);
    for (Transfer::Kind kind : {Transfer::TO_DEVICE, Transfer::TO_HOST, Transfer::READ_FILE, Transfer::WRITE_FILE})
      EXPECT_TRUE(p.knows(kind)) << name << " " << kind;
    EXPECT_TRUE(p.knowsHostUpdates()) << name;
    EXPECT_GT(p.hostBandwidth(), 0) << name;
    if (!p.isOfGpus()) continue;
    // An update cannot be faster than its bytes pass through the host's memory.
    EXPECT_LE(p.hostUpdates() * 28, p.hostBandwidth() * 1.001) << name;
  }
  // A GPU of a GB200 has half of its superchip's NVLink-C2C, more than PCIe 5.0 and less than a GPU of a GH200.
  const Profile gb200 = *loadProfile("gb200"), h100 = *loadProfile("h100");
  for (Transfer::Kind kind : {Transfer::TO_DEVICE, Transfer::TO_HOST}) {
    const double rate = double(1 << 30) / gb200.seconds(kind, 1 << 30);
    EXPECT_GT(rate, 2 * double(1 << 30) / h100.seconds(kind, 1 << 30));
    EXPECT_LT(rate, 225e9);
  }
}

TEST(ShippedProfiles, KeepTheirFormerNames) {
  const std::tuple<const char*, const char*, int64_t> former[] = {
      {"h100x8", "h100", 8}, {"h100x64", "h100", 64}, {"a100x8", "a100", 8}, {"rtx4090x8", "rtx4090", 8}};
  for (const auto& [before, now, ranks] : former) {
    const Expected<Profile> p = loadProfile(before);
    ASSERT_TRUE(p.ok()) << p.status().message();
    EXPECT_EQ(p->ranks(), ranks);
    EXPECT_EQ(json::write(p->toJson()), json::write(loadProfile(now)->withRanks(ranks)->toJson()));
  }
}

TEST(ShippedProfiles, LoadSaysWhatThereIs) {
  EXPECT_THAT(loadProfile("h1000").status().message(),
              AllOf(HasSubstr("did you mean h100?"), HasSubstr("sheaf profile")));
  EXPECT_THAT(loadProfile("/nonexistent/p.json").status().message(), HasSubstr("/nonexistent/p.json"));
  testing::TemporaryFolder folder;
  EXPECT_THAT(loadProfile(folder.path()).status().message(), HasSubstr("is a folder, not a regular file"));
  testing::writeFile(folder / "empty.json", "");
  EXPECT_THAT(loadProfile(folder / "empty.json").status().message(), HasSubstr("empty.json"));
  testing::writeFile(folder / "p.json", json::write(loadProfile("h100")->toJson()));
  EXPECT_TRUE(loadProfile(folder / "p.json").ok());
}

}  // namespace
}  // namespace sheaf::schedule
