// Which saved states are kept, and that a process that is killed at any of its system calls leaves a whole one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <set>

#include "runtime/io/Checkpoint.h"
#include "runtime/io/KeptStates.h"
#include "test/runtime/FileSystem.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::InMemory;
using testing::readFile;
using testing::TemporaryFolder;
using testing::writeFile;

const std::string kRankFile = "rank-00000.safetensors";

// A state of one parameter with four elements.
Status save(const std::string& folder, int64_t step) {
  auto writer = io::CheckpointWriter::create(folder, step);
  if (!writer.ok()) return writer.status();
  io::Manifest manifest;
  manifest.step = step;
  manifest.parameters.push_back({"w", io::DataType::F32, {4}, {}, {}});
  const std::vector<float> values(4, static_cast<float>(step));
  auto file = io::SafetensorsWriter::create(writer->path(kRankFile), {{"parameter/0/w", io::DataType::F32, {4}}});
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(values))));
  SHEAF_RETURN_IF_ERROR(file->commit());
  manifest.files.push_back({kRankFile, file->size(), file->checksum()});
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
  std::filesystem::resize_file(states + "/" + folderName(3) + "/" + kRankFile, 10);
  ASSERT_TRUE(kept->prune(4).ok());
  // 3 is damaged and does not count.
  EXPECT_THAT(namesIn(states), ElementsAre("latest", folderName(2), folderName(3), folderName(4), folderName(900)));
}

TEST(KeptStates, WhatKilledRunsLeaveIsRemoved) {
  TemporaryFolder folder;
  auto kept = io::KeptStates::open(folder.path(), 1);
  ASSERT_TRUE(save(folder.path(), 1).ok());
  for (const char* name : {".saving-abc123", ".saving-Ab3dEf.old", ".removed-step-00000000"}) {
    std::filesystem::create_directory(folder / name);
    for (const char* file : {"manifest.json", "rank-00000.safetensors", "rank-123456.safetensors", "process-00001",
                             ".manifest.json-abc123", ".rank-00000.safetensors-abc123", ".process-00001-abc123"})
      writeFile(folder / name + "/" + file, "");
  }
  writeFile(folder / ".latest-abc123", "step-00000001\n");
  ASSERT_TRUE(kept->prune(1).ok());
  EXPECT_THAT(namesIn(folder.path()), ElementsAre("latest", folderName(1)));
}

// Whatever is not Sheaf's stays, with its contents, at every place where states are removed or replaced.
TEST(KeptStates, FilesOfOthersStay) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const std::set<std::string> files{"latest.txt",    "latest.bak",     ".latest-abc12",     ".latest-abc1234",
                                    "latest-abc123", ".saving-abc123", ".saving-notes.txt", "step-00000002.bak",
                                    "step-2",        "notes",          ".removed-notes",    "rank-00000.safetensors"};
  const std::set<std::string> folders{"latest.good",    ".latest-abc124",    ".saving-abc",
                                      ".saving-mine12", ".removed-step-2",   ".removed-mine",
                                      "step-3",         "step-00000004.bak", "step-00000005"};
  for (const std::string& name : files) writeFile(folder / name, name);
  for (const std::string& name : folders) {
    fs::create_directory(folder / name);
    writeFile(folder / name + "/mine", name);
  }
  fs::create_directory(folder / "elsewhere");
  writeFile(folder / "elsewhere/manifest.json", "mine");
  const std::set<std::string> links{"step-00000006", ".saving-abc125", ".removed-step-00000006", ".latest-abc126"};
  for (const std::string& name : links) fs::create_symlink("elsewhere", folder / name);
  auto kept = io::KeptStates::open(folder.path(), 1);
  ASSERT_TRUE(kept.ok());
  // A state with notes is replaced, and then it is too many. So is one with a folder and a link.
  ASSERT_TRUE(save(folder.path(), 10).ok());
  writeFile(folder / folderName(10) + "/notes", "10");
  ASSERT_TRUE(save(folder.path(), 10).ok());
  EXPECT_EQ(readFile(folder / folderName(10) + "/notes"), "10");
  ASSERT_TRUE(save(folder.path(), 11).ok());
  fs::create_directory(folder / folderName(11) + "/deep");
  writeFile(folder / folderName(11) + "/deep/manifest.json", "11");
  fs::create_symlink("../elsewhere", folder / folderName(11) + "/rank-00001.safetensors");
  for (int64_t step : {12, 13}) ASSERT_TRUE(save(folder.path(), step).ok());
  for (int round = 0; round < 2; ++round) {
    Status status = kept->prune(13);
    ASSERT_TRUE(status.ok()) << status.message();
    std::set<std::string> expected{"elsewhere", "latest", folderName(10), folderName(11), folderName(13)};
    for (const auto& names : {files, folders, links}) expected.insert(names.begin(), names.end());
    EXPECT_EQ(namesIn(folder.path()), expected);
    for (const std::string& name : files) EXPECT_EQ(readFile(folder / name), name);
    for (const std::string& name : folders) EXPECT_EQ(readFile(folder / name + "/mine"), name);
    EXPECT_EQ(readFile(folder / "elsewhere/manifest.json"), "mine");
    EXPECT_THAT(namesIn(folder / folderName(10)), ElementsAre("notes"));
    EXPECT_THAT(namesIn(folder / folderName(11)), ElementsAre("deep", "rank-00001.safetensors"));
    EXPECT_EQ(readFile(folder / folderName(11) + "/deep/manifest.json"), "11");
    EXPECT_EQ(newestIn(folder.path()), 13);
  }
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
    std::filesystem::create_directory(folder / ".saving-abc123");
    ASSERT_TRUE(first->prune(2).ok());
    EXPECT_THAT(namesIn(folder.path()), ElementsAre(".saving-abc123", "latest", folderName(1), folderName(2)));
  }
  EXPECT_TRUE(io::KeptStates::open(folder.path(), 1).ok());
}

TEST(KeptStates, AFolderWithoutStatesDoesNotStay) {
  TemporaryFolder folder;
  for (int64_t keep : {0, 1}) {
    ASSERT_TRUE(io::KeptStates::open(folder / "deep/er/states", keep).ok());
    EXPECT_FALSE(std::filesystem::exists(folder / "deep"));
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

// A folder with the states 1 and 2, of which 2 are kept; then a process saves `step` and is killed at each call.
void expectAWholeStateWhenKilledWhileSaving(int64_t step) {
  // The process is killed, not the machine: no disk is needed, which would make each of some hundred saves slow.
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
