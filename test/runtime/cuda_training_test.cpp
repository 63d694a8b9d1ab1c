// Whole runs of a hand-made plan on the emulated GPU: the same bits at every stage, on any number of ranks, with graphs
// and without, and those of the CPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/exec/Run.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "test/Paths.h"
#include "test/runtime/SavedFiles.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using testing::npy;
using testing::readFile;
using testing::TemporaryFolder;
using testing::TrainingPlan;
using testing::writeTrainingFiles;

constexpr int64_t kRows = 24, kBatch = 8, kSteps = 9;

class CudaTrainingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SHEAF_LIBRARY_PATH", sheaf::paths::kLibraries, 1);
    setenv("SHEAF_CUDA_LIBRARY", sheaf::paths::kEmulatedLibrary, 1);
    writeTrainingFiles(folder_, kRows);
  }

  // What a run leaves: its losses and norms, as text, and the weights' file.
  std::string run(int64_t ranks, int stage, const std::string& device,
                  const std::function<void(exec::RunOptions&)>& change = {}) {
    TrainingPlan made(ranks, stage, kBatch);
    exec::RunOptions options;
    options.plan = folder_ / "plan";
    plan::redigest(made.plan);
    EXPECT_TRUE(plan::writePlan(options.plan, made.plan).ok());
    options.device = device;
    options.steps = kSteps;
    options.data = {*io::parseDataArgument("x=" + (folder_ / "x.npy"))};
    options.log = folder_ / "log";
    options.save = folder_ / "saved";
    if (change) change(options);
    ::testing::internal::CaptureStderr();
    Status status = exec::run(options, control_);
    (void)::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(status.ok()) << status.message();
    std::string left;
    std::istringstream log(readFile(options.log));
    for (std::string line; std::getline(log, line);)
      if (line.find("\"event\"") == std::string::npos) left += line.substr(0, line.find("\"seconds\"")) + "\n";
    return left + readFile(options.save);
  }

  TemporaryFolder folder_;
  exec::RunControl control_;
};

TEST_F(CudaTrainingTest, SameBitsAtEveryStageOnAnyRanks) {
  const std::string expected = run(1, 0, "cpu");
  EXPECT_NE(expected.find("\"step\": 8"), std::string::npos);
  for (int64_t ranks : {1, 2, 4})
    for (int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks at stage " + std::to_string(stage));
      EXPECT_TRUE(run(ranks, stage, "cuda") == expected);
    }
}

TEST_F(CudaTrainingTest, SameBitsHoweverStepsAreIssued) {
  const std::string expected = run(1, 3, "cuda");
  EXPECT_TRUE(run(1, 3, "cuda", [](exec::RunOptions& options) { options.graphs = false; }) == expected);
  EXPECT_TRUE(run(1, 3, "cuda", [](exec::RunOptions& options) { options.poison = true; }) == expected);
  EXPECT_TRUE(run(1, 3, "cuda", [this](exec::RunOptions& options) { options.trace = folder_ / "trace"; }) == expected);
  EXPECT_TRUE(run(1, 3, "cuda", [this](exec::RunOptions& options) {
                options.saveState = folder_ / "state";
                options.saveEvery = 2;
              }) == expected);
}

TEST_F(CudaTrainingTest, SavesWhileItGoesOnWithTheSameBytes) {
  std::map<std::string, std::string> states[2];
  for (bool staged : {false, true}) {
    const std::string folder = folder_ / (staged ? "staged" : "waited");
    run(2, 3, "cuda", [&](exec::RunOptions& options) {
      options.saveState = folder;
      options.saveEvery = 2;
      if (staged) options.saveStaging = 64;
    });
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      if (entry.is_regular_file())
        states[staged][std::filesystem::relative(entry.path(), folder)] = testing::contentOfSaved(entry.path());
  }
  EXPECT_GT(states[0].size(), 6u);
  EXPECT_TRUE(states[0] == states[1]);
}

TEST_F(CudaTrainingTest, GradientsAreThoseOfTheCpu) {
  std::string gradients[2];
  for (bool cuda : {false, true}) {
    run(2, 2, cuda ? "cuda" : "cpu", [this](exec::RunOptions& options) { options.gradients = folder_ / "gradients"; });
    gradients[cuda] = readFile(folder_ / "gradients");
  }
  EXPECT_FALSE(gradients[0].empty());
  EXPECT_TRUE(gradients[0] == gradients[1]);
}

}  // namespace
}  // namespace sheaf
