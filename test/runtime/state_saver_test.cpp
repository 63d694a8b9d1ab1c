// Saves while a run goes on: the staging ring, the same bytes as of a synchronous save, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "runtime/exec/StagingRing.h"
#include "runtime/exec/StateSaver.h"
#include "runtime/plan/SavedParts.h"
#include "test/runtime/FileSystem.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using exec::StagingRing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::readFile;
using testing::SmallFiles;
using testing::TemporaryFolder;
using testing::TrainingPlan;

TEST(StagingRing, BytesComeOutInOrder) {
  for (uint64_t capacity : {64, 128, 192, 4096}) {
    StagingRing ring(capacity);
    ring.open();
    std::mt19937 random(3);
    std::vector<std::byte> sent, received;
    std::vector<uint64_t> parts;
    for (int i = 0; i < 200; ++i) parts.push_back(1 + random() % 500);
    std::thread copying([&] {
      uint8_t value = 0;
      for (uint64_t part : parts)
        for (uint64_t left = part; left > 0;) {
          std::span<std::byte> room = ring.room(left);
          ASSERT_FALSE(room.empty());
          // Whole elements of any size up to 64 fit, unless the part ends.
          EXPECT_TRUE(room.size() == left || room.size() % 64 == 0);
          for (std::byte& byte : room) sent.push_back(byte = static_cast<std::byte>(++value));
          ring.filled(room);
          left -= room.size();
        }
    });
    uint64_t total = 0;
    for (uint64_t part : parts) total += part;
    while (received.size() < total) {
      std::span<const std::byte> bytes = ring.take();
      ASSERT_FALSE(bytes.empty());
      received.insert(received.end(), bytes.begin(), bytes.end());
      ring.taken();
    }
    copying.join();
    EXPECT_EQ(received, sent) << capacity;
  }
}

TEST(StagingRing, AFullRingWaitsForTheWriter) {
  StagingRing ring(128);
  ring.open();
  for (int i = 0; i < 2; ++i) ring.filled(ring.room(64));
  std::atomic<bool> got = false;
  std::thread copying([&] {
    EXPECT_EQ(ring.room(64).size(), 64u);
    got = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(got);
  EXPECT_EQ(ring.take().size(), 64u);
  ring.taken();
  copying.join();
  ring.filled(ring.room(64));
  std::thread waiting([&] { EXPECT_TRUE(ring.room(1).empty()); });
  ring.close();
  waiting.join();
  EXPECT_TRUE(ring.take().empty());
}

// A rank whose storage is an array.
class MemoryContext : public RankContext {
 public:
  explicit MemoryContext(uint64_t bytes) : memory(bytes) {}
  Status issue(const plan::Instruction&, std::shared_ptr<const StepValues>) override { return {}; }
  Status synchronize() override { return {}; }
  Status read(uint64_t offset, std::span<std::byte> host) override {
    if (reading) reading();
    if (!readable) return Status::error("the device is gone");
    std::memcpy(host.data(), memory.data() + offset, host.size());
    return {};
  }
  Status write(uint64_t offset, std::span<const std::byte> host) override {
    std::memcpy(memory.data() + offset, host.data(), host.size());
    return {};
  }
  uint64_t highestTouchedByte() override { return 0; }
  void abort(const std::string&) override {}

  std::vector<std::byte> memory;
  bool readable = true;
  std::function<void()> reading;  // before each read
};

// Ranks of the training plan with other values in every byte.
struct Ranks {
  explicit Ranks(int64_t ranks, int stage) : made(ranks, stage, 8) {
    std::mt19937 random(5);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      auto context = std::make_unique<MemoryContext>(made.plan.memory().peak_bytes());
      for (std::byte& byte : context->memory) byte = static_cast<std::byte>(random());
      memories.push_back(context.get());
      contexts.push_back(std::move(context));
    }
  }
  void spoil() const {
    for (MemoryContext* memory : memories) std::ranges::fill(memory->memory, std::byte{0xee});
  }
  TrainingPlan made;
  std::vector<MemoryContext*> memories;
  std::vector<std::unique_ptr<RankContext>> contexts;
  exec::StateAccess state{made.plan, contexts};
};

exec::RunPosition positionOf(int64_t step) {
  return {.step = step, .updates = step, .samples = 8, .shuffleSeed = 3, .lossScale = {}, .length = {}, .cpu = {}};
}

std::map<std::string, std::string> filesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename()] = readFile(entry.path());
  return files;
}

