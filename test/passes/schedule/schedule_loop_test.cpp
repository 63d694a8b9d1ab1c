// Plans as loops, and the bound of a loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/schedule/Bound.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Edge = std::tuple<uint32_t, uint32_t, uint32_t>;

std::vector<Edge> edges(const std::vector<Dependence>& dependences) {
  std::vector<Edge> result;
  for (const Dependence& d : dependences) result.emplace_back(d.from, d.to, d.distance);
  std::sort(result.begin(), result.end());
  return result;
}

// Instructions in a line or two of a test.
class Steps {
 public:
  Steps() {
    plan.set_ranks(2);
    for (const char* stream : {"compute", "communication", "io"}) plan.add_streams(stream);
    plan.set_events(4);
    for (int i = 0; i < 4; ++i) plan.add_buffers()->set_bytes(1024);
    plan.mutable_memory()->set_peak_bytes(4096);
  }
  Steps& record(uint32_t event, uint32_t stream) {
    add(stream).mutable_record()->set_event(event);
    return *this;
  }
  Steps& wait(uint32_t event, uint32_t stream) {
    add(stream).mutable_wait()->set_event(event);
    return *this;
  }
  // Zeroes a buffer, or moves one to another.
  Steps& compute(uint32_t stream, int from, int to) {
    plan::Instruction& call = add(stream);
    call.mutable_call()->set_function("sum_partials");
    if (from >= 0) *call.add_operands() = operand(from, plan::READ);
    *call.add_operands() = operand(to, plan::WRITE);
    return *this;
  }
  Steps& gather(int from, int to) {
    plan::Instruction& instruction = add(1);
    plan::Collective& c = *instruction.mutable_collective();
    c.set_op(plan::ALL_GATHER);
    c.set_type(plan::F32);
    c.set_count(128);
    *instruction.add_operands() = operand(from, plan::READ);
    *instruction.add_operands() = operand(to, plan::WRITE);
    return *this;
  }
  PlanLoop loop() const { return loopOf(plan, *loadProfile("h100")->withRanks(2)); }

  plan::Plan plan;

 private:
  plan::Instruction& add(uint32_t stream) {
    plan.add_body()->set_stream(stream);
    return *plan.mutable_body()->rbegin();
  }
  static plan::Operand operand(int buffer, plan::Access access) {
    plan::Operand operand;
    operand.set_buffer(static_cast<uint32_t>(buffer));
    operand.set_bytes(1024);
    operand.set_access(access);
    return operand;
  }
};

TEST(PlanLoop, WaitsBecomeDependences) {
  Steps steps;
  steps.compute(0, -1, 0).record(0, 0).wait(0, 1).gather(0, 1).record(1, 1).wait(1, 0).compute(0, 1, 2);
  const PlanLoop made = steps.loop();
  EXPECT_THAT(made.instructions, ElementsAre(0, 3, 6));
  EXPECT_EQ(made.loop.ops[1].unit, Unit::kLink);
  EXPECT_THAT(edges(made.loop.dependences), ElementsAre(Edge{0, 1, 0}, Edge{1, 2, 0}));
}

TEST(PlanLoop, AWaitBeforeItsRecordIsForTheRoundBefore) {
  Steps steps;
  steps.wait(0, 1).gather(0, 1).compute(0, -1, 0).record(0, 0);
  EXPECT_THAT(edges(steps.loop().loop.dependences), ElementsAre(Edge{1, 0, 1}));
}

TEST(PlanLoop, AnEventOfTheProloguesOnlyIsDone) {
  Steps steps;
  steps.wait(3, 0).compute(0, -1, 0);
  EXPECT_THAT(steps.loop().loop.dependences, IsEmpty());
}

TEST(PlanLoop, OrderGoesThroughStreamsThatOnlyPassItOn) {
  Steps steps;
  // The I/O stream runs nothing: it waits for the computation and is waited for.
  steps.compute(0, -1, 0).record(0, 0).wait(0, 2).record(1, 2).wait(1, 1).gather(0, 1);
  EXPECT_THAT(edges(steps.loop().loop.dependences), ElementsAre(Edge{0, 1, 0}));
}

TEST(PlanLoop, DataDependencesFollowTheBytes) {
  Steps steps;
  steps.compute(0, 3, 0).gather(0, 1).compute(0, 1, 2).compute(0, 2, 3);
  const std::vector<Dependence> data = dataDependences(steps.plan, steps.loop());
  EXPECT_THAT(edges(data), ElementsAre(Edge{0, 1, 0}, Edge{1, 2, 0}, Edge{2, 3, 0}, Edge{3, 0, 1}));
}

