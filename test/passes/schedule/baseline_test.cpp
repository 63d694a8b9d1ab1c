// The schedules of other systems: what their knobs do, as their sources say, and the search for the best ones.
#include "passes/schedule/Baselines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/schedule/BaselineGroups.h"
#include "passes/schedule/Ddp.h"
#include "passes/schedule/DeepCompile.h"
#include "passes/schedule/DeepSpeed.h"
#include "passes/schedule/Fsdp2.h"
#include "passes/schedule/ShippedProfiles.h"

namespace sheaf::schedule {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint64_t kElements = 1000;  // of a block's parameter, two bytes each

// Blocks of one parameter, with a second of computation forward and two backward. An all-reduce sends twice its bytes.
BaselineStep stepOf(uint32_t blocks, double secondsPerByte = 1e-6, double latency = 0) {
  BaselineStep step;
  step.ranks = 4;
  step.backward = blocks;
  step.updateSecondsPerElement = 1e-6;
  step.optimizerBytes = blocks * kElements * 12;
  step.compute.assign(blocks, 1);
  step.compute.insert(step.compute.end(), blocks, 2);
  step.liveBytes.assign(2 * blocks, 100);
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t backward = 2 * blocks - 1 - b;
    BaselineParameter p;
    p.block = p.module = b;
    p.elements = kElements;
    p.bytes = p.gradientBytes = 2 * kElements;
    p.uses = {b, backward};
    p.firstGradient = p.gradientComplete = backward;
    step.parameters.push_back(p);
  }
  step.transferSeconds = [=](const profile::Transfer& t) {
    return latency + static_cast<double>(t.bytes) * secondsPerByte * (t.op == plan::ALL_REDUCE ? 2 : 1) *
                         static_cast<double>(t.ranks - 1) / 3;
  };
  return step;
}

std::vector<uint32_t> starts(const BaselineSchedule& s) {
  std::vector<uint32_t> result;
  for (const BaselineGather& gather : s.gathers) result.push_back(gather.start);
  return result;
}

std::vector<double> seconds(const std::vector<BaselineReduction>& reductions) {
  std::vector<double> result;
  for (const BaselineReduction& reduction : reductions) result.push_back(reduction.transfer.seconds);
  return result;
}

TEST(Fsdp2, GathersAheadAsItsEventsAllow) {
  const BaselineStep step = stepOf(4);
  Fsdp2Knobs knobs;
  knobs.reshardTo = step.ranks;
  // Forward, a gather waits for the begin of the module before the previous one; backward, of the previous one.
  EXPECT_THAT(starts(fsdp2Schedule(step, knobs)), ElementsAre(0, 0, 0, 1, 3, 4, 5, 6));
  knobs.forwardPrefetch = knobs.backwardPrefetch = 2;
  EXPECT_THAT(starts(fsdp2Schedule(step, knobs)), ElementsAre(0, 0, 0, 0, 3, 4, 4, 5));
  knobs.blocks = 2;
  EXPECT_THAT(starts(fsdp2Schedule(step, knobs)), ElementsAre(0, 0, 2, 4));
}

TEST(Fsdp2, ReshardsAfterForwardToSomeRanksOrNot) {
  const BaselineStep step = stepOf(4);
  Fsdp2Knobs knobs;
  knobs.reshardTo = 1;
  const BaselineSchedule kept = fsdp2Schedule(step, knobs);
  EXPECT_THAT(kept.gathers, SizeIs(4));
  EXPECT_EQ(kept.gathers[0].parts[0].last, 7u);
  knobs.reshardTo = 2;
  const BaselineSchedule partly = fsdp2Schedule(step, knobs);
  ASSERT_THAT(partly.gathers, SizeIs(8));
  EXPECT_DOUBLE_EQ(partly.gathers[4].transfer.seconds * 3,
                   partly.gathers[0].transfer.seconds);  // over two ranks instead of four
  ASSERT_THAT(partly.held, SizeIs(4));
  EXPECT_EQ(partly.held[0].bytes, kElements);  // half of the parameters
  knobs.reshardTo = step.ranks;
  knobs.keptGroups = 1;
  EXPECT_THAT(fsdp2Schedule(step, knobs).gathers, SizeIs(7));
}

