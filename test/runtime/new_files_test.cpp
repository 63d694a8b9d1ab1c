// New files and folders: their modes, that they replace nothing, and that they are on the disk before they have names.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/FileLock.h"
#include "runtime/base/Text.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/EventFile.h"
#include "runtime/io/KeptStates.h"
#include "runtime/io/SafetensorsShards.h"
#include "test/runtime/FileSystem.h"
#include "test/runtime/TrainingPlan.h"

namespace {

// The calls in order, "sync NAME" and "rename NAME", with `?` for random names.
std::mutex mutex;
std::vector<std::string> calls;

std::string plain(std::string path) {
  const size_t dash = path.rfind('-');
  if (dash != std::string::npos && sheaf::isRandomSuffix(std::string_view(path).substr(dash + 1)))
    path.replace(dash + 1, std::string::npos, "?");
  return path.substr(path.rfind('/') + 1);
}

void note(const std::string& call) {
  std::lock_guard lock(mutex);
  calls.push_back(call);
}

}  // namespace

// In place of the C library's.
extern "C" int fsync(int descriptor) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  note("sync " + plain(path.string()));
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  note("rename " + plain(to));
  return static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

namespace sheaf {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::readFile;
using testing::TemporaryFolder;
using testing::writeFile;

// A mask of this process, before any thread starts.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(umask(mask)) {}
  ~Umask() { umask(before_); }

 private:
  const mode_t before_;
};

mode_t modeOf(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

Status writeOne(const std::string& path) {
  Expected<AtomicFile> file = AtomicFile::create(path);
  return file.ok() ? file->commit() : file.status();
}

Status saveState(const std::string& folder, int64_t step) {
  auto writer = io::CheckpointWriter::create(folder, step);
  if (!writer.ok()) return writer.status();
  const std::string name = "rank-00000.safetensors";
  auto file = io::SafetensorsWriter::create(writer->path(name), {{"parameter/0/w", io::DataType::F32, {1}}});
  if (!file.ok()) return file.status();
  const float value = 1;
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(&value, 1))));
  SHEAF_RETURN_IF_ERROR(file->commit());
  io::Manifest manifest;
  manifest.step = step;
  manifest.parameters.push_back({"w", io::DataType::F32, {1}, {}, {}});
  manifest.files.push_back({name, file->size(), file->checksum()});
  return writer->commit(manifest);
}

const std::vector<io::SafetensorsWriter::Entry> kEntries{{"a", io::DataType::F32, {2}}, {"b", io::DataType::F32, {2}}};

Status saveIndex(const std::string& index) {
  auto writer = io::ShardWriter::make(index, kEntries, 8);
  if (!writer.ok()) return writer.status();
  for (size_t i = 0; i < kEntries.size(); ++i) SHEAF_RETURN_IF_ERROR(writer->write(i, 0, std::vector<std::byte>(8)));
  return writer->commit();
}

// Many threads make files at the same time, as the ranks of a process do: each has the mode that the umask gives.
TEST(NewFiles, HaveTheModeOfTheUmask) {
  for (const auto& [mask, file, folder] : std::vector<std::tuple<mode_t, mode_t, mode_t>>{
           {022, 0644, 0755}, {077, 0600, 0700}, {027, 0640, 0750}, {0, 0666, 0777}}) {
    Umask set(mask);
    testing::InMemory memory;
    TemporaryFolder where;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread)
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 12; ++i) {
          EXPECT_TRUE(writeOne(where / cat("file-", thread, "-", i)).ok());
          EXPECT_TRUE(saveState(where / cat("deep/er/states-", thread), i).ok());
        }
        EXPECT_TRUE(saveIndex(where / cat("w", thread, ".safetensors.index.json")).ok());
        EXPECT_TRUE(io::EventFile::create(where / "events").ok());
        close(openLog(where / cat("log-", thread)));
      });
    for (std::thread& thread : threads) thread.join();
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(where.path())) {
      files += entry.is_regular_file();
      EXPECT_EQ(modeOf(entry.path()), entry.is_directory() ? folder : file) << entry.path() << " with umask " << mask;
    }
    EXPECT_EQ(files, 8u * (12 + 12 * 2 + 1 + 3 + 1 + 1));
    EXPECT_EQ(umask(mask), mask) << "the process's umask was changed";
    // For this user alone.
    Expected<ScratchFolder> scratch = ScratchFolder::make(where / "scratch-");
    ASSERT_TRUE(scratch.ok());
    EXPECT_EQ(modeOf(scratch->path()), 0700 & ~mask);
  }
}

