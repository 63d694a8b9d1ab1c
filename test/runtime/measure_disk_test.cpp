// What a disk is measured with: costs that fit together, and nothing left behind.
#include "runtime/measure/MeasureDisk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "runtime/measure/MeasureParts.h"

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
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "measured-disk";
  std::filesystem::create_directories(folder);
  Expected<DiskCosts> costs = measureDisk(quickly(folder.string()));
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
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
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

// Every instruction takes its time, and every wait for another stream much more.
class PatientContext : public RankContext {
 public:
  static constexpr double kInstruction = 20e-6, kWait = 400e-6;
  Status issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues>) override {
    using Clock = std::chrono::steady_clock;
    const double seconds = instruction.has_wait() ? kWait : instruction.has_record() ? 0 : kInstruction;
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (Clock::now() < end) {
    }
    return {};
  }
  Status synchronize() override { return {}; }
  Status read(uint64_t, std::span<std::byte>) override { return {}; }
  Status write(uint64_t, std::span<const std::byte>) override { return {}; }
  uint64_t highestTouchedByte() override { return 0; }
  void abort(const std::string&) override {}
};

class PatientDevice : public Device {
 public:
  Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan& plan,
                                                           const DeviceOptions& options) override {
    bool inFiles = false;
    for (const plan::Buffer& buffer : plan.buffers()) inFiles |= buffer.space() == plan::Buffer::FILE;
    if (!inFiles || options.offloadFolders.size() != 1 || !std::filesystem::is_directory(options.offloadFolders[0]))
      return Status::error("there is no folder for the files");
    folder = options.offloadFolders[0];
    std::vector<std::unique_ptr<RankContext>> contexts;
    contexts.push_back(std::make_unique<PatientContext>());
    return contexts;
  }
  std::string folder;
};

// What a transfer takes in a step besides the request: the computation before it and the one after it hand over.
TEST(MeasureDisk, HandOffsAreAPartOfTheLatency) {
  constexpr double kLatency = 1e-4;
  profile::ProfileData data;
  for (const plan::Transfer::Kind kind : {plan::Transfer::READ_FILE, plan::Transfer::WRITE_FILE})
    data.transfers.push_back({kind, kLatency, {{{1, 1e9}}}, "a disk"});
  MeasureOptions options;
  options.disk = ::testing::TempDir();
  PatientDevice device;
  const Status status = measureFileHandOff(device, options, RankSet{1, 1}, data);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const profile::TransferCost& cost : data.transfers) {
    EXPECT_GT(cost.latency, kLatency + 1.5 * PatientContext::kWait);
    EXPECT_LT(cost.latency, kLatency + 20 * PatientContext::kWait);
    EXPECT_THAT(cost.source, ::testing::AllOf(HasSubstr("a disk"), HasSubstr("as in a step")));
  }
  EXPECT_THAT(device.folder, ::testing::StartsWith(options.disk));
  EXPECT_FALSE(std::filesystem::exists(device.folder));
}

}  // namespace
}  // namespace sheaf::measure
