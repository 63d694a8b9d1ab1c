// State in files that outlives runs on (emulated) GPUs: crashes as on CPU ranks (files_crash_test.cpp), as graphs and
// one by one, and the votes of processes.
#include <atomic>
#include <functional>

#include "runtime/plan/Generations.h"
#include "test/Paths.h"
#include "test/runtime/CudaProcesses.h"
#include "test/runtime/FilesCrash.h"

namespace sheaf::testing {
namespace {

class CudaFiles : public FilesCrashTest {
 protected:
  void SetUp() override {
    device_ = "cuda";
    setenv("SHEAF_CUDA_LIBRARY", sheaf::paths::kEmulatedLibrary, 1);
    FilesCrashTest::SetUp();
  }
  // One rank, whose steps are graphs from the third on: two are captured, and what follows is launched.
  void oneRank() {
    ranks_ = 1, steps_ = 6, seeds_ = 1;
    writePlan(DurablePlan(ranks_, 3, kBatch).plan, "plan");
  }
};

TEST_F(CudaFiles, SameBitsAsOnCpus) {
  for (const int64_t ranks : {1, 2, 4})
    for (const bool graphs : {true, false}) {
      SCOPED_TRACE(std::to_string(ranks) + (graphs ? " ranks with graphs" : " ranks"));
      writePlan(DurablePlan(ranks, 3, kBatch).plan, "plan");
      ranks_ = ranks, steps_ = 9, graphs_ = graphs;
      device_ = "cpu";
      const std::string expected = undisturbed(), files = readFile(files_ + "/rank-0.arena");
      device_ = "cuda";
      EXPECT_TRUE(undisturbed() == expected);
      // The state, in the generation that is current after nine steps, is the same, too: in the plan's next buffers.
      const DurablePlan plan(ranks, 3, kBatch);
      const std::string found = readFile(files_ + "/rank-0.arena");
      for (uint32_t buffer : plan.next) {
        const plan::Buffer& place = plan.plan.buffers(static_cast<int>(buffer));
        EXPECT_TRUE(found.substr(place.offset(), place.bytes()) == files.substr(place.offset(), place.bytes()));
      }
    }
}

// Whatever a run has been cut into, on whichever device.
TEST_F(CudaFiles, GoesOnFromOddAndEvenSteps) {
  for (const int64_t ranks : {1, 2})
    for (const bool graphs : {true, false}) {
      writePlan(DurablePlan(ranks, 3, kBatch).plan, "plan");
      ranks_ = ranks, steps_ = 12, graphs_ = graphs;
      const std::string weights = undisturbed();
      empty();
      int64_t begun = 0;
      for (const auto& [steps, device] : {std::pair(5, "cuda"), {1, "cuda"}, {1, "cpu"}, {5, "cuda"}}) {
        device_ = device;
        const Status status = run(options(begun + steps, begun > 0));
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(logged().begun, begun);
        begun += steps;
      }
      EXPECT_TRUE(readFile(folder_ / "saved") == weights) << ranks << (graphs ? " with graphs" : "");
    }
}

TEST_F(CudaFiles, CrashesAtEveryCallOfEveryRank) {
  seeds_ = 1;
  crashAtEveryCall();
}

TEST_F(CudaFiles, CrashesAtEveryCallBetweenGraphs) {
  oneRank();
  crashAtEveryCall();
}

TEST_F(CudaFiles, BytesThatAreChangedAfterTheEndAreNoticed) {
  changeBytesAfterTheEnd();
}

TEST_F(CudaFiles, ErrorsOfTheSystem) {
  failCalls();
}

TEST_F(CudaFiles, AStepThatCannotBeReadDoesNotCostTheOneBefore) {
  endWithAStepThatCannotBeRead();
}

// The step that cannot be read is the one that would be captured.
TEST_F(CudaFiles, AGraphThatCannotBeReadDoesNotCostTheStepBefore) {
  oneRank();
  endWithAStepThatCannotBeRead();
}

TEST_F(CudaFiles, NotAfterALossThatIsNotFinite) {
  spoilAStep();
}

TEST_F(CudaFiles, NotAfterALossThatIsNotFiniteOfAGraph) {
  oneRank();
  spoilAStep();
}

// The first sync of the rank's files after `armed` is set fails.
class FailingSyncs : public FileLayer {
 public:
  explicit FailingSyncs(std::string rank) : rank_(std::move(rank)) {}
  int open(const std::string& path, int flags, mode_t mode) override {
    const int descriptor = FileLayer::open(path, flags, mode);
    if (path.find(rank_) != std::string::npos) mine_ = descriptor;
    return descriptor;
  }
  int fdatasync(int descriptor) override {
    if (!armed || descriptor != mine_) return FileLayer::fdatasync(descriptor);
    errno = EIO;
    return -1;
  }
  std::atomic<bool> armed = false;