// A name is on the disk only after what it stands for, and everything is when a function returns.
TEST(NewFiles, AreSyncedBeforeTheyHaveNames) {
  TemporaryFolder where;
  const std::string top = plain(where.path());
  auto callsOf = [&](const std::function<Status()>& work) {
    calls.clear();
    const Status status = work();
    EXPECT_TRUE(status.ok()) << status.message();
    return calls;
  };
  EXPECT_THAT(callsOf([&] { return writeOne(where / "file"); }),
              ElementsAre("sync .file-?", "rename file", "sync " + top));
  EXPECT_THAT(
      callsOf([&] { return saveState(where / "a/b/c", 1); }),
      ElementsAre("sync " + top, "sync a", "sync b", "sync .rank-00000.safetensors-?", "rename rank-00000.safetensors",
                  "sync .saving-?", "sync .manifest.json-?", "rename manifest.json", "sync .saving-?", "sync .saving-?",
                  "rename step-00000001", "sync c", "sync .latest-?", "rename latest", "sync c"));
  EXPECT_THAT(callsOf([&] { return io::KeptStates::open(where / "d/e/f", 1).status(); }),
              ElementsAre("sync " + top, "sync d", "sync e"));
  EXPECT_THAT(callsOf([&] { return io::EventFile::create(where / "g/h").status(); }),
              ElementsAre("sync " + top, "sync g"));
  EXPECT_THAT(callsOf([&] { return makeFolders(where / "i//j/").status(); }), ElementsAre("sync " + top, "sync i"));
  EXPECT_THAT(callsOf([&] { return saveIndex(where / "w.safetensors.index.json"); }),
              ElementsAre("sync .w-00001-of-00002.safetensors-?", "sync .w-00002-of-00002.safetensors-?",
                          "sync .w-00001-of-00002.safetensors-?", "sync .w-00002-of-00002.safetensors-?",
                          "rename w.safetensors.index.json.replaced", "sync " + top,
                          "rename w-00001-of-00002.safetensors", "rename w-00002-of-00002.safetensors", "sync " + top,
                          "sync .w.safetensors.index.json-?", "rename w.safetensors.index.json", "sync " + top));
}

TEST(NewFiles, AreNeverThoseOfOthers) {
  TemporaryFolder where;
  writeFile(where / "there", "another's");
  fs::create_symlink(where / "there", where / "link");
  fs::create_symlink(where / "nowhere", where / "dangling");
  for (const char* name : {"there", "link", "dangling"}) {
    EXPECT_EQ(createExclusive(where / name), -1) << name;
    EXPECT_EQ(errno, EEXIST) << name;
  }
  for (const char* name : {"link", "dangling", "none"}) EXPECT_EQ(openExisting(where / name), -1) << name;
  EXPECT_THAT(FileLock::take(where / "link").status().message(), HasSubstr("cannot create the lock file"));
  EXPECT_THAT(makeFolders(where / "there").status().message(), HasSubstr("cannot make folder"));
  EXPECT_THAT(makeFolders(where / "there/below").status().message(), HasSubstr("cannot make folder"));
  EXPECT_FALSE(fs::exists(where / "nowhere"));
  EXPECT_EQ(readFile(where / "there"), "another's");
}

