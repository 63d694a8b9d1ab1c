// Which saved states are kept, and that a process that is killed at any of its system calls leaves a whole one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "runtime/io/Checkpoint.h"
#include "runtime/io/KeptStates.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// A state of one parameter with four elements.
Status save(const std::string& folder, int64_t step) {
  auto writer = io::CheckpointWriter::create(folder, step);
  if (!writer.ok()) return writer.status();
  io::Manifest manifest;
  manifest.step = step;
  manifest.parameters.push_back({"w", io::DataType::F32, {4}, {}, {}});
  const std::vector<float> values(4, static_cast<float>(step));
  auto file = io::SafetensorsWriter::create(writer->path("rank-0"), {{"parameter/0/w", io::DataType::F32, {4}}});
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(values))));
  SHEAF_RETURN_IF_ERROR(file->commit());
  manifest.files.push_back({"rank-0", file->size(), file->checksum()});
  return writer->commit(manifest);
}

std::set<std::string> namesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::string folderName(int64_t step) {
  return io::stepFolder(step);
}

int64_t newestIn(const std::string& folder) {
  auto newest = io::Checkpoint::openNewest(folder, [](const std::string&) {});
  EXPECT_TRUE(newest.ok()) << newest.status().message();
  return newest.ok() ? newest->manifest().step : -1;
}

TEST(KeptStates, TheNewestWholeOnesStay) {
  TemporaryFolder folder;
  auto kept = io::KeptStates::open(folder / "deep/states", 2);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  const std::string states = folder / "deep/states";
  for (int64_t step : {900, 1, 2, 3}) ASSERT_TRUE(save(states, step).ok());
  ASSERT_TRUE(kept->prune(3).ok());
  // 900 is of an earlier run that went further.
  EXPECT_THAT(namesIn(states), ElementsAre("latest", folderName(2), folderName(3), folderName(900)));
  ASSERT_TRUE(save(states, 4).ok());
  std::filesystem::resize_file(states + "/" + folderName(3) + "/rank-0", 10);
  ASSERT_TRUE(kept->prune(4).ok());
  // 3 is damaged and does not count.
  EXPECT_THAT(namesIn(states), ElementsAre("latest", folderName(2), folderName(3), folderName(4), folderName(900)));
}

TEST(KeptStates, WhatKilledRunsLeaveIsRemoved) {
  TemporaryFolder folder;
  auto kept = io::KeptStates::open(folder.path(), 1);
  ASSERT_TRUE(save(folder.path(), 1).ok());
  for (const char* name : {".saving-abc", ".removed-step-00000000", "latest.a1b2c3", "notes"})
    std::filesystem::create_directory(folder / name);
  ASSERT_TRUE(kept->prune(1).ok());
  EXPECT_THAT(namesIn(folder.path()), ElementsAre("latest", "notes", folderName(1)));
}

TEST(KeptStates, ARunThatRemovesStatesHasItsFolderToItself) {
  TemporaryFolder folder;
  auto refused = [&](int64_t keep) { return io::KeptStates::open(folder.path(), keep).status().message(); };
  {
    auto first = io::KeptStates::open(folder.path(), 1);
    ASSERT_TRUE(first.ok());
    for (int64_t keep : {0, 1})
      EXPECT_THAT(refused(keep),
                  AllOf(HasSubstr(folder.path()), HasSubstr("--keep-saves"), HasSubstr("another folder")));
  }
  {
    auto first = io::KeptStates::open(folder.path(), 0), second = io::KeptStates::open(folder.path(), 0);
    ASSERT_TRUE(first.ok() && second.ok()) << "those that keep all states may share a folder";
    EXPECT_THAT(refused(1),
                AllOf(HasSubstr("another run saves its states in " + folder.path()), HasSubstr("--keep-saves")));
    for (int64_t step : {1, 2}) ASSERT_TRUE(save(folder.path(), step).ok());
    std::filesystem::create_directory(folder / ".saving-abc");
    ASSERT_TRUE(first->prune(2).ok());
    EXPECT_THAT(namesIn(folder.path()), ElementsAre(".saving-abc", "latest", folderName(1), folderName(2)));
  }
  EXPECT_TRUE(io::KeptStates::open(folder.path(), 1).ok());
}

