// The floor of a model's step on a machine, compared with the bound of a plan's instructions.
#include "passes/schedule/Floor.h"

#include <gtest/gtest.h>

#include "passes/schedule/Bound.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::schedule {
namespace {

using profile::Profile;
using testing::TrainingPlan;

// A machine of round figures: 1e9 flop/s, 1e8 bytes/s of memory at best, 1e6 bytes/s of link.
Profile machine(int64_t ranks) {
  Expected<Profile> profile = Profile::parse(R"({"sheaf_profile": 1, "name": "round", "ranks": 4,
    "memory": {"bytes": 1000000, "source": ""},
    "compute": [{"overhead": {"seconds": 1e-9, "source": ""},
      "kernels": {"bandwidth": [[100, 1e7], [10000, 1e8]], "operations": 1e12, "source": ""},
      "moves": {"bandwidth": 1e7, "source": ""},
      "gemm": [{"type": "f32", "rate": 1e9, "half": [1, 0, 0], "source": ""}],
      "attention": [{"type": "f32", "rate": 1e8, "source": ""}],
      "convolution": {"part": 0.5, "source": ""}}],
    "collectives": [{"op": "any", "latency": 1e-6, "bandwidth": 1e6, "source": ""}],
    "slowdown": {"value": 0, "source": ""}})",
                                             "round.json");
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return *profile->withRanks(ranks);
}

plan::Plan floored(int64_t ranks, int stage) {
  TrainingPlan made(ranks, stage, 8);
  *made.plan.mutable_floor() = made.floor();
  return made.plan;
}

TEST(Floor, IsWorkAtTheBestRates) {
  const Floor floor = *floorOf(floored(4, 3), machine(4));
  EXPECT_DOUBLE_EQ(floor.products, 512 / 1e9);                  // [2, 128] x [128, 1]
  EXPECT_DOUBLE_EQ(floor.state, 290 / 1e8);                     // 58 elements, 20 bytes each, on four ranks
  EXPECT_DOUBLE_EQ(floor.communication, 2 * 232 * 0.75 / 1e6);  // gradients and parameters, all but the own part
  EXPECT_DOUBLE_EQ(floor.seconds, floor.communication);
  EXPECT_STREQ(floorByName(floor.by), "communication");
}

TEST(Floor, KeepsRowsAndScalesShardsOnOtherRanks) {
  const Floor alone = *floorOf(floored(4, 3), machine(1));
  EXPECT_DOUBLE_EQ(alone.products, 512 / 1e9);
  EXPECT_DOUBLE_EQ(alone.state, 4 * 290 / 1e8);
  EXPECT_EQ(alone.communication, 0);
  EXPECT_STREQ(floorByName(alone.by), "state");
  // Whole state does not change with the number of ranks.
  EXPECT_DOUBLE_EQ(floorOf(floored(4, 0), machine(2))->state, 4 * 290 / 1e8);
}

// Four ranks on two nodes, whose ranks receive 1e6 bytes a second within nodes; a node sends 4e5 bytes a second.
TEST(Floor, CountsTheNetworkOfANode) {
  Expected<Profile> profile = Profile::parse(R"({"sheaf_profile": 1, "name": "nodes", "ranks_per_node": 2,
    "memory": {"bytes": 1000000, "source": ""},
    "compute": [{"overhead": {"seconds": 1e-9, "source": ""},
      "kernels": {"bandwidth": 1e8, "operations": 1e12, "source": ""}, "moves": {"bandwidth": 1e7, "source": ""},
      "gemm": [{"type": "f32", "rate": 1e9, "half": [1, 0, 0], "source": ""}],
      "attention": [{"type": "f32", "rate": 1e8, "source": ""}], "convolution": {"part": 0.5, "source": ""}}],
    "collectives": [{"op": "any", "latency": 1e-6, "bandwidth": 1e6, "source": ""},
      {"op": "any", "network": true, "latency": 1e-6, "bandwidth": 3e5, "network_share": 2e5, "source": ""}],
    "slowdown": {"value": 0, "source": ""}})",
                                             "nodes.json");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  const Profile machine = *profile->withRanks(4);
  const plan::Plan plan = floored(4, 3);
  // Half of the gradients and of the parameters come from the other node.
  EXPECT_DOUBLE_EQ(floorOf(plan, machine)->communication, 2 * 232 * 0.5 / 4e5);
  const PlanLoop loop = loopOf(plan, machine);
  EXPECT_LE(floorOf(plan, machine)->seconds, boundOf(loop.loop, dataDependences(plan, loop)).seconds);
}

TEST(Floor, IsNotMadeUp) {
  EXPECT_FALSE(floorOf(TrainingPlan(4, 3, 8).plan, machine(4)));
}

// Issues every product twice: the second computes the same again, so that results stay.
plan::Plan twice(const plan::Plan& plan) {
  plan::Plan result = plan;
  result.clear_body();
  for (const plan::Instruction& instruction : plan.body()) {
    *result.add_body() = instruction;
    if (instruction.call().function() == "gemm") *result.add_body() = instruction;
  }
  return result;
}

TEST(Floor, StaysWhereAPlanIssuesEveryProductTwice) {
  const Profile profile = machine(1);
  // Of many rows, so that products are what takes time.
  TrainingPlan made(1, 0, 4096);
  plan::Plan once = made.plan;
  *once.mutable_floor() = made.floor();
  const plan::Plan doubled = twice(once);
  ASSERT_EQ(plan::verifyPlan(doubled).message(), "");
  ASSERT_EQ(plan::provePlan(doubled).message(), "");
  auto bound = [&](const plan::Plan& plan) {
    const PlanLoop loop = loopOf(plan, profile);
    return boundOf(loop.loop, dataDependences(plan, loop)).seconds;
  };
  auto period = [&](const plan::Plan& plan) { return play(loopOf(plan, profile).loop).period; };
  // 4096 rows: one call takes its flops at the rate, and 1 / 4096 more of them by its half value.
  const double product = 2 * 4096 * 128 / 1e9 * (1 + 1.0 / 4096) + 1e-9;
  EXPECT_NEAR(bound(doubled) - bound(once), product, 1e-12);
  EXPECT_NEAR(period(doubled) - period(once), product, 1e-12);
  EXPECT_EQ(floorOf(doubled, profile)->seconds, floorOf(once, profile)->seconds);
  EXPECT_DOUBLE_EQ(floorOf(once, profile)->seconds, 2 * 4096 * 128 / 1e9);
  EXPECT_LE(floorOf(once, profile)->seconds, bound(once));
}

TEST(Floor, IsNoMoreThanTheBound) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const std::string& name : profileNames()) {
      const Profile profile = *loadProfile(name)->withRanks(4);
      const plan::Plan plan = floored(4, stage);
      const PlanLoop loop = loopOf(plan, profile);
      EXPECT_LE(floorOf(plan, profile)->seconds, boundOf(loop.loop, dataDependences(plan, loop)).seconds)
          << name << ", stage " << stage;
    }
}

}  // namespace
}  // namespace sheaf::schedule