TEST(NewFiles, TemporaryNames) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) {
    Expected<std::string> name = randomSuffix();
    ASSERT_TRUE(name.ok());
    EXPECT_TRUE(isRandomSuffix(*name)) << *name;
    names.insert(*name);
  }
  EXPECT_EQ(names.size(), 1000u);
  for (const char* name : {"", "abcde", "abcdefg", "abc/ef", "abc.ef", "abcd\xc3\xa4"})
    EXPECT_FALSE(isRandomSuffix(name)) << name;
  EXPECT_EQ(temporaryPath("a/b/latest", "abc123"), "a/b/.latest-abc123");
  EXPECT_EQ(temporaryPath("latest", "abc123"), ".latest-abc123");
  EXPECT_TRUE(isTemporaryName(".latest-abc123", "latest"));
  for (const char* name : {"latest-abc123", ".latest-abc12", ".latest.abc123", ".latesu-abc123", ".latest-abc1234"})
    EXPECT_FALSE(isTemporaryName(name, "latest")) << name;
  // A name may be as long as a file system takes, and two long ones may differ at their ends only.
  TemporaryFolder where;
  const std::string longest(255, 'n');
  EXPECT_TRUE(writeOne(where / longest).ok());
  EXPECT_NE(temporaryPath(longest + "1", "abc123"), temporaryPath(longest + "2", "abc123"));
}

TEST(FileLock, IsHeldByOneAndLeavesNoFile) {
  TemporaryFolder where;
  const std::string path = where / ".lock";
  std::atomic<int> inside = 0, most = 0, times = 0;  // ThreadSanitizer does not know what a file's lock orders
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        Expected<FileLock> lock = FileLock::take(path);
        ASSERT_TRUE(lock.ok()) << lock.status().message();
        most = std::max<int>(most, ++inside);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        ++times;
        --inside;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(times, 160);
  EXPECT_TRUE(fs::is_empty(where.path()));
  Expected<FileLock> first = FileLock::take(path);
  const Status second = FileLock::take(path, std::chrono::milliseconds(20)).status();
  EXPECT_THAT(second.message(), HasSubstr("another program has held the lock " + path));
  EXPECT_TRUE(fs::exists(path)) << "it is still held";
}

// Weights are not lost where another program keeps the lock: they get names of their own.
TEST(FileLock, WeightsAreSavedSeparatelyFromALockedIndex) {
  TemporaryFolder where;
  const std::string index = where / "w.safetensors.index.json";
  ASSERT_TRUE(saveIndex(index).ok());
  const std::string before = readFile(index);
  Expected<FileLock> other = FileLock::take(lockPath(index));
  ASSERT_TRUE(other.ok());
  auto writer = io::ShardWriter::make(index, kEntries, 8);
  ASSERT_TRUE(writer.ok());
  for (size_t i = 0; i < kEntries.size(); ++i) ASSERT_TRUE(writer->write(i, 0, std::vector<std::byte>(8)).ok());
  const std::string separate = where / cat("w.", writer->random(), ".safetensors.index.json");
  EXPECT_THAT(writer->commit(std::chrono::milliseconds(20)).message(),
              AllOf(HasSubstr("has held the lock"), HasSubstr("these weights are in " + separate)));
  EXPECT_EQ(readFile(index), before);
  for (const std::string& path : {index, separate}) {
    auto weights = io::Safetensors::openWeights(path);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->tensors().size(), 2u);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(where.path()), fs::directory_iterator()), 3 + 3 + 1);
}

TEST(FileLock, NamesAreCut) {
  TemporaryFolder where;
  EXPECT_EQ(lockPath("a/b"), "a/.b.lock");
  EXPECT_TRUE(FileLock::take(lockPath(where / std::string(255, 'n'))).ok());
}

// A file or link in the place of a state is not replaced, nor is what the link names.
TEST(NewFiles, OnlyStatesAreReplaced) {
  TemporaryFolder where;
  fs::create_directories(where / "elsewhere");
  writeFile(where / "elsewhere/mine", "text");
  fs::create_directories(where / "states");
  fs::create_symlink("../elsewhere", where / "states/step-00000001");
  writeFile(where / "states/step-00000002", "text");
  for (int64_t step : {1, 2}) EXPECT_THAT(saveState(where / "states", step).message(), HasSubstr("it is not a folder"));
  EXPECT_EQ(readFile(where / "elsewhere/mine"), "text");
  EXPECT_EQ(readFile(where / "states/step-00000002"), "text");
  EXPECT_EQ(std::distance(fs::directory_iterator(where / "states"), fs::directory_iterator()), 2);
}

}  // namespace
}  // namespace sheaf