TEST(PlanLoop, ReadsPartsOfWhatWasWritten) {
  Steps steps;
  steps.compute(0, -1, 0).compute(0, -1, 0).compute(0, 0, 1);
  // The second writes the second half only.
  plan::Operand* half = steps.plan.mutable_body(1)->mutable_operands(0);
  half->set_offset(512);
  half->set_bytes(512);
  EXPECT_THAT(edges(dataDependences(steps.plan, steps.loop())), ElementsAre(Edge{0, 2, 0}, Edge{1, 2, 0}));
}

TEST(PlanLoop, OtherNumbersOfRanksChangeSharesOnly) {
  testing::TrainingPlan made(2, 3, 8);
  const profile::Profile machine = *loadProfile("h100");
  const uint64_t peak = made.plan.memory().peak_bytes();
  EXPECT_EQ(peakBytes(made.plan, 2), peak);
  // Parameters and momentum: a half of 512 bytes each on two ranks, an eighth on eight.
  EXPECT_EQ(peakBytes(made.plan, 8), peak - 2 * (256 - 64));
  const PlanLoop two = loopOf(made.plan, *machine.withRanks(2)), eight = loopOf(made.plan, machine);
  ASSERT_EQ(two.loop.ops.size(), eight.loop.ops.size());
  for (size_t i = 0; i < two.loop.ops.size(); ++i) {
    const plan::Instruction& instruction = made.plan.body(two.instructions[i]);
    if (two.loop.ops[i].unit == Unit::kLink) {
      EXPECT_LT(two.loop.ops[i].seconds, eight.loop.ops[i].seconds);
    } else {
      EXPECT_GE(two.loop.ops[i].seconds, eight.loop.ops[i].seconds) << instruction.label();
    }
  }
}

TEST(PlanLoop, PlansAtEveryStageArePlayed) {
  for (int64_t ranks : {1, 2, 4})
    for (int stage = 0; stage <= 3; ++stage) {
      testing::TrainingPlan made(ranks, stage, 8);
      const PlanLoop loop = loopOf(made.plan, *loadProfile("h100")->withRanks(ranks));
      const Timeline timeline = play(loop.loop);
      const Bound bound = boundOf(loop.loop, dataDependences(made.plan, loop));
      EXPECT_GT(bound.seconds, 0);
      EXPECT_GE(timeline.period, bound.seconds * (1 - 1e-9)) << ranks << " ranks, stage " << stage;
      EXPECT_LT(timeline.period, 1);
    }
}

Loop loopFor(std::initializer_list<Op> ops, double slowdown = 0) {
  return {ops, {}, slowdown, {}};
}

TEST(Bound, IsTheLargestOfItsTerms) {
  const Loop compute = loopFor({{Unit::kCompute, 0, 3}, {Unit::kLink, 1, 2}, {Unit::kHost, 2, 9}}, 1);
  const Bound first = boundOf(compute, {});
  // Half of the rate is lost for two seconds.
  EXPECT_DOUBLE_EQ(first.compute, 4);
  EXPECT_DOUBLE_EQ(first.communication, 2);
  EXPECT_DOUBLE_EQ(first.seconds, 4);
  EXPECT_STREQ(boundByName(first.by), "compute");
  EXPECT_DOUBLE_EQ(play(compute).period, 9);  // the host's part does not bound a schedule, but takes its time

  const Bound second = boundOf(loopFor({{Unit::kCompute, 0, 1}, {Unit::kLink, 1, 5}}), {});
  EXPECT_STREQ(boundByName(second.by), "communication");
  const std::vector<Dependence> around{{0, 1, 0}, {1, 0, 1}};
  const Bound third = boundOf(loopFor({{Unit::kCompute, 0, 1}, {Unit::kLink, 1, 5}}), around);
  EXPECT_DOUBLE_EQ(third.cycle, 6);
  EXPECT_STREQ(boundByName(third.by), "cycle");
}

TEST(Bound, HasATermForEachLink) {
  // Three seconds within nodes, five between them, and one of both: they share what they both occupy.
  const Loop loop =
      loopFor({{Unit::kCompute, 0, 1}, {Unit::kNodeLink, 1, 3}, {Unit::kNetwork, 2, 5}, {Unit::kLink, 3, 1}}, 1);
  const Bound bound = boundOf(loop, {});
  EXPECT_DOUBLE_EQ(bound.nodeLink, 4);
  EXPECT_DOUBLE_EQ(bound.network, 6);
  EXPECT_DOUBLE_EQ(bound.communication, 6);
  EXPECT_STREQ(boundByName(bound.by), "network");
  // Both links together slow computation down once.
  EXPECT_DOUBLE_EQ(bound.compute, 1 + 6 / 2.0);
  const Timeline timeline = play(loop);
  EXPECT_DOUBLE_EQ(timeline.nodeLinkSeconds, 4);
  EXPECT_DOUBLE_EQ(timeline.networkSeconds, 6);
  // Transfers on different links run at the same time: the network is never idle.
  EXPECT_DOUBLE_EQ(timeline.period, 6);
  const Bound node = boundOf(loopFor({{Unit::kNodeLink, 1, 3}, {Unit::kNetwork, 2, 1}}), {});
  EXPECT_STREQ(boundByName(node.by), "node link");
  EXPECT_DOUBLE_EQ(node.seconds, 3);
}

