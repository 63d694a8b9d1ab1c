// Which buffers wait outside the device, and where, by seconds for each byte.
#include "passes/schedule/Placement.h"

#include <gtest/gtest.h>

#include "passes/schedule/ShippedProfiles.h"

namespace sheaf::schedule {
namespace {

// Two positions of use around ten in which nothing uses it.
Movable waiting(uint64_t bytes, double fetches, double stores, double between = 10) {
  return {bytes, false, {{{{1, 11}}, fetches, stores, between}}};
}

// Kept from step to step, used at position 5 only.
Movable state(uint64_t bytes) {
  return {bytes, true, {{{{0, 5}, {6, 12}}, 1, 1, 100}}};
}

PlacementProblem problemOf(std::vector<Movable> movables) {
  PlacementProblem problem;
  problem.live.assign(12, 0);
  for (const Movable& movable : movables)
    for (uint64_t& live : problem.live) live += movable.bytes;
  problem.movables = std::move(movables);
  problem.computeSeconds = 100;
  return problem;
}

profile::Profile h100() {
  return *schedule::loadProfile("h100");
}

bool isAway(const Placement& placement, size_t movable) {
  return placement.placed[movable].space != plan::Buffer::DEVICE;
}

TEST(Placement, MovesNothingThatFits) {
  PlacementProblem problem = problemOf({waiting(1 << 20, 1, 1), state(1 << 20)});
  problem.deviceBytes = 2 << 20;
  const Placement placement = choosePlacement(problem, h100());
  EXPECT_FALSE(isAway(placement, 0) || isAway(placement, 1));
  EXPECT_EQ(placement.bytes, 2u << 20);
}

TEST(Placement, TakesWhatCostsLeastForItsBytes) {
  // Both are as large; one need not be stored.
  PlacementProblem problem = problemOf({waiting(64 << 20, 1, 1), waiting(64 << 20, 1, 0)});
  problem.live.front() = problem.live.back() = 0;
  problem.deviceBytes = 64 << 20;
  const Placement placement = choosePlacement(problem, h100());
  EXPECT_FALSE(isAway(placement, 0));
  EXPECT_TRUE(isAway(placement, 1));
  EXPECT_EQ(placement.placed[1].space, plan::Buffer::HOST);
}

TEST(Placement, PrefersWhatHidesUnderComputation) {
  PlacementProblem problem = problemOf({waiting(64 << 20, 1, 0, 0), waiting(64 << 20, 1, 1, 10)});
  problem.live.front() = problem.live.back() = 0;
  problem.deviceBytes = 64 << 20;
  const Placement placement = choosePlacement(problem, h100());
  EXPECT_FALSE(isAway(placement, 0)) << "no computation lies between its uses";
  EXPECT_TRUE(isAway(placement, 1));
}

TEST(Placement, CountsWhatUpdatesOnTheHostTake) {
  // A fetch takes less of its link than the other's, but the host would be busy for longer than the step.
  Movable slow = state(64 << 20), quick = state(64 << 20);
  slow.gaps.front().fetches = slow.gaps.front().stores = 0.25;
  slow.updateSeconds = 200;
  PlacementProblem problem = problemOf({slow, quick});
  problem.live[5] = 0;
  problem.deviceBytes = 64 << 20;
  Placement placement = choosePlacement(problem, h100());
  EXPECT_FALSE(isAway(placement, 0));
  EXPECT_TRUE(isAway(placement, 1));
  problem.movables[0].updateSeconds = 1e-6;
  placement = choosePlacement(problem, h100());
  EXPECT_TRUE(isAway(placement, 0));
  EXPECT_FALSE(isAway(placement, 1));
  // In files it is read and written whole.
  problem.hostBytes = 0;
  problem.movables[1].gaps.front().stores = 0;
  placement = choosePlacement(problem, h100());
  EXPECT_FALSE(isAway(placement, 0));
  EXPECT_TRUE(isAway(placement, 1));
}

TEST(Placement, FillsFilesWithWhatLosesLeastThere) {
  // The first is fetched three times a step.
  PlacementProblem problem = problemOf({waiting(64 << 20, 3, 1), state(64 << 20)});
  problem.deviceBytes = 64 << 20;
  problem.hostBytes = 64 << 20;
  Placement placement = choosePlacement(problem, h100());
  EXPECT_EQ(placement.placed[0].space, plan::Buffer::HOST);
  EXPECT_EQ(placement.placed[1].space, plan::Buffer::FILE);
  problem.hostBytes = 0;
  placement = choosePlacement(problem, h100());
  EXPECT_EQ(placement.placed[0].space, plan::Buffer::FILE);
  EXPECT_EQ(placement.placed[1].space, plan::Buffer::FILE);
}

// The smaller one's transfers take less time, and cost computation more.
TEST(Placement, CountsWhatComputationLosesToFiles) {
  auto machine = [](double slowdown) {
    const json::Value written = loadProfile("cpu")->toJson();
    json::Object entry, root;
    for (const auto& [key, value] : written.object()->find("compute")->array()->front().object()->members())
      if (key != "files") entry.set(key, value);
    entry.set("files", json::Object{{"slowdown", json::Array{json::Array{524288, slowdown}, json::Array{1048576, 0.0}}},
                                    {"source", "test"}});
    for (const auto& [key, value] : written.object()->members())
      root.set(key, key == "compute" ? json::Value(json::Array{entry}) : value);
    return *profile::Profile::parse(json::write(root), "test");
  };
  PlacementProblem problem = problemOf({waiting(512 << 10, 1, 1), waiting(1 << 20, 2, 1)});
  problem.live.front() = problem.live.back() = 0;
  problem.deviceBytes = 1 << 20;
  problem.hostBytes = 0;
  EXPECT_TRUE(isAway(choosePlacement(problem, machine(0)), 0));
  EXPECT_FALSE(isAway(choosePlacement(problem, machine(9)), 0));
}

TEST(Placement, GoesNoFartherThanWhereNothingCanMove) {
  // At position 5 both are in use.
  PlacementProblem problem = problemOf({state(1 << 20), state(1 << 20), waiting(1 << 20, 1, 1)});
  problem.movables[2].gaps[0].spans = {{1, 5}, {6, 11}};
  problem.live[5] = 3 << 20;
  problem.deviceBytes = 0;
  const Placement placement = choosePlacement(problem, h100());
  EXPECT_EQ(placement.bytes, 3u << 20);
  for (size_t m = 0; m < 3; ++m) EXPECT_FALSE(isAway(placement, m)) << "position 5 needs as much either way";
}

TEST(Placement, GivesBackWhatALaterChoiceMakesNeedless) {
  // The small one is the cheaper first step; the large one is needed anyway, and is enough.
  PlacementProblem problem = problemOf({waiting(1 << 20, 1, 0), waiting(64 << 20, 1, 1)});
  problem.live.front() = problem.live.back() = 0;
  problem.deviceBytes = 60 << 20;
  const Placement placement = choosePlacement(problem, h100());
  EXPECT_FALSE(isAway(placement, 0));
  EXPECT_TRUE(isAway(placement, 1));
  EXPECT_EQ(placement.bytes, 1u << 20);
}

TEST(Placement, TakesAStatesHomeWithAGapWithinTheStep) {
  // Used at 2 and 9, and too much is alive between the two.
  Movable used{1 << 20, true, {{{{0, 2}, {10, 12}}, 1, 1, 100}, {{{3, 9}}, 1, 0, 10}}};
  PlacementProblem problem = problemOf({used});
  problem.live.assign(12, 1 << 20);
  problem.live[5] = 2 << 20;
  problem.deviceBytes = 1 << 20;
  const Placement placement = choosePlacement(problem, h100());
  EXPECT_EQ(placement.placed[0].gaps, (std::vector<bool>{true, true}));
}

}  // namespace
}  // namespace sheaf::schedule