TEST(Fsdp2, ReducesTheNormOnlyToClip) {
  BaselineStep step = stepOf(2);
  EXPECT_EQ(fsdp2Schedule(step, {}).norm.seconds, 0);
  step.clips = true;
  EXPECT_GT(fsdp2Schedule(step, {}).norm.seconds, 0);
}

TEST(Fsdp2, ReducesIntoMoreBuffersWhereThatIsFaster) {
  BaselineStep step = stepOf(6);
  // The last block's gradient is complete first. Its reduction takes ten seconds, as the backward pass of the others.
  BaselineParameter& last = step.parameters[5];
  last.elements *= 5000;
  last.bytes = last.gradientBytes = 2 * last.elements;
  step.liveBytes.back() = 10 * last.bytes;  // memory is fullest at the end
  Fsdp2Knobs knobs;
  knobs.reshardTo = 1;
  const BaselineCost one = playBaselineSchedule(step, fsdp2Schedule(step, knobs));
  knobs.reduceBuffers = 8;
  const BaselineCost eight = playBaselineSchedule(step, fsdp2Schedule(step, knobs));
  // With one buffer, four blocks wait for it. With eight, none waits, and five short reductions follow instead of one.
  EXPECT_NEAR(one.seconds - eight.seconds, 8 - 4 * 2e-3, 1e-9);
  EXPECT_GE(eight.bytes, one.bytes + last.bytes);
  const BaselineResult best = playBaseline(step, Baseline::kFsdp2, 0);
  EXPECT_THAT(best.knobs, HasSubstr(", 8 reduce-scatter input buffers"));
  EXPECT_THAT(playBaseline(step, Baseline::kFsdp2, best.bytes - 1).knobs, Not(HasSubstr(", 8 reduce-scatter")));
}

TEST(BaselineSchedule, IsPlayedWithItsWaitsAndItsMemory) {
  // A second of gathering for each block, as long as its forward pass.
  const BaselineStep step = stepOf(2, 1 / 2e3);
  Fsdp2Knobs knobs;
  knobs.reshardTo = step.ranks;
  const BaselineCost eager = playBaselineSchedule(step, eagerSchedule(step, 1));
  // Four gathers and six seconds of computation one after the other; the last gather shares the link with the first
  // reduction, and the second reduction comes after the computation.
  EXPECT_DOUBLE_EQ(eager.seconds, 4 + 6 + 1 + 1 + 2 * kElements * 1e-6 / 4);
  // Parameters, gradients, optimizer state; activations, a gathered block and its gradient.
  EXPECT_EQ(eager.bytes, (2 + 2 + 12) * 2 * kElements / 4 + 100 + 2 * kElements + 2 * kElements);
  const BaselineCost ahead = playBaselineSchedule(step, fsdp2Schedule(step, knobs));
  EXPECT_DOUBLE_EQ(ahead.seconds, 1 + 6 + 1 + 2 * kElements * 1e-6 / 4);
  EXPECT_GT(ahead.bytes, eager.bytes);
}

TEST(BaselineSchedule, ComputationWaitsForEarlierReductions) {
  const BaselineStep step = stepOf(3, 5 / 2e3);  // five seconds a transfer
  BaselineSchedule s;
  s.reductions = reduceScatterGroups(step, blockGroups(step, 1, false), step.ranks);
  const double free = playBaselineSchedule(step, s).seconds;
  EXPECT_DOUBLE_EQ(free, 3 + 2 + 3 * 5);
  s.pending = 0;
  EXPECT_DOUBLE_EQ(playBaselineSchedule(step, s).seconds, 3 + 3 * (2 + 5));
  s.pending = 1;
  EXPECT_DOUBLE_EQ(playBaselineSchedule(step, s).seconds, free);
  // Computation that waits holds two gradients instead of three.
  EXPECT_EQ(playBaselineSchedule(step, s).bytes, 100 + 2 * 2 * kElements);
  s.pending = -1;
  EXPECT_EQ(playBaselineSchedule(step, s).bytes, 100 + 3 * 2 * kElements);
}