TEST(StateSaver, ASnapshotHasTheBytesOfASaveThatIsWaitedFor) {
  for (auto [ranks, stage] : {std::pair<int64_t, int>(1, 0), {2, 0}, {4, 3}})
    for (uint64_t staging : {uint64_t{64}, uint64_t{256}, UINT64_MAX}) {
      TemporaryFolder folder;
      Ranks all(ranks, stage);
      const exec::RunPosition position = positionOf(7);
      ASSERT_TRUE(exec::saveState(all.state, folder / "waited", position).ok());
      std::vector<int64_t> committed;
      exec::StateSaver saver(all.state, {folder / "staged", staging, [&](int64_t step) {
                                           committed.push_back(step);
                                           return Status::error("cannot remove");
                                         }});
      EXPECT_LE(saver.stagingBytes(), static_cast<uint64_t>(ranks) * plan::mostStagingBytes(all.made.plan, staging));
      Status status = saver.save(position);
      ASSERT_TRUE(status.ok()) << status.message();
      all.spoil();  // the next step
      ASSERT_TRUE(saver.finish().ok());
      EXPECT_EQ(filesIn(folder / "staged/step-00000007"), filesIn(folder / "waited/step-00000007"))
          << ranks << " ranks, staging " << staging;
      EXPECT_EQ(committed, std::vector<int64_t>{7});
      auto complete = saver.takeComplete();
      ASSERT_TRUE(complete.has_value());
      EXPECT_EQ(complete->folder, folder / "staged/step-00000007");
      EXPECT_EQ(complete->afterwards.message(), "cannot remove");
      EXPECT_GT(complete->stalled, 0);
      EXPECT_GE(complete->seconds, complete->stalled);
      EXPECT_FALSE(saver.takeComplete().has_value());
    }
}

TEST(StateSaver, SavesDoNotPileUp) {
  TemporaryFolder folder;
  Ranks all(2, 3);
  std::atomic<int> running = 0, most = 0;
  exec::StateSaver saver(all.state, {folder.path(), UINT64_MAX, [&](int64_t) {
                                       most = std::max<int>(most, ++running);
                                       std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                       --running;
                                       return Status();
                                     }});
  for (int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(saver.save(positionOf(step)).ok());
  ASSERT_TRUE(saver.finish().ok());
  EXPECT_EQ(most, 1);
  for (int64_t step = 1; step <= 5; ++step) EXPECT_EQ(saver.takeComplete()->step, step);
}

TEST(StateSaver, NothingRemainsOfASaveThatIsAbandoned) {
  TemporaryFolder folder;
  Ranks all(2, 3);
  {
    exec::StateSaver saver(all.state, {folder.path(), 64, {}});
    ASSERT_TRUE(saver.save(positionOf(1)).ok());
    ASSERT_TRUE(saver.finish().ok());
    all.memories[1]->readable = false;
    EXPECT_THAT(saver.save(positionOf(2)).message(), HasSubstr("the device is gone"));
    EXPECT_FALSE(saver.status().ok());
    EXPECT_FALSE(saver.save(positionOf(3)).ok());
  }
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.insert(entry.path().filename());
  EXPECT_THAT(names, ::testing::ElementsAre("latest", "step-00000001"));
}

TEST(StateSaver, AFullDiskIsAnErrorAndTheLastStateStays) {
  TemporaryFolder folder;
  Ranks all(2, 0);
  exec::StateSaver saver(all.state, {folder.path(), 128, {}});
  ASSERT_TRUE(saver.save(positionOf(1)).ok());
  ASSERT_TRUE(saver.finish().ok());
  const auto before = filesIn(folder / "step-00000001");
  const std::string why = testing::reservesRoom(folder / "probe") ? ": no room for " : ": File too large";
  {
    SmallFiles limit(300);
    EXPECT_THAT(exec::saveState(all.state, folder.path(), positionOf(2)).message(),
                AllOf(HasSubstr("cannot write"), HasSubstr("rank-00000.safetensors" + why)));
    Status status = saver.save(positionOf(2));
    if (status.ok()) status = saver.finish();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("cannot write"), HasSubstr("rank-0000"), HasSubstr(why)));
  }
  EXPECT_EQ(filesIn(folder / "step-00000001"), before);
  EXPECT_EQ(readFile(folder / "latest"), "step-00000001\n");
}

// The limit comes when room is reserved and some bytes are taken, which the third read through this small ring waits
// for.
TEST(StateSaver, AFailedWriteIsAnErrorAndTheLastStateStays) {
  TemporaryFolder folder;
  Ranks all(1, 0);
  exec::StateSaver saver(all.state, {folder.path(), 64, {}});
  ASSERT_TRUE(saver.save(positionOf(1)).ok());
  ASSERT_TRUE(saver.finish().ok());
  const auto before = filesIn(folder / "step-00000001");
  {
    std::optional<SmallFiles> limit;
    int reads = 0;
    all.memories[0]->reading = [&] {
      if (++reads == 3) limit.emplace(300);
    };
    Status status = saver.save(positionOf(2));
    if (status.ok()) status = saver.finish();
    EXPECT_GE(reads, 3);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("cannot write"), HasSubstr("rank-00000.safetensors: File too large")));
  }
  EXPECT_EQ(filesIn(folder / "step-00000001"), before);
  EXPECT_EQ(readFile(folder / "latest"), "step-00000001\n");
}

}  // namespace
}  // namespace sheaf