 private:
  const std::string rank_;
  std::atomic<int> mine_ = -1;
};

// Of two processes one cannot make a step durable. The other one has, and must keep the state before it: that is the
// newest that both have.
TEST_F(CudaFiles, ARankThatIsNotDurableGivesNoVote) {
  const DurablePlan made(2, 3, kBatch);
  const plan::Plan& plan = made.plan;
  constexpr int kGood = 5;  // two steps one by one, then graphs
  for (const bool graphs : {true, false}) {
    empty();
    FailingSyncs files("rank-1.arena");
    DeviceOptions options;
    options.graphs = graphs;
    options.offloadFolders = {files_};
    options.fileState = FileState{.plan = 1, .run = 2, .step = {}};
    options.files = &files;
    auto valuesOf = [&](int64_t step) {
      auto values = std::make_shared<StepValues>();
      values->step = step;
      values->readInput = [](int64_t, uint32_t, std::span<std::byte> destination) {
        for (size_t at = 0; at < destination.size(); at += sizeof(float)) {
          const float value = 1;
          std::memcpy(&destination[at], &value, sizeof value);
        }
        return Status();
      };
      values->scalars = {0.5f};
      values->commit = [step](int64_t, std::span<const std::byte>, const StepValues::Poll&) {
        return Expected<std::optional<Committed>>(std::optional(Committed{step + 1, 2, ""}));
      };
      return values;
    };
    Processes processes(plan, 2, options, std::chrono::seconds(20));
    auto stateOf = [&](RankContext& rank) {
      std::string state;
      const plan::Generations generations(plan);
      for (uint32_t home : made.homes) {
        const plan::Buffer& place = plan.buffers(static_cast<int>(generations.placeOf(home, rank.oddGeneration())));
        std::string bytes(place.bytes(), '\0');
        EXPECT_TRUE(rank.readSpace(place.space(), place.offset(), std::as_writable_bytes(std::span(bytes))).ok());
        state += bytes;
      }
      return state;
    };
    std::string good[2], left;
    Status ends[2];
    std::atomic<int> ready = 0;
    processes.onEach([&](size_t rank) {
      RankContext& context = processes.rank(rank);
      Contexts& contexts = processes.contexts[rank];
      EXPECT_TRUE(context.commit(Committed{0, 2, ""}).ok());
      expectOk(runBodies(plan, contexts, kGood, valuesOf));
      good[rank] = stateOf(context);
      if (++ready == 2) files.armed = true;
      while (!files.armed) std::this_thread::yield();
      ends[rank] = runBodies(plan, contexts, 3, [&](int round) { return valuesOf(kGood + round); })[0];
    });
    EXPECT_THAT(ends[1].message(), AllOf(HasSubstr("persist"), HasSubstr("cannot make it durable")));
    EXPECT_FALSE(ends[0].ok());
    // After an odd number of steps the state is in the plan's next buffers.
    for (uint32_t next : made.next) {
      const plan::Buffer& place = plan.buffers(static_cast<int>(next));
      left += readFile(files_ + "/rank-0.arena").substr(place.offset(), place.bytes());
    }
    EXPECT_TRUE(left == good[0]) << "rank 0 has overwritten what rank 1 would go on from";
  }
}

}  // namespace
}  // namespace sheaf::testing
