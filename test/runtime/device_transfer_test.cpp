// Transfers between the spaces of CPU ranks, and what can go wrong with their files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "test/runtime/DeviceTesting.h"
#include "test/runtime/TrainingPlan.h"
#include "test/runtime/Transfers.h"

namespace sheaf::testing {
namespace {

using plan::Buffer, plan::Transfer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Contexts = std::vector<std::unique_ptr<RankContext>>;

Status runAll(const plan::Plan& plan, RankContext& context, int from = 0) {
  for (int i = from; i < plan.body_size(); ++i) SHEAF_RETURN_IF_ERROR(context.issue(plan.body(i), nullptr));
  return context.synchronize();
}

// There and back again: the bytes are at the destination, and nothing else has changed.
TEST(DeviceTransfers, ThroughEverySpace) {
  TemporaryFolder one, two;
  // Around the sizes of blocks, stripes and bounces.
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{4096}, uint64_t{4097}, uint64_t{(4 << 20) + 12345}, uint64_t{9 << 20}})
    for (const uint64_t alignment : {uint64_t{128}, uint64_t{4096}})
      for (const std::vector<std::string>& folders :
           {std::vector<std::string>{one.path()}, std::vector<std::string>{one.path(), two.path()}}) {
        PlanBuilder builder;
        builder.buffer(128);  // so that the others do not begin with a page
        const uint32_t a = builder.buffer(bytes, alignment), b = builder.buffer(bytes, alignment);
        const uint32_t host = bufferIn(builder, Buffer::HOST, bytes, 128);
        const uint32_t file = bufferIn(builder, Buffer::FILE, bytes, 4096);
        transfer(builder, Transfer::TO_HOST, a, host);
        transfer(builder, Transfer::WRITE_FILE, host, file);
        transfer(builder, Transfer::READ_FILE, file, b);
        DeviceOptions options;
        options.offloadFolders = folders;
        auto contexts = testDevice()->open(builder.plan, options);
        ASSERT_TRUE(contexts.ok()) << contexts.status().message();
        RankContext& context = *contexts->front();
        const std::vector<std::byte> values = numbers(bytes, 3);
        ASSERT_TRUE(context.write(builder.plan.buffers(static_cast<int>(a)).offset(), values).ok());
        const Status done = runAll(builder.plan, context);
        ASSERT_TRUE(done.ok()) << done.message();
        std::vector<std::byte> found(bytes);
        ASSERT_TRUE(context.read(builder.plan.buffers(static_cast<int>(b)).offset(), found).ok());
        EXPECT_EQ(found, values);
        ASSERT_TRUE(context.readSpace(Buffer::HOST, 128, found).ok());
        EXPECT_EQ(found, values);
        ASSERT_TRUE(context.readSpace(Buffer::FILE, 4096, found).ok());
        EXPECT_EQ(found, values);
      }
}

