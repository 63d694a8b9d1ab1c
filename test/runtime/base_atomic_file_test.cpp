// Files that appear whole: through the page cache and past it, with the same bytes and the same errors.
#include "runtime/base/AtomicFile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "test/runtime/FileSystem.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using testing::allowsDirect;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::readFile;
using testing::reservesRoom;
using testing::SmallFiles;
using testing::TemporaryFolder;

std::string randomBytes(size_t count) {
  std::mt19937 random(7);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::span<const std::byte> asBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Expected<AtomicFile> create(bool direct, const std::string& path, uint64_t bytes) {
  return direct ? AtomicFile::createDirect(path, bytes) : AtomicFile::create(path);
}

std::vector<std::string> namesIn(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  return names;
}

// Sizes around blocks and buffers, in pieces of all sizes.
TEST(AtomicFile, HasTheBytesThatAreWritten) {
  TemporaryFolder folder;
  const bool allowed = allowsDirect(folder / "probe");
  const std::string all = randomBytes((3 << 20) + 4097);
  std::mt19937 random(11);
  for (bool direct : {false, true})
    for (size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, (size_t{1} << 20) - 1,
                        size_t{1} << 20, (size_t{1} << 20) + 1, size_t{2} << 20, all.size()})
      for (size_t most : {size_t{5000}, size_t{400} << 10, all.size()}) {
        const std::string_view expected = std::string_view(all).substr(0, size);
        Expected<AtomicFile> file = create(direct, folder / "file", size);
        ASSERT_TRUE(file.ok()) << file.status().message();
        EXPECT_EQ(file->direct(), direct && allowed && size > 0);
        for (std::string_view rest = expected, piece; !rest.empty(); rest = rest.substr(piece.size())) {
          piece = rest.substr(0, most == all.size() ? most : 1 + random() % most);
          ASSERT_TRUE(file->write(asBytes(piece)).ok());
          EXPECT_EQ(file->direct(), direct && allowed) << "whole blocks are written";
        }
        EXPECT_EQ(file->size(), size);
        ASSERT_TRUE(file->commit().ok());
        EXPECT_TRUE(readFile(folder / "file") == expected) << size << " bytes in pieces of at most " << most;
      }
  EXPECT_THAT(namesIn(folder), ::testing::ElementsAre("file"));
}

TEST(AtomicFile, NothingRemainsWithoutCommit) {
  TemporaryFolder folder;
  for (bool direct : {false, true}) {
    Expected<AtomicFile> file = create(direct, folder / "file", 2 << 20);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write(asBytes(randomBytes(2 << 20))).ok());
    EXPECT_THAT(namesIn(folder), ::testing::SizeIs(1));
    file = Status::error("forgotten");
    EXPECT_THAT(namesIn(folder), IsEmpty());
  }
}

TEST(AtomicFile, AFileWithoutRoomIsRefusedAtTheStart) {
  TemporaryFolder folder;
  if (!reservesRoom(folder / "probe")) GTEST_SKIP() << "this file system reserves no room";
  SmallFiles limit(1 << 20);
  EXPECT_TRUE(AtomicFile::createDirect(folder / "file", 1 << 20).ok());
  const Status status = AtomicFile::createDirect(folder / "file", (1 << 20) + 1).status();
  EXPECT_THAT(status.message(), HasSubstr("cannot write " + folder / "file" + ": no room for 1.0 MiB: File too large"));
  EXPECT_THAT(namesIn(folder), IsEmpty());
}

// What was reserved and not written is given back.
TEST(AtomicFile, IsAsLongAsWhatIsWritten) {
  TemporaryFolder folder;
  for (size_t size : {size_t{0}, size_t{100}, size_t{1} << 20, (size_t{2} << 20) + 1}) {
    const std::string bytes = randomBytes(size);
    Expected<AtomicFile> file = AtomicFile::createDirect(folder / "file", 8 << 20);
    ASSERT_TRUE(file.ok() && file->write(asBytes(bytes)).ok() && file->commit().ok());
    EXPECT_TRUE(readFile(folder / "file") == bytes) << size;
  }
}

// Of direct files, also where a write is short and its rest not whole blocks.
TEST(AtomicFile, AFailedWriteIsAnErrorAndLeavesNothing) {
  TemporaryFolder folder;
  for (bool direct : {false, true})
    for (rlim_t most : {3 << 20, (3 << 20) + 5}) {
      Expected<AtomicFile> file = create(direct, folder / "file", 4 << 20);
      ASSERT_TRUE(file.ok());
      SmallFiles limit(most);
      const std::string bytes = randomBytes(4 << 20);
      EXPECT_THAT(file->write(asBytes(bytes)).message(),
                  HasSubstr("cannot write " + folder / "file" + ": File too large"));
      EXPECT_THAT(file->commit().message(),
                  HasSubstr("cannot write " + folder / "file" + ": a write of it has failed"));
      file = Status::error("given up");
      EXPECT_THAT(namesIn(folder), IsEmpty());
    }
}

}  // namespace
}  // namespace sheaf