TEST(KeptStates, AFolderWithoutStatesDoesNotStay) {
  TemporaryFolder folder;
  for (int64_t keep : {0, 1}) {
    ASSERT_TRUE(io::KeptStates::open(folder / "states", keep).ok());
    EXPECT_FALSE(std::filesystem::exists(folder / "states"));
  }
  std::filesystem::create_directory(folder / "given");
  ASSERT_TRUE(io::KeptStates::open(folder / "given", 1).ok());
  EXPECT_TRUE(std::filesystem::exists(folder / "given"));
}

// Runs `work` in another process, which is killed before its system call number `calls`. Returns whether it was.
bool killedAfter(int calls, const std::function<bool()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSTOPPED(status)) << "a process of this machine cannot trace its own child";
  // Each call stops the child twice: before it and after it.
  for (int stop = 0; stop < 2 * calls - 1; ++stop) {
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return false;
    }
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  return true;
}

// The process is killed, not the machine: no disk is needed, which would make each of some hundred saves slow.
class InMemory {
 public:
  InMemory() {
    if (std::filesystem::exists("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
  }
  ~InMemory() {
    if (old_)
      setenv("TMPDIR", old_->c_str(), 1);
    else
      unsetenv("TMPDIR");
  }

 private:
  const std::optional<std::string> old_ =
      std::getenv("TMPDIR") ? std::optional<std::string>(std::getenv("TMPDIR")) : std::nullopt;
};

// A folder with the states 1 and 2, of which 2 are kept; then a process saves `step` and is killed at each call.
void expectAWholeStateWhenKilledWhileSaving(int64_t step) {
  InMemory memory;
  TemporaryFolder prepared;
  for (int64_t before : {1, 2}) ASSERT_TRUE(save(prepared.path(), before).ok());
  int calls = 1;
  for (bool killed = true; killed; ++calls) {
    TemporaryFolder folder;
    std::filesystem::copy(prepared.path(), folder.path(), std::filesystem::copy_options::recursive);
    killed = killedAfter(calls, [&] {
      auto kept = io::KeptStates::open(folder.path(), 2);
      return kept.ok() && save(folder.path(), step).ok() && kept->prune(step).ok();
    });
    const int64_t newest = newestIn(folder.path());
    ASSERT_TRUE(newest == 2 || newest == step) << "killed before call " << calls << ": newest is " << newest;
    EXPECT_TRUE(killed || newest == step);
    // Every name stands for a whole state, and the next run leaves what it should.
    for (const std::string& name : namesIn(folder.path()))
      if (io::stepOfFolder(name)) {
        auto state = io::Checkpoint::open(folder / name);
        ASSERT_TRUE(state.ok()) << "killed before call " << calls << ": " << state.status().message();
      }
    auto kept = io::KeptStates::open(folder.path(), 2);
    ASSERT_TRUE(kept.ok() && save(folder.path(), 9).ok());
    ASSERT_TRUE(kept->prune(9).ok());
    EXPECT_THAT(namesIn(folder.path()), ElementsAre("latest", AnyOf(folderName(2), folderName(step)), folderName(9)))
        << calls;
  }
  EXPECT_GT(calls, 60) << "a save has more system calls than this";
}

TEST(KeptStates, KilledAtAnyCallOfANewStatesSave) {
  expectAWholeStateWhenKilledWhileSaving(3);
}

TEST(KeptStates, KilledAtAnyCallOfASaveThatReplaces) {
  expectAWholeStateWhenKilledWhileSaving(2);
}

}  // namespace
}  // namespace sheaf