TEST(Timeline, TheNetworkAloneMaySlowComputationDownLess) {
  Loop loop = loopFor({{Unit::kCompute, 0, 4}, {Unit::kNodeLink, 1, 1}, {Unit::kNetwork, 2, 4}}, 1);
  EXPECT_DOUBLE_EQ(play(loop).period, 6);  // at half the rate for four seconds
  loop.networkSlowdown = 0.5;
  // One second at half the rate, three at two thirds.
  EXPECT_DOUBLE_EQ(play(loop).period, 4 + (4 - 0.5 - 2));
  EXPECT_DOUBLE_EQ(boundOf(loop, {}).compute, 4 + 4 * 0.5 / 1.5);
  loop.networkSlowdown = 0;
  EXPECT_DOUBLE_EQ(play(loop).period, 4.5);
  EXPECT_DOUBLE_EQ(boundOf(loop, {}).compute, 4.5);
}

TEST(Timeline, TransfersShareOnlyTheLinksThatBothOccupy) {
  EXPECT_DOUBLE_EQ(play(loopFor({{Unit::kNodeLink, 1, 2}, {Unit::kNetwork, 2, 2}})).period, 2);
  EXPECT_DOUBLE_EQ(play(loopFor({{Unit::kNodeLink, 1, 2}, {Unit::kNodeLink, 2, 2}})).period, 4);
  EXPECT_DOUBLE_EQ(play(loopFor({{Unit::kNodeLink, 1, 2}, {Unit::kLink, 2, 2}})).period, 4);
  EXPECT_DOUBLE_EQ(play(loopFor({{Unit::kNetwork, 1, 2}, {Unit::kLink, 2, 2}})).period, 4);
}

TEST(Bound, WhatOverlapsNoTransferCountsWithThem) {
  // Two gathers, computation that needs both, a reduction of each half of its result, and all over again.
  const Loop loop = loopFor(
      {{Unit::kLink, 1, 2}, {Unit::kLink, 1, 2}, {Unit::kCompute, 0, 1}, {Unit::kLink, 1, 3}, {Unit::kLink, 1, 3}});
  const std::vector<Dependence> data{{0, 2, 0}, {1, 2, 0}, {2, 3, 0}, {2, 4, 0}, {3, 0, 1}, {4, 1, 1}};
  const Bound bound = boundOf(loop, data);
  EXPECT_DOUBLE_EQ(bound.communication, 11);
  EXPECT_DOUBLE_EQ(bound.cycle, 6);
  // If the second gather may overlap it, the other transfers still cannot.
  const std::vector<Dependence> fewer{{0, 2, 0}, {2, 3, 0}, {2, 4, 0}, {3, 0, 1}, {4, 0, 1}};
  EXPECT_DOUBLE_EQ(boundOf(loop, fewer).communication, 10);
}

TEST(Bound, TheLongestCycleIsByRound) {
  std::vector<Op> ops;
  for (double seconds : {1.0, 2.0, 4.0, 8.0}) ops.push_back({Unit::kCompute, 0, seconds});
  EXPECT_EQ(longestCycle(ops, {}), 0);
  EXPECT_EQ(longestCycle(ops, std::vector<Dependence>{{0, 1, 0}, {1, 2, 0}}), 0);
  // 3 in one round, 14 in five: 3 counts.
  const std::vector<Dependence> two{{0, 1, 0}, {1, 0, 1}, {1, 2, 0}, {2, 3, 0}, {3, 1, 5}};
  EXPECT_DOUBLE_EQ(longestCycle(ops, two), 3);
  const std::vector<Dependence> four{{0, 1, 0}, {1, 0, 1}, {1, 2, 0}, {2, 3, 0}, {3, 1, 4}};
  EXPECT_DOUBLE_EQ(longestCycle(ops, four), 3.5);
  // One round of itself.
  EXPECT_DOUBLE_EQ(longestCycle(ops, std::vector<Dependence>{{3, 3, 1}}), 8);
}

}  // namespace
}  // namespace sheaf::schedule
