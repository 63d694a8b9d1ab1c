// State in files across crashes: at every call on the files of every rank, with whatever a machine may find afterwards.
#include "test/runtime/FilesCrash.h"

namespace sheaf::testing {
namespace {

constexpr int64_t kSteps = 4;

class FilesCrash : public FilesCrashTest {};

TEST_F(FilesCrash, AtEveryCallOfEveryRank) {
  crashAtEveryCall();
}

// A run that goes on from a crash crashes again, where ranks were a step apart, too.
TEST_F(FilesCrash, AgainAndAgain) {
  const std::string weights = undisturbed();
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    empty();
    int64_t begun = -1;
    std::string what = "round " + std::to_string(round);
    for (int crashes = 0; crashes < 3; ++crashes) {
      const std::string rank = random() % 2 ? "rank-0." : "rank-1.";
      const int64_t call = 18 + static_cast<int64_t>(random() % 40);
      VolatileFiles files(rank, call);
      Status status = run(options(kSteps, begun >= 0), &files);
      const Logged before = logged();
      if (status.ok() || (begun < 0 && before.reported == 0)) break;
      files.afterCrash(random());
      what += ", " + rank + std::to_string(call);
      begun = std::max(before.begun, std::max<int64_t>(before.reported - 2, 0));
    }
    if (begun < 0) continue;
    expectResumes(what, 0, weights);
    if (HasFailure()) return;
  }
}

// A run that ends leaves a checksum of its state. It must not stand in the way of a state that is written after it.
TEST_F(FilesCrash, AtEveryCallOfARunThatGoesOnFromACompleteOne) {
  const std::string weights = undisturbed();
  auto begin = [&] {
    empty();
    ASSERT_TRUE(run(options(2, false)).ok());
  };
  for (const std::string rank : {"rank-0.", "rank-1."}) {
    begin();
    VolatileFiles whole(rank, -1);
    ASSERT_TRUE(run(options(kSteps, true), &whole).ok());
    ASSERT_GT(whole.calls(), 20);
    for (int64_t call = 0; call < whole.calls(); ++call) {
      begin();
      VolatileFiles files(rank, call);
      (void)run(options(kSteps, true), &files);
      files.afterCrash(static_cast<uint64_t>(call));
      expectResumes(rank + " at call " + std::to_string(call), 2, weights);
      if (HasFailure()) return;
    }
  }
}

TEST_F(FilesCrash, BytesThatAreChangedAfterTheEndAreNoticed) {
  changeBytesAfterTheEnd();
}

TEST_F(FilesCrash, StateStaysAfterTheRun) {
  const std::string weights = undisturbed();
  empty();
  ASSERT_TRUE(run(options(1, false)).ok());
  ASSERT_TRUE(run(options(3, true)).ok());
  EXPECT_EQ(logged().begun, 1);
  ASSERT_TRUE(run(options(kSteps, true)).ok());
  EXPECT_EQ(readFile(folder_ / "saved"), weights);
  // A run that begins does not overwrite it.
  EXPECT_THAT(run(options(1, false)).message(), AllOf(HasSubstr("rank-0.arena holds a state"), HasSubstr("--resume")));
  ASSERT_TRUE(run(options(kSteps + 1, true)).ok());
}

TEST_F(FilesCrash, WhatIsNotThisStateIsRefused) {
  empty();
  EXPECT_THAT(run(options(1, true)).message(), AllOf(HasSubstr("--resume"), HasSubstr("no state of rank 0")));
  ASSERT_TRUE(run(options(2, false)).ok());
  auto refused = [&](auto... parts) {
    EXPECT_THAT(run(options(3, true)).message(), AllOf(HasSubstr(files_), HasSubstr(parts)...));
  };
  const std::string one = files_ + "/rank-0.arena", two = files_ + "/rank-1.arena", log = files_ + "/rank-0.commit",
                    other = files_ + "/rank-1.commit";
  const std::string first = readFile(one), second = readFile(two), record = readFile(log), records = readFile(other);
  writeFile(one, first.substr(0, first.size() - 4096));
  refused("rank-0.arena has", "something has changed it");
  writeFile(one, first.substr(0, first.size() - 4096) + std::string(4096, 'x'));
  refused("rank-0.arena has no label");
  writeFile(one, second);
  refused("rank-0.arena", "that of rank 1, not 0");
  std::filesystem::remove(one);
  refused("cannot open", "rank-0.arena", "a part of the state");
  writeFile(one, first);
  writeFile(log, records);
  refused("rank-0.commit is that of rank 1 of 2, not 0 of 2");
  writeFile(log, std::string(8192, '\1'));
  refused("no state of rank 0: none was complete");
  std::filesystem::remove(log);
  refused("no state of rank 0");
  writeFile(log, record);
  // A record alone that is damaged is not the state: the one before it may be overwritten on other ranks.
  ASSERT_TRUE(run(options(3, true)).ok());
  writePlan(DurablePlan(2, 1, kBatch).plan, "plan");
  refused("another plan");
  // Other folders than the state's.
  writePlan(DurablePlan(2, 3, kBatch).plan, "plan");
  exec::RunOptions both = options(4, true);
  std::filesystem::create_directory(folder_ / "second");
  both.offloadFolders.push_back(folder_ / "second");
  EXPECT_THAT(run(both).message(), HasSubstr("give all of them with --offload-dir"));
  // The state is what it was.
  ASSERT_TRUE(run(options(4, true)).ok());
  EXPECT_EQ(logged().begun, 3);
}

TEST_F(FilesCrash, ErrorsOfTheSystem) {
  failCalls();
}

TEST_F(FilesCrash, AStepThatCannotBeReadDoesNotCostTheOneBefore) {
  endWithAStepThatCannotBeRead();
}

TEST_F(FilesCrash, NotAfterALossThatIsNotFinite) {
  spoilAStep();
}

}  // namespace
}  // namespace sheaf::testing
