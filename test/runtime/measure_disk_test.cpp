// What a disk is measured with: costs that fit together, and nothing left behind.
#include "runtime/measure/MeasureDisk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "runtime/measure/MeasureParts.h"
#include "test/TemporaryFolder.h"

namespace sheaf::measure {
namespace {

using ::testing::HasSubstr;

DiskOptions quickly(const std::string& folder) {
  DiskOptions options{folder};
  options.bytes = uint64_t{64} << 20;
  options.seconds = 0.02;
  return options;
}

TEST(MeasureDisk, MeasuresReadsAndWritesApartAndLeavesNoFile) {
  const testing::TemporaryFolder folder;
  Expected<DiskCosts> costs = measureDisk(quickly(folder.path()));
  ASSERT_TRUE(costs.ok()) << costs.status().message();
  ASSERT_EQ(costs->transfers.size(), 2u);
  EXPECT_EQ(costs->transfers[0].kind, plan::Transfer::READ_FILE);
  EXPECT_EQ(costs->transfers[1].kind, plan::Transfer::WRITE_FILE);
  EXPECT_GT(costs->persist.seconds, 0);
  EXPECT_LT(costs->persist.seconds, 10);
  EXPECT_THAT(costs->persist.source, HasSubstr("fdatasync"));
  for (const profile::TransferCost& cost : costs->transfers) {
    EXPECT_GT(cost.latency, 0);
    EXPECT_LT(cost.latency, 1);
    ASSERT_EQ(cost.bandwidth.points.size(), 5u);
    double before = 0;
    for (const auto& [size, bandwidth] : cost.bandwidth.points) {
      EXPECT_GT(bandwidth, 1e5);
      EXPECT_GT(size, before);
      before = size;
    }
    EXPECT_THAT(cost.source, HasSubstr("64.0 MiB"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(MeasureDisk, SaysWhereItCannotMeasure) {
  Expected<DiskCosts> costs = measureDisk(quickly("/nowhere/at/all"));
  ASSERT_FALSE(costs.ok());
  EXPECT_THAT(costs.status().message(), HasSubstr("/nowhere/at/all"));
}

TEST(MeasureDisk, EndsWhenItIsInterrupted) {
  DiskOptions options = quickly(::testing::TempDir());
  int requests = 0;
  options.checkInterrupt = [&] { return ++requests > 20 ? Status::error("interrupted") : Status(); };
  Expected<DiskCosts> costs = measureDisk(options);
  ASSERT_FALSE(costs.ok());
  EXPECT_EQ(costs.status().message(), "interrupted");
}

// A request of one block takes most of what one of sixteen takes, and both are predicted as they were measured.
TEST(MeasureDisk, SmallRequestsTakeTheirLatency) {
  const std::pair<double, double> taken[] = {{4096, 40e-6}, {65536, 58e-6}, {1 << 20, 350e-6}};
  const profile::TransferCost cost = transferCost(plan::Transfer::READ_FILE, taken);
  EXPECT_EQ(cost.kind, plan::Transfer::READ_FILE);
  for (const auto& [bytes, seconds] : taken)
    EXPECT_NEAR(cost.latency + bytes / cost.bandwidth.at(bytes), seconds, 0.05 * seconds) << bytes;
  // Where other load has made the smallest the slowest, the others still take time for their bytes.
  const std::pair<double, double> disturbed[] = {{4096, 500e-6}, {65536, 58e-6}, {1 << 20, 350e-6}};
  const profile::TransferCost less = transferCost(plan::Transfer::READ_FILE, disturbed);
  EXPECT_LT(less.latency, 58e-6);
  for (const auto& [size, bandwidth] : less.bandwidth.points) EXPECT_GT(bandwidth, 0);
}

}  // namespace
}  // namespace sheaf::measure