// The host reads and writes files at any byte.
TEST(DeviceTransfers, HostAccessToFiles) {
  TemporaryFolder folder;
  PlanBuilder builder;
  builder.buffer(128);
  constexpr uint64_t kBytes = (1 << 20) + 4096 * 3;
  bufferIn(builder, Buffer::FILE, kBytes);
  DeviceOptions options;
  options.offloadFolders = {folder.path()};
  auto contexts = testDevice()->open(builder.plan, options);
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  RankContext& context = *contexts->front();
  std::vector<std::byte> expected(kBytes), found(kBytes);
  ASSERT_TRUE(context.readSpace(Buffer::FILE, 0, found).ok());
  EXPECT_EQ(found, expected) << "a new file is not zero";
  unsigned first = 0;
  for (const auto& [at, bytes] : {std::pair<uint64_t, uint64_t>{0, kBytes},
                                  {1, 5},
                                  {4095, 2},
                                  {4096, 4096},
                                  {8192, 5},
                                  {5000, 1 << 20},
                                  {kBytes - 1, 1},
                                  {4096 * 2 + 17, 4096 * 2}}) {
    const std::vector<std::byte> values = numbers(bytes, ++first);
    std::copy(values.begin(), values.end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_TRUE(context.writeSpace(Buffer::FILE, at, values).ok());
    ASSERT_TRUE(context.readSpace(Buffer::FILE, 0, found).ok());
    EXPECT_EQ(found, expected) << bytes << " bytes at " << at;
    std::vector<std::byte> part(bytes);
    ASSERT_TRUE(context.readSpace(Buffer::FILE, at, part).ok());
    EXPECT_EQ(part, values);
  }
  EXPECT_FALSE(context.readSpace(Buffer::FILE, kBytes - 1, std::span(found).first(2)).ok());
  EXPECT_FALSE(context.readSpace(Buffer::HOST, 0, std::span(found).first(1)).ok());
}

TEST(DeviceTransfers, EachRankHasItsOwnArenas) {
  TemporaryFolder folder;
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t a = builder.buffer(4096, 4096);
  transfer(builder, Transfer::TO_HOST, a, bufferIn(builder, Buffer::HOST, 4096));
  transfer(builder, Transfer::WRITE_FILE, a, bufferIn(builder, Buffer::FILE, 4096));
  DeviceOptions options;
  options.ranks = 2;
  options.offloadFolders = {folder.path()};
  auto contexts = testDevice()->open(builder.plan, options);
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  for (unsigned rank : {0, 1}) {
    ASSERT_TRUE((*contexts)[rank]->write(0, numbers(4096, rank)).ok());
    ASSERT_TRUE(runAll(builder.plan, *(*contexts)[rank]).ok());
  }
  std::vector<std::byte> found(4096);
  for (unsigned rank : {0, 1})
    for (Buffer::Space space : {Buffer::HOST, Buffer::FILE}) {
      ASSERT_TRUE((*contexts)[rank]->readSpace(space, 0, found).ok());
      EXPECT_EQ(found, numbers(4096, rank));
    }
}

struct FileCase {
  FileCase() {
    options.offloadFolders = {folder.path()};
    device = builder.buffer(1 << 20, 4096);
    file = bufferIn(builder, Buffer::FILE, 1 << 20);
  }
  std::string openError() {
    auto contexts = testDevice()->open(builder.plan, options);
    return contexts.ok() ? "" : contexts.status().message();
  }
  TemporaryFolder folder;
  PlanBuilder builder;
  DeviceOptions options;
  uint32_t device = 0, file = 0;
};

TEST(DeviceTransfers, FoldersThatCannotBeUsed) {
  FileCase files;
  files.options.offloadFolders = {};
  EXPECT_THAT(files.openError(), AllOf(HasSubstr("--offload-dir"), HasSubstr("1.0 MiB")));
  files.options.offloadFolders = {files.folder / "nowhere"};
  EXPECT_THAT(files.openError(), AllOf(HasSubstr("nowhere"), HasSubstr("no such folder")));
  writeFile(files.folder / "file", "");
  files.options.offloadFolders = {files.folder / "file"};
  EXPECT_THAT(files.openError(), AllOf(HasSubstr("file"), HasSubstr("not a folder")));
  // More than any file system here holds.
  files.options.offloadFolders = {files.folder.path()};
  files.builder.plan.mutable_buffers(static_cast<int>(files.file))->set_bytes(uint64_t{1} << 49);
  EXPECT_THAT(files.openError(), AllOf(HasSubstr(files.folder.path()), HasSubstr("no room for 512 TiB of rank 0")));
}

TEST(DeviceTransfers, OneRunAFolder) {
  FileCase files;
  {
    auto contexts = testDevice()->open(files.builder.plan, files.options);
    ASSERT_TRUE(contexts.ok()) << contexts.status().message();
    EXPECT_TRUE(std::filesystem::exists(files.folder / "rank-0.arena"));
    EXPECT_THAT(files.openError(), AllOf(HasSubstr("another run uses"), HasSubstr("rank-0.arena")));
  }
  // It goes with the run.
  EXPECT_FALSE(std::filesystem::exists(files.folder / "rank-0.arena"));
  // What a run that was killed has left is taken over.
  writeFile(files.folder / "rank-0.arena", "left");
  EXPECT_EQ(files.openError(), "");
}

TEST(DeviceTransfers, AFileThatIsCutOff) {
  FileCase files;
  transfer(files.builder, Transfer::WRITE_FILE, files.device, files.file);
  transfer(files.builder, Transfer::READ_FILE, files.file, files.device);
  auto contexts = testDevice()->open(files.builder.plan, files.options);
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  RankContext& context = *contexts->front();
  ASSERT_TRUE(context.issue(files.builder.plan.body(0), nullptr).ok());
  ASSERT_TRUE(context.synchronize().ok());
  std::filesystem::resize_file(files.folder / "rank-0.arena", 8192);
  (void)context.issue(files.builder.plan.body(1), nullptr);
  EXPECT_THAT(context.synchronize().message(), AllOf(HasSubstr("rank 0: body instruction 1 (read_file 'move'"),
                                                     HasSubstr("rank-0.arena: it ends at byte 8192")));
}

}  // namespace
}  // namespace sheaf::testing
