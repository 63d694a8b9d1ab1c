// ZeRO-Offload, ZeRO-Infinity and SuperOffload as schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/schedule/Baselines.h"
#include "passes/schedule/DeepSpeedOffload.h"

namespace sheaf::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kElements = 1 << 20;

// Four layers of one parameter each, computed forward and backward for a second. A rank moves 4 MB a second between
// spaces; files take four times as long.
BaselineStep stepOf(int64_t ranks, uint32_t layers = 4) {
  BaselineStep step;
  step.ranks = ranks;
  step.backward = layers;
  for (uint32_t i = 0; i < 2 * layers; ++i) step.compute.push_back(1), step.liveBytes.push_back(100);
  for (uint32_t i = 0; i < layers; ++i) {
    const uint32_t back = 2 * layers - 1 - i;
    BaselineParameter p;
    p.block = p.module = i;
    p.elements = kElements, p.bytes = p.gradientBytes = 2 * kElements;
    p.uses = {i, back};
    p.firstGradient = p.gradientComplete = back;
    step.parameters.push_back(p);
  }
  step.optimizerBytes = 12 * kElements * layers;
  step.updateSecondsPerElement = 0.1 / double(kElements);
  step.transferSeconds = [](const profile::Transfer& t) { return t.ranks > 1 ? 1e-3 : 0; };
  step.move = [](plan::Transfer::Kind kind, uint64_t bytes) {
    const bool file = kind == plan::Transfer::READ_FILE || kind == plan::Transfer::WRITE_FILE;
    return BaselineMove{static_cast<double>(bytes) / (4.0 * kElements) * (file ? 4 : 1), 0};
  };
  step.hostUpdates = double(kElements) / 2;
  return step;
}

DeepSpeedOffloadKnobs knobsOf() {
  DeepSpeedOffloadKnobs knobs;
  knobs.zero.reduceBucketSize = double(kElements);
  knobs.zero.contiguousGradients = false;
  knobs.zero.paramPersistenceThreshold = 0;
  knobs.subGroupSize = double(kElements);
  return knobs;
}

TEST(OffloadBaselines, ZeroOffloadUpdatesOnTheHostAfterTheBackwardPass) {
  const BaselineStep step = stepOf(1);
  const BaselineSchedule s = deepSpeedOffloadSchedule(step, knobsOf());
  EXPECT_THAT(s.hostUpdates, SizeIs(4));
  EXPECT_EQ(s.hostBytes, 4 * kElements * 16);
  EXPECT_EQ(s.fileBytes, 0u);
  EXPECT_EQ(s.updateSeconds, 0);
  // Eight seconds of computation, four updates of two seconds, and half a second for the last one's parameters.
  EXPECT_NEAR(playBaselineSchedule(step, s).seconds, 8 + 0.5 + 8 + 0.5, 0.6);
}

TEST(OffloadBaselines, ATwinFlowRatioLeavesAPartOnTheDevice) {
  const BaselineStep step = stepOf(1);
  DeepSpeedOffloadKnobs knobs = knobsOf();
  const BaselineSchedule all = deepSpeedOffloadSchedule(step, knobs);
  knobs.ratio = 0.5;
  const BaselineSchedule half = deepSpeedOffloadSchedule(step, knobs);
  EXPECT_NEAR(half.updateSeconds, 0.2, 1e-9);
  EXPECT_EQ(half.constantBytes - all.constantBytes, step.optimizerBytes / 2);
  EXPECT_LT(playBaselineSchedule(step, half).seconds, playBaselineSchedule(step, all).seconds - 3);
}

TEST(OffloadBaselines, ZeroInfinityReadsAndWritesStateAroundEachUpdate) {
  const BaselineStep step = stepOf(1);
  DeepSpeedOffloadKnobs knobs = knobsOf();
  knobs.optimizer = knobs.parameters = plan::Buffer::FILE;
  const BaselineSchedule plain = deepSpeedOffloadSchedule(step, knobs);
  EXPECT_EQ(plain.fileBytes, 4 * kElements * (16 + 2));
  for (const BaselineHostUpdate& update : plain.hostUpdates) {
    EXPECT_EQ(update.read.seconds, 16);
    EXPECT_EQ(update.write.seconds, 14);
    EXPECT_EQ(update.back.seconds, 0);
  }
  for (const BaselineGather& gather : plain.gathers) EXPECT_GT(gather.read.seconds, gather.fetch.seconds);
  const double serial = playBaselineSchedule(step, plain).seconds;
  EXPECT_GE(serial, 4 * (16 + 2 + 14));
  knobs.pipelineRead = knobs.pipelineWrite = true;
  const BaselineSchedule pipelined = deepSpeedOffloadSchedule(step, knobs);
  EXPECT_LT(playBaselineSchedule(step, pipelined).seconds, serial - 20);
  EXPECT_GT(pipelined.hostBytes, plain.hostBytes);
}

TEST(OffloadBaselines, SuperOffloadUpdatesDuringTheBackwardPassUnlessItClips) {
  BaselineStep step = stepOf(1);
  DeepSpeedOffloadKnobs knobs = knobsOf();
  knobs.superOffload = true;
  const double early = playBaselineSchedule(step, deepSpeedOffloadSchedule(step, knobs)).seconds;
  knobs.superOffload = false;
  const double late = playBaselineSchedule(step, deepSpeedOffloadSchedule(step, knobs)).seconds;
  EXPECT_LT(early, late - 2);
  step.clips = true;
  knobs.superOffload = true;
  EXPECT_NEAR(playBaselineSchedule(step, deepSpeedOffloadSchedule(step, knobs)).seconds, late, 1e-6);
}

TEST(OffloadBaselines, AreFoundWithinTheLimitsOfEverySpace) {
  const BaselineStep step = stepOf(1, 256);
  EXPECT_THAT(baselinesFor(step, true), SizeIs(3));
  const BaselineResult fast = playBaseline(step, Baseline::kZeroInfinity, {});
  EXPECT_TRUE(fast.fits);
  const BaselineResult files = playBaseline(step, Baseline::kZeroInfinity, {0, fast.hostBytes / 2});
  EXPECT_TRUE(files.fits);
  EXPECT_THAT(files.knobs, HasSubstr("nvme"));
  EXPECT_LE(files.hostBytes, fast.hostBytes / 2);
  EXPECT_GT(files.seconds, fast.seconds);
  EXPECT_FALSE(playBaseline(step, Baseline::kZeroOffload, {0, 1}).fits);
  BaselineStep unknown = step;
  unknown.move = nullptr;
  EXPECT_THAT(baselinesFor(unknown, true), SizeIs(0));
}

}  // namespace
}  // namespace sheaf::schedule
