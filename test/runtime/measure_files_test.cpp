// What transfers of files cost in a step: hand-offs, ranks that transfer at once, and computation that runs meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "runtime/device/Device.h"
#include "runtime/measure/MeasureParts.h"

namespace sheaf::measure {
namespace {

using ::testing::HasSubstr;

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

profile::ProfileData someDisk(double latency = 1e-4) {
  profile::ProfileData data;
  for (const plan::Transfer::Kind kind : {plan::Transfer::READ_FILE, plan::Transfer::WRITE_FILE}) {
    profile::TransferCost& cost = data.transfers.emplace_back();
    cost.kind = kind, cost.latency = latency, cost.bandwidth = {{{1, 1e9}}}, cost.source = "a disk";
  }
  return data;
}

// What a transfer takes in a step besides the request: the computation before it and the one after it hand over.
TEST(MeasureFiles, HandOffsAreAPartOfTheLatency) {
  constexpr double kLatency = 1e-4;
  profile::ProfileData data = someDisk(kLatency);
  MeasureOptions options;
  options.disk = ::testing::TempDir();
  PatientDevice device;
  const Status status = measureFiles(device, options, RankSet{1, 1}, true, data);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const profile::TransferCost& cost : data.transfers) {
    EXPECT_GT(cost.latency, kLatency + 1.5 * PatientContext::kWait);
    EXPECT_LT(cost.latency, kLatency + 20 * PatientContext::kWait);
    EXPECT_THAT(cost.source, ::testing::AllOf(HasSubstr("a disk"), HasSubstr("as in a step")));
    EXPECT_EQ(cost.atOnce.ranks, 1);
  }
  EXPECT_THAT(device.folder, ::testing::StartsWith(options.disk));
  EXPECT_FALSE(std::filesystem::exists(device.folder));
}

// A machine whose ranks share a disk and cores. A rank's stream of files and its computation run at the same time;
// while they do, computation runs at 1 / (1 + kSlowdown) of its rate. A disk serves kServed ranks at the rate of one.
class SharedContext : public RankContext {
 public:
  static constexpr double kInstruction = 4e-3, kSlowdown = 1.5, kServed = 2;
  explicit SharedContext(double ranks) : ranks_(ranks) {}
  Status issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues>) override {
    if (instruction.has_transfer())
      files_ += kInstruction * std::max(1.0, ranks_ / kServed);
    else if (!instruction.has_record() && !instruction.has_wait())
      computing_ += kInstruction;
    return {};
  }
  Status synchronize() override {
    using Clock = std::chrono::steady_clock;
    const double during = std::min(computing_, files_ / (1 + kSlowdown));  // computed while files move
    const double seconds = std::max(files_, during * (1 + kSlowdown) + (computing_ - during));
    computing_ = files_ = 0;
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::this_thread::sleep_until(end);
    return {};
  }
  Status read(uint64_t, std::span<std::byte>) override { return {}; }
  Status write(uint64_t, std::span<const std::byte>) override { return {}; }
  uint64_t highestTouchedByte() override { return 0; }
  void abort(const std::string&) override {}

 private:
  const double ranks_;
  double computing_ = 0, files_ = 0;
};

class SharedDevice : public Device {
 public:
  Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan&, const DeviceOptions& options) override {
    std::vector<std::unique_ptr<RankContext>> contexts;
    for (int64_t rank = 0; rank < options.ranks; ++rank)
      contexts.push_back(std::make_unique<SharedContext>(static_cast<double>(options.ranks)));
    return contexts;
  }
};

TEST(MeasureFiles, FourRanksAtOnceMoveMoreThanOne) {
  profile::ProfileData data = someDisk();
  MeasureOptions options;
  options.disk = ::testing::TempDir();
  options.ranks = 4;
  SharedDevice device;
  const Status status = measureFiles(device, options, RankSet{1, 1}, true, data);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const profile::TransferCost& cost : data.transfers) {
    EXPECT_EQ(cost.atOnce.ranks, 4);
    EXPECT_NEAR(cost.atOnce.times, SharedContext::kServed, 0.4);
    EXPECT_THAT(cost.source, HasSubstr("4 ranks at once"));
  }
  // The page cache is not the disk.
  profile::ProfileData cached = someDisk();
  PatientDevice patient;
  ASSERT_TRUE(measureFiles(patient, options, RankSet{1, 1}, false, cached).ok());
  for (const profile::TransferCost& cost : cached.transfers) EXPECT_EQ(cost.atOnce.ranks, 1);
}

TEST(MeasureFiles, ComputationIsSlowerWhileFilesMove) {
  MeasureOptions options;
  options.disk = ::testing::TempDir();
  SharedDevice device;
  profile::ComputeCost cost;
  const Status status = measureFileSlowdown(device, options, RankSet{1, 2, nullptr, uint64_t{160} << 20}, cost);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(cost.fileSlowdown.points.size(), 3u);
  double before = 0;
  for (const auto& [bytes, slowdown] : cost.fileSlowdown.points) {
    EXPECT_GT(bytes, before);
    EXPECT_NEAR(slowdown, SharedContext::kSlowdown, 0.3) << bytes;
    before = bytes;
  }
  EXPECT_THAT(cost.fileSlowdownSource, HasSubstr("1 rank"));
}

TEST(MeasureFiles, ASlowdownIsWhatIsNotDoneMeanwhile) {
  EXPECT_DOUBLE_EQ(slowdownOf(1, 1, 1), 0);    // all of the computation is hidden
  EXPECT_DOUBLE_EQ(slowdownOf(1, 1, 1.5), 1);  // half of it
  EXPECT_DOUBLE_EQ(slowdownOf(3, 1, 3.5), 1);
  EXPECT_DOUBLE_EQ(slowdownOf(1, 1, 0.9), 0);  // a disturbed measurement gains nothing
  EXPECT_GT(slowdownOf(1, 1, 2.5), 100);
}

}  // namespace
}  // namespace sheaf::measure