DeepSpeedKnobs smallKnobs() {
  DeepSpeedKnobs knobs;
  knobs.paramPersistenceThreshold = 0;
  knobs.prefetchBucketSize = 0;
  knobs.maxReuseDistance = 0;
  return knobs;
}

TEST(DeepSpeed, FetchesModulesAndPrefetchesByElements) {
  const BaselineStep step = stepOf(4);
  DeepSpeedKnobs knobs = smallKnobs();
  EXPECT_THAT(starts(deepSpeedSchedule(step, knobs)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  // One module ahead; the last one's use in the backward pass is skipped because it is available, so it stays.
  knobs.prefetchBucketSize = 1;
  const BaselineSchedule ahead = deepSpeedSchedule(step, knobs);
  EXPECT_THAT(starts(ahead), ElementsAre(0, 0, 1, 2, 3, 4, 5));
  // Two modules in one gather.
  knobs.prefetchBucketSize = kElements + 1;
  EXPECT_THAT(deepSpeedSchedule(step, knobs).gathers[1].parts, SizeIs(2));
  // What is live leaves no room to prefetch.
  knobs.maxLiveParameters = kElements;
  EXPECT_THAT(starts(deepSpeedSchedule(step, knobs)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(DeepSpeed, KeepsWhatIsReusedWithinTheDistance) {
  const BaselineStep step = stepOf(4);
  DeepSpeedKnobs knobs = smallKnobs();
  auto gathers = [&] { return deepSpeedSchedule(step, knobs).gathers.size(); };
  knobs.maxReuseDistance = 1;
  EXPECT_EQ(gathers(), 7u);
  // The third block is used again after two blocks: a distance of as many elements does not reach it.
  knobs.maxReuseDistance = 2 * kElements;
  EXPECT_EQ(gathers(), 7u);
  knobs.maxReuseDistance = 2 * kElements + 1;
  EXPECT_EQ(gathers(), 6u);
  knobs.maxReuseDistance = 1e9;
  EXPECT_EQ(gathers(), 4u);
}

TEST(DeepSpeed, PersistentParametersAreGatheredAfterTheUpdate) {
  const BaselineStep step = stepOf(4);
  DeepSpeedKnobs knobs = smallKnobs();
  const uint64_t sharded = deepSpeedSchedule(step, knobs).constantBytes;
  knobs.paramPersistenceThreshold = kElements + 1;
  const BaselineSchedule s = deepSpeedSchedule(step, knobs);
  EXPECT_THAT(s.gathers, IsEmpty());
  ASSERT_THAT(s.gathersOfUpdated, SizeIs(1));
  EXPECT_EQ(s.gathersOfUpdated[0].seconds, step.transferSeconds({plan::ALL_GATHER, 8 * kElements, 4}));
  EXPECT_EQ(s.constantBytes, sharded + 8 * kElements);
}

TEST(DeepSpeed, ReducesInBuckets) {
  const BaselineStep step = stepOf(4);
  DeepSpeedKnobs knobs = smallKnobs();
  knobs.reduceBucketSize = 2 * kElements;
  BaselineSchedule s = deepSpeedSchedule(step, knobs);
  const double two = step.transferSeconds({plan::REDUCE_SCATTER, 4 * kElements, 4});
  EXPECT_THAT(seconds(s.reductions), ElementsAre(two, two));
  // The third gradient closes the first bucket, the end of the backward pass the second.
  EXPECT_EQ(s.reductions[0].ready, 6u);
  EXPECT_EQ(s.reductions[1].ready, 7u);
  EXPECT_EQ(s.pending, 3);
  const uint64_t buffered = s.constantBytes;
  knobs.contiguousGradients = knobs.overlapComm = false;
  s = deepSpeedSchedule(step, knobs);
  EXPECT_EQ(s.pending, 0);
  EXPECT_EQ(s.constantBytes, buffered - 4 * kElements);
  EXPECT_EQ(s.reductions[0].bytes, 4 * kElements);
}

TEST(DeepSpeed, StagesOneAndTwoGatherUpdatedParameters) {
  const BaselineStep step = stepOf(4);
  DeepSpeedKnobs knobs = smallKnobs();
  knobs.stage = 2;
  knobs.contiguousGradients = false;
  const BaselineSchedule two = deepSpeedSchedule(step, knobs);
  EXPECT_THAT(two.gathers, IsEmpty());
  EXPECT_THAT(two.gathersOfUpdated, SizeIs(1));
  const double allReduce = step.transferSeconds({plan::ALL_REDUCE, 8 * kElements, 4});
  EXPECT_THAT(seconds(two.reductions), ElementsAre(allReduce));
  knobs.multiRankBucketAllreduce = false;
  EXPECT_NEAR(deepSpeedSchedule(step, knobs).reductions[0].transfer.seconds, allReduce / 2, 1e-9);
  knobs.stage = 1;
  const BaselineSchedule one = deepSpeedSchedule(step, knobs);
  EXPECT_EQ(two.constantBytes - one.constantBytes, 8 * kElements / 4);
  EXPECT_THAT(one.held, SizeIs(4));  // whole gradients, until the update
  EXPECT_THAT(ddpSchedule(step, 4 * kElements).reductions, SizeIs(2));
}

TEST(DeepCompile, PrefetchesFusedGathersWithinMemory) {
  const BaselineStep step = stepOf(4);
  DeepCompileKnobs knobs;
  knobs.selectiveGather = false;
  knobs.reduceBucketSize = kElements;
  // All of a graph's parameters at its begin, fused where that saves latency.
  BaselineSchedule s = deepCompileSchedule(step, knobs, 0);
  EXPECT_THAT(starts(s), ElementsAre(0, 0, 0, 0, 4, 4, 4, 4));
  const BaselineSchedule fused = deepCompileSchedule(stepOf(4, 1e-6, 1), knobs, 0);
  EXPECT_THAT(starts(fused), ElementsAre(0, 4));
  EXPECT_THAT(fused.gathers[0].parts, SizeIs(4));
  // With room for one besides the one in use, the last one is launched later.
  const uint64_t usable = s.constantBytes + 100 + 2 * kElements + 2 * kElements;
  s = deepCompileSchedule(step, knobs, usable * 10 / 9 + 10);
  EXPECT_THAT(starts(s), ElementsAre(0, 0, 0, 2, 4, 4, 4, 6));
  knobs.prefetch = false;
  EXPECT_THAT(starts(deepCompileSchedule(step, knobs, 0)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(DeepCompile, KeepsParametersUpToTheFirstThatDoesNotFit) {
  const BaselineStep step = stepOf(4);
  DeepCompileKnobs knobs;
  knobs.prefetch = false;
  knobs.reduceBucketSize = kElements;
  EXPECT_THAT(deepCompileSchedule(step, knobs, 0).gathers, SizeIs(4));
  knobs.selectiveGather = false;
  const uint64_t peak = deepCompileSchedule(step, knobs, 0).constantBytes + 100 + 2 * kElements;
  knobs.selectiveGather = true;
  // Room for two besides the peak.
  const BaselineSchedule s = deepCompileSchedule(step, knobs, (peak + 5 * kElements) * 10 / 9);
  EXPECT_THAT(s.gathers, SizeIs(6));
}

TEST(Baselines, FindTheBestKnobsWithinALimit) {
  const BaselineStep step = stepOf(12, 1 / 1e3);
  for (Baseline baseline : baselinesFor(step)) {
    const BaselineResult best = playBaseline(step, baseline, 0);
    EXPECT_TRUE(best.fits) << baselineName(baseline);
    EXPECT_GE(best.seconds, 12 * (1 + 2)) << baselineName(baseline);  // the computation alone
    const BaselineResult tight = playBaseline(step, baseline, best.bytes * 3 / 4);
    if (tight.fits) {
      EXPECT_LE(tight.bytes, best.bytes * 3 / 4) << baselineName(baseline);
      EXPECT_GE(tight.seconds, best.seconds * (1 - 1e-6)) << baselineName(baseline);
    }
    EXPECT_FALSE(playBaseline(step, baseline, 1).fits) << baselineName(baseline);
  }
  // Keeping the parameters saves a gather; without the room for it they are gathered again.
  const BaselineResult fsdp2 = playBaseline(step, Baseline::kFsdp2, 0);
  EXPECT_THAT(fsdp2.knobs, HasSubstr("reshard_after_forward=False"));
  EXPECT_THAT(playBaseline(step, Baseline::kFsdp2, fsdp2.bytes / 2).knobs, HasSubstr("reshard_after_forward=True"));
}

// A plan that puts a weight gradient off.
// Eight ranks, two a node: `blocks` blocks whose gathers take a second a hop within a node of two, as many as ranks
// less one in larger groups of neighbours, and ten times that between nodes.
BaselineStep nodesOf(uint32_t blocks) {
  BaselineStep step = stepOf(blocks);
  step.ranks = 8;
  step.ranksPerNode = 2;
  step.transferSeconds = [](const profile::Transfer& t) {
    const double hops = static_cast<double>(t.ranks - 1) * (t.op == plan::ALL_REDUCE ? 2 : 1);
    return hops * static_cast<double>(t.bytes) / (2 * kElements) * (t.ranks * t.stride > 2 ? 10 : 1);
  };
  return step;
}

TEST(Nodes, HsdpReducesInTheNodeAndThenAcross) {
  const BaselineStep step = nodesOf(2);
  Fsdp2Knobs knobs;
  knobs.shards = knobs.reshardTo = 2;
  const BaselineSchedule s = fsdp2Schedule(step, knobs);
  ASSERT_THAT(s.gathers, SizeIs(4));
  for (const BaselineGather& gather : s.gathers) {
    EXPECT_EQ(gather.transfer.seconds, 1);
    EXPECT_EQ(gather.transfer.unit, Unit::kNodeLink);
  }
  ASSERT_THAT(s.reductions, SizeIs(2));
  EXPECT_EQ(s.reductions[0].transfer.seconds, 1);
  EXPECT_EQ(s.reductions[0].transfer.unit, Unit::kNodeLink);
  // The half that a rank keeps, between four nodes: an all-reduce of three hops, twice.
  EXPECT_EQ(s.reductions[0].across.seconds, 2 * 3 * 10 / 2);
  EXPECT_EQ(s.reductions[0].across.unit, Unit::kNetwork);
  // A rank keeps half of everything, and updates half.
  EXPECT_EQ(s.constantBytes, (2 + 2 + 12) * 2 * kElements / 2);
  EXPECT_DOUBLE_EQ(s.updateSeconds, 2 * kElements * 1e-6 / 2);
  EXPECT_THAT(s.knobs, HasSubstr("4 replicas of 2 shards"));
  // Gather (1), forward pass (2), backward pass (4); its first reduction and 30 + 30 seconds across, one after the
  // other, from 1 + 2 + 2 + 1 on: they overlap with the second reduction. Then the update.
  EXPECT_DOUBLE_EQ(playBaselineSchedule(step, s).seconds, 1 + 2 + 2 + 1 + 30 + 30 + kElements * 1e-6);
}

TEST(Nodes, MicsReducesInTheGroupAndThenAcrossOnOneStream) {
  const BaselineStep step = nodesOf(2);
  DeepSpeedKnobs knobs = smallKnobs();
  knobs.contiguousGradients = false;
  knobs.reduceBucketSize = kElements;
  knobs.micsShardSize = 2;
  const BaselineSchedule s = deepSpeedSchedule(step, knobs);
  EXPECT_EQ(s.gathers[0].transfer.unit, Unit::kNodeLink);
  EXPECT_EQ(s.gathers[0].second.seconds, 0);
  EXPECT_EQ(s.reductions[0].transfer.seconds, 1);
  EXPECT_EQ(s.reductions[0].across.seconds, 30);
  EXPECT_FALSE(s.replicasApart);
  EXPECT_EQ(s.constantBytes, (2 + 2 + 12) * 2 * kElements / 2);
  // Four gathers at their use, a second each, six seconds of computation. The second gradient closes the first bucket,
  // the end of the backward pass the second: both are reduced after it, 1 + 30 seconds each, one after the other,
  // though on different links. Then the norm and the update of half of the parameters.
  const double norm = step.transferSeconds({plan::ALL_REDUCE, 4, 2});
  EXPECT_DOUBLE_EQ(playBaselineSchedule(step, s).seconds, 4 + 6 + 2 * (1 + 30) + norm + kElements * 1e-6);
  // Two nodes a group: the hop between them has half of the bytes, the hop within a node all.
  knobs.micsShardSize = 4;
  EXPECT_EQ(deepSpeedSchedule(step, knobs).gathers[0].transfer.seconds, 3 * 10);
  EXPECT_EQ(deepSpeedSchedule(step, knobs).gathers[0].transfer.unit, Unit::kLink);
  knobs.hierarchicalGather = true;
  const BaselineSchedule two = deepSpeedSchedule(step, knobs);
  EXPECT_EQ(two.gathers[0].transfer.seconds, 10.0 / 2);
  EXPECT_EQ(two.gathers[0].transfer.unit, Unit::kNetwork);
  EXPECT_EQ(two.gathers[0].second.seconds, 1);
  EXPECT_EQ(two.gathers[0].second.unit, Unit::kNodeLink);
  EXPECT_EQ(two.constantBytes, (2 + 2 + 12) * 2 * kElements / 4);
}

TEST(Nodes, HpzGathersInTheNodeInTheBackwardPass) {
  const BaselineStep step = nodesOf(2);
  DeepSpeedKnobs knobs = smallKnobs();
  knobs.contiguousGradients = false;
  const uint64_t without = deepSpeedSchedule(step, knobs).constantBytes;
  knobs.hpzPartitionSize = 2;
  const BaselineSchedule s = deepSpeedSchedule(step, knobs);
  ASSERT_THAT(s.gathers, SizeIs(4));
  for (size_t g = 0; g < 4; ++g) {
    EXPECT_EQ(s.gathers[g].transfer.seconds, g < 2 ? 70 : 1) << g;
    EXPECT_EQ(s.gathers[g].transfer.unit, g < 2 ? Unit::kLink : Unit::kNodeLink) << g;
  }
  // Half of the parameters more, twice 2 kElements bytes.
  EXPECT_EQ(s.constantBytes, without + 2 * kElements);
  EXPECT_EQ(s.reductions[0].transfer.unit, Unit::kLink);
  EXPECT_EQ(s.reductions[0].across.seconds, 0);
  // A parameter that is never partitioned has no second copy.
  knobs.paramPersistenceThreshold = kElements + 1;
  EXPECT_EQ(deepSpeedSchedule(step, knobs).constantBytes, without + 4 * kElements);
}

TEST(Nodes, HaveBaselinesOfTheirOwn) {
  BaselineStep step = nodesOf(12);
  EXPECT_THAT(baselinesFor(step), SizeIs(8));
  // The network is slow and memory is free: shards within a node beat shards over all ranks.
  const BaselineResult fsdp2 = playBaseline(step, Baseline::kFsdp2, 0), hsdp = playBaseline(step, Baseline::kHsdp, 0);
  EXPECT_LT(hsdp.seconds, fsdp2.seconds);
  EXPECT_GT(hsdp.bytes, fsdp2.bytes);
  EXPECT_THAT(hsdp.knobs, HasSubstr("4 replicas of 2 shards"));
  const BaselineResult stage3 = playBaseline(step, Baseline::kHpz, 0), mics = playBaseline(step, Baseline::kMics, 0);
  EXPECT_THAT(stage3.knobs, HasSubstr("zero_hpz_partition_size 2"));
  EXPECT_THAT(mics.knobs, HasSubstr("mics_shard_size 2"));
  // Under a limit that two shards do not meet, more.
  EXPECT_THAT(playBaseline(step, Baseline::kHsdp, hsdp.bytes * 3 / 4).knobs, HasSubstr("2 replicas of 4 shards"));
  step.ranksPerNode = 8;
  EXPECT_THAT(baselinesFor(step), SizeIs(5));
}

TEST(BaselineStep, ComputesWeightGradientsAsAutogradDoes) {
  plan::Plan plan;
  plan.set_ranks(2);
  plan.add_streams("compute"), plan.add_streams("communication");
  enum { kParameters, kGathered, kActivation, kAgain, kFirst, kSecond, kGradient, kShard, kBuffers };
  for (int b = 0; b < kBuffers; ++b) plan.add_buffers()->set_bytes(b == kParameters || b == kShard ? 512 : 1024);
  plan.mutable_buffers(kParameters)->set_persistent(true);
  plan::Bucket& bucket = *plan.add_buckets();
  bucket.set_name("bucket0");
  bucket.set_type(plan::F32);
  bucket.set_elements(256);
  bucket.set_parameter_buffer(kParameters);
  bucket.set_parameters_sharded(true);
  bucket.set_trainable(true);
  plan::Parameter& parameter = *plan.add_parameters();
  parameter.set_name("layers.0.weight");
  parameter.set_type(plan::F32);
  parameter.add_shape(256);
  parameter.set_trainable(true);
  auto operand = [&](int buffer, plan::Access access) {
    plan::Operand o;
    o.set_buffer(buffer);
    o.set_bytes(plan.buffers(buffer).bytes());
    o.set_access(access);
    return o;
  };
  auto compute = [&](std::initializer_list<int> reads, int write) {
    plan::Instruction& call = *plan.add_body();
    call.mutable_call()->set_function("sum_partials");
    for (int read : reads) *call.add_operands() = operand(read, plan::READ);
    *call.add_operands() = operand(write, plan::WRITE);
  };
  auto collective = [&](plan::CollectiveOp op, int from, int to) {
    plan::Instruction& instruction = *plan.add_body();
    instruction.set_stream(1);
    plan::Collective& c = *instruction.mutable_collective();
    c.set_op(op);
    c.set_type(plan::F32);
    c.set_count(128);
    c.set_bucket("bucket0");
    *instruction.add_operands() = operand(from, plan::READ);
    *instruction.add_operands() = operand(to, plan::WRITE);
  };
  collective(plan::ALL_GATHER, kParameters, kGathered);
  compute({kGathered}, kActivation);          // forward
  compute({kGathered, kActivation}, kFirst);  // backward
  compute({kFirst}, kSecond);                 // backward, further
  compute({kGathered}, kAgain);               // recomputed for the weight gradient alone: not before the plan does
  compute({kSecond, kFirst}, kSecond);        // and further
  compute({kAgain, kFirst}, kGradient);       // the weight gradient, put off
  collective(plan::REDUCE_SCATTER, kGradient, kShard);
  compute({kShard, kParameters}, kParameters);  // the update
  const profile::Profile machine = *loadProfile("h100")->withRanks(2);
  const BaselineStep step = baselineStepOf(plan, machine, modelOf(plan, machine));
  EXPECT_THAT(step.compute, SizeIs(6));
  ASSERT_THAT(step.parameters, SizeIs(1));
  // Forward, two of the backward pass, the recomputation, and then the weight gradient before the last one.
  EXPECT_EQ(step.parameters[0].gradientComplete, 4u);
  EXPECT_EQ(step.backward, 4u);
  EXPECT_THAT(step.parameters[0].uses, ElementsAre(0, 1, 3));
  EXPECT_THAT(step.compute, Each(Ge(0)));
  EXPECT_EQ(step.parameters[0].gradientBytes, 1024u);
}

}  // namespace
}  // namespace sheaf::schedule
