// Whole runs of a hand-made plan on the CPU device, against arithmetic done here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>

#include "runtime/base/Json.h"
#include "runtime/exec/Run.h"
#include "runtime/exec/StepScalars.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/KeptStates.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Verify.h"
#include "test/Paths.h"
#include "test/runtime/SavedFiles.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using testing::contentOfSaved;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBiasOffset;
using testing::kElements;
using testing::npy;
using testing::readFile;
using testing::TemporaryFolder;
using testing::TrainingPlan;
using testing::trainingRows;
using testing::writeFile;
using testing::writeTrainingFiles;

constexpr int64_t kRows = 24, kBatch = 8;

// What the run must give.
struct Reference {
  std::vector<double> loss, norm, weights = std::vector<double>(kElements), gradient = std::vector<double>(kElements);

  explicit Reference(int64_t steps, double rate = 0.125) {
    std::vector<float> x = trainingRows(kRows), initial = TrainingPlan::initial();
    for (size_t i = 0; i < 48; ++i) weights[i] = initial[i];
    for (size_t i = 0; i < 10; ++i) weights[kBiasOffset + i] = initial[48 + i];
    std::vector<double> momentum(kElements);
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<double> sum(kElements);
      double y = 0, squares = 0;
      for (int64_t row = step * kBatch; row < (step + 1) * kBatch; ++row)
        for (size_t i = 0; i < kElements; ++i) sum[i] += x[static_cast<size_t>(row % kRows) * kElements + i];
      for (size_t i = 0; i < kElements; ++i) {
        y += sum[i] * weights[i];
        squares += sum[i] * sum[i];
        momentum[i] += sum[i];
        weights[i] -= rate * momentum[i];
      }
      if (step == 0) gradient = sum;
      loss.push_back(y);
      norm.push_back(std::sqrt(squares));
    }
  }
};

struct LogLine {
  json::Value value;
  double number(const char* name) const {
    double number = NAN;
    if (const json::Value* member = value.object()->find(name)) (void)member->number(number);
    return number;
  }
};

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SHEAF_LIBRARY_PATH", sheaf::paths::kLibraries, 1);
    writeTrainingFiles(folder_, kRows);
  }

  std::string plan(int64_t ranks, int stage, const std::function<void(plan::Plan&)>& change = {}) {
    TrainingPlan made(ranks, stage, kBatch);
    if (change) change(made.plan);
    if (plan::verifyPlan(made.plan).ok()) plan::redigest(made.plan);
    std::string path = folder_ / ("plan-" + std::to_string(plans_++));
    EXPECT_TRUE(plan::writePlan(path, made.plan).ok());
    return path;
  }

  exec::RunOptions options(const std::string& plan, int64_t steps) {
    exec::RunOptions options;
    options.plan = plan;
    options.steps = steps;
    options.data = {*io::parseDataArgument("x=" + (folder_ / "x.npy"))};
    options.log = folder_ / "log";
    return options;
  }

  Status run(const exec::RunOptions& options) {
    ::testing::internal::CaptureStderr();
    Status status = exec::run(options, control_);
    stderr_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  std::vector<LogLine> log(bool events) {
    std::vector<LogLine> lines;
    std::istringstream text(readFile(folder_ / "log"));
    for (std::string line; std::getline(text, line);) {
      auto value = json::parse(line);
      EXPECT_TRUE(value.ok()) << line;
      if ((value->object()->find("event") != nullptr) == events) lines.push_back({*value});
    }
    return lines;
  }

  void expectLog(const Reference& reference, int64_t first = 0) {
    std::vector<LogLine> lines = log(false);
    ASSERT_EQ(lines.size() + static_cast<size_t>(first), reference.loss.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      size_t step = i + static_cast<size_t>(first);
      EXPECT_EQ(lines[i].number("step"), static_cast<double>(step));
      EXPECT_NEAR(lines[i].number("loss"), reference.loss[step], 1e-3 * std::abs(reference.loss[step]) + 1e-3) << step;
      EXPECT_NEAR(lines[i].number("grad_norm"), reference.norm[step], 1e-6 * reference.norm[step]) << step;
      EXPECT_GE(lines[i].number("seconds"), 0);
    }
  }

  // A saved file's values of both parameters, `w` back in the plan's layout.
  std::vector<float> valuesOf(const std::string& path) {
    auto file = io::Safetensors::open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    std::vector<float> w(48), b(10), result(58);
    EXPECT_EQ(file->find("w")->shape, (std::vector<int64_t>{6, 8}));
    std::memcpy(w.data(), file->find("w")->data.data(), 192);
    std::memcpy(b.data(), file->find("b")->data.data(), 40);
    for (size_t i = 0; i < 48; ++i) result[i] = w[i % 6 * 8 + i / 6];
    std::copy(b.begin(), b.end(), result.begin() + 48);
    return result;
  }

  void expectValues(const std::string& path, const std::vector<double>& bucket) {
    std::vector<float> values = valuesOf(path);
    for (size_t i = 0; i < 58; ++i) EXPECT_NEAR(values[i], bucket[i < 48 ? i : kBiasOffset + i - 48], 1e-3) << i;
  }

  TemporaryFolder folder_;
  exec::RunControl control_;
  std::string stderr_;
  int plans_ = 0;
};

TEST_F(RunTest, TrainsAtEveryStageToTheSameBits) {
  Reference reference(5);
  std::string weights;
  for (int64_t ranks : {1, 2, 4})
    for (int stage = 0; stage <= 3; ++stage) {
      exec::RunOptions run = options(plan(ranks, stage), 5);
      run.save = folder_ / "w";
      run.gradients = folder_ / "g";
      run.poison = stage % 2 == 1;
      Status status = this->run(run);
      ASSERT_TRUE(status.ok()) << status.message();
      expectLog(reference);
      expectValues(run.save, reference.weights);
      expectValues(run.gradients, reference.gradient);
      if (weights.empty()) weights = readFile(run.save);
      EXPECT_EQ(readFile(run.save), weights) << ranks << " ranks, stage " << stage;
      size_t arenas = 0;
      for (const LogLine& line : log(true))
        if (*line.value.object()->find("event")->string() == "arena") {
          ++arenas;
          EXPECT_LE(line.number("highest_touched_byte"), line.number("peak_bytes"));
        }
      EXPECT_EQ(arenas, run.poison ? static_cast<size_t>(ranks) : 0);
    }
}

TEST_F(RunTest, ResumesOnOtherRanksAndStages) {
  Reference reference(7);
  exec::RunOptions whole = options(plan(4, 3), 7);
  whole.save = folder_ / "whole";
  ASSERT_TRUE(run(whole).ok());
  for (auto [ranks, stage] : {std::pair<int64_t, int>(4, 3), {2, 1}, {1, 0}}) {
    exec::RunOptions first = options(plan(4, 3), 4), second = options(plan(ranks, stage), 7);
    first.saveState = second.resume = folder_ / ("state-" + std::to_string(ranks));
    ASSERT_TRUE(run(first).ok());
    std::filesystem::remove(folder_ / "log");
    second.save = folder_ / "resumed";
    Status status = run(second);
    ASSERT_TRUE(status.ok()) << status.message();
    expectLog(reference, 4);
    EXPECT_EQ(readFile(second.save), readFile(whole.save)) << ranks << " ranks, stage " << stage;
  }
}

// For every schedule, the same command goes on from a state to the same files, whether --steps or --epochs
// says how long the training is, on one rank and on several, and at another stage.
TEST_F(RunTest, TheSameCommandGoesOn) {
  const char* schedules[] = {"constant:warmup=4,start=0",
                             "cosine",
                             "cosine:warmup=3,min=0.1,delay=2,idle=0.5",
                             "cosine:steps=6",
                             "linear:warmup=2,start=0.1",
                             "polynomial:power=2,min=0.2",
                             "step:step_size=2,warmup=1",
                             "wsd:decay=4,warmup=2,anneal=1-sqrt",
                             "one-cycle",
                             "one-cycle:three_phase=true,anneal=linear"};
  int64_t next = 0;
  for (const char* schedule : schedules)
    for (const bool epochs : {false, true}) {
      SCOPED_TRACE(std::string(schedule) + (epochs ? " by epochs" : ""));
      // Three passes over 24 rows are nine steps.
      const int64_t ranks = int64_t{1} << next % 3, every = 2 + next++ % 3;
      exec::RunOptions whole = options(plan(ranks, ranks > 1 ? 3 : 0), epochs ? 0 : 9);
      whole.epochs = epochs ? 3 : 0;
      whole.schedule = *plan::parseSchedule(schedule);
      whole.shuffleSeed = 4;
      whole.saveState = folder_ / "whole";
      whole.saveEvery = every;
      whole.save = folder_ / "w";
      ASSERT_TRUE(run(whole).ok()) << stderr_;
      const std::vector<LogLine> lines = log(false);
      for (int64_t cut : {every, 8 / every * every}) {
        exec::RunOptions rest = whole;
        rest.plan = plan(ranks, ranks > 1 && cut % 2 ? 1 : 0);
        rest.resume = whole.saveState + "/" + io::stepFolder(cut);
        rest.saveState = folder_ / "rest";
        rest.saveEvery = 0;
        rest.save = folder_ / "v";
        std::filesystem::remove(folder_ / "log");
        std::filesystem::remove_all(rest.saveState);
        const Status status = run(rest);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_THAT(stderr_, ::testing::Not(HasSubstr("warning")));
        const std::vector<LogLine> made = log(false);
        ASSERT_EQ(made.size(), static_cast<size_t>(9 - cut));
        for (size_t i = 0; i < made.size(); ++i)
          for (const char* number : {"step", "loss", "lr"})
            EXPECT_EQ(made[i].number(number), lines[i + static_cast<size_t>(cut)].number(number)) << number;
        auto manifest = [&](const std::string& folder) {
          auto read = io::parseManifest(readFile(folder + "/" + io::stepFolder(9) + "/manifest.json"));
          return read.ok() ? std::pair(read->samples, read->length)
                           : std::pair(int64_t{-1}, std::optional<io::TrainingLength>());
        };
        EXPECT_EQ(manifest(rest.saveState), manifest(whole.saveState));
        EXPECT_EQ(readFile(rest.save), readFile(whole.save));
      }
      std::filesystem::remove_all(whole.saveState);
    }
}

// One line says what is different from the run that saved the state, and what follows from it.
TEST_F(RunTest, ResumingSaysWhatIsDifferent) {
  exec::RunOptions first = options(plan(2, 3), 9);
  first.schedule = *plan::parseSchedule("cosine");
  first.shuffleSeed = 4;
  first.saveState = folder_ / "state";
  first.saveEvery = 5;
  ASSERT_TRUE(run(first).ok());
  exec::RunOptions second = first;
  second.saveState.clear();
  second.saveEvery = 0;
  second.resume = first.saveState + "/" + io::stepFolder(5);
  writeFile(folder_ / "more.npy", npy<float>("<f4", {kRows + 8, kElements}, trainingRows(kRows + 8)));
  struct Case {
    std::function<void(exec::RunOptions&)> change;
    std::string line;
    size_t steps;
  };
  const std::string stays = ": the learning-rate schedule stays 'cosine:steps=9'";
  const Case cases[] = {
      {[](exec::RunOptions&) {}, "", 4},
      {[](exec::RunOptions& o) { o.steps = 12; },
       "the training of the state is 9 steps long, this run ends at step 12" + stays +
           ", whose rate no longer changes after step 9; --lr-schedule replaces it",
       7},
      {[](exec::RunOptions& o) { o.steps = 7; },
       "the training of the state is 9 steps long, this run ends at step 7" + stays + "; --lr-schedule replaces it", 2},
      {[](exec::RunOptions& o) { o.steps = 0, o.epochs = 2; },
       "the training of the state is 9 steps long, this run ends at step 6" + stays, 1},
      {[](exec::RunOptions& o) { o.schedule = *plan::parseSchedule("linear:min=0.5"); },
       "the learning-rate schedule is 'linear:steps=9,min=0.5'; the run that saved the state had 'cosine:steps=9'", 4},
      {[](exec::RunOptions& o) { o.shuffleSeed = 5; }, "--shuffle 5: the run that saved the state had --shuffle 4", 4},
      {[](exec::RunOptions& o) { o.shuffleSeed.reset(); }, "", 4},
      {[&](exec::RunOptions& o) { o.data = {*io::parseDataArgument("x=" + (folder_ / "more.npy"))}; },
       "the run that saved the state read 24 rows of data, and there are 32 now", 4},
      {[&](exec::RunOptions& o) { o.resume = first.saveState; },
       "nothing is left to train: the state is of step 9, and --steps 9 is the length of the whole training", 0},
  };
  for (const Case& c : cases) {
    exec::RunOptions changed = second;
    c.change(changed);
    std::filesystem::remove(folder_ / "log");
    const Status status = run(changed);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(log(false).size(), c.steps) << c.line;
    if (c.line.empty()) {
      EXPECT_THAT(stderr_, ::testing::Not(HasSubstr("warning"))) << stderr_;
    } else {
      EXPECT_THAT(stderr_, HasSubstr("warning: " + c.line));
    }
  }
  // The length of a training is not less than the steps that are done.
  exec::RunOptions less = second;
  less.steps = 3;
  EXPECT_EQ(
      run(less).message(),
      "--steps 3 is the length of the whole training, and the state is of step 5 already: --steps 8 trains 3 more");
}

TEST_F(RunTest, AStateWithoutALengthIsResumed) {
  exec::RunOptions first = options(plan(2, 3), 5);
  first.saveState = folder_ / "state";
  ASSERT_TRUE(run(first).ok());
  const std::string path = first.saveState + "/" + io::stepFolder(5) + "/manifest.json";
  io::Manifest manifest = *io::parseManifest(readFile(path));
  ASSERT_TRUE(manifest.length);
  manifest.length.reset();
  writeFile(path, io::manifestText(manifest));
  exec::RunOptions second = options(plan(2, 3), 9);
  second.resume = first.saveState;
  const std::string says =
      "of an older version and does not say how long its training is: --steps 9 is taken for the "
      "length of all of it";
  for (const auto& [schedule, more] :
       {std::pair("constant", "\n"), {"cosine", ", and for that of the learning-rate schedule\n"}}) {
    second.schedule = *plan::parseSchedule(schedule);
    std::filesystem::remove(folder_ / "log");
    ASSERT_TRUE(run(second).ok());
    EXPECT_EQ(log(false).size(), 4u);
    EXPECT_THAT(stderr_, HasSubstr(says + more));
  }
  // A schedule that cannot be is not this program's.
  manifest.length = {.steps = 9, .schedule = "cosine:steps=none", .batch = 8, .rows = 24};
  writeFile(path, io::manifestText(manifest));
  EXPECT_THAT(run(second).message(), AllOf(HasSubstr("--resume: the state in"), HasSubstr("steps=none")));
}

TEST_F(RunTest, SavesEveryFewStepsWithoutChangingAnything) {
  exec::RunOptions plain = options(plan(2, 2), 7), saving = options(plan(2, 2), 7);
  plain.save = folder_ / "plain";
  saving.save = folder_ / "saving";
  saving.saveState = folder_ / "state";
  saving.saveEvery = 3;
  ASSERT_TRUE(run(plain).ok());
  ASSERT_TRUE(run(saving).ok());
  EXPECT_EQ(readFile(plain.save), readFile(saving.save));
  for (const char* name : {"step-00000003", "step-00000006", "step-00000007"})
    EXPECT_TRUE(std::filesystem::exists(saving.saveState + "/" + name)) << name;
}

TEST_F(RunTest, KeepsTheNewestStates) {
  exec::RunOptions saving = options(plan(2, 2), 7);
  saving.saveState = folder_ / "state";
  saving.saveEvery = 1;
  saving.keepSaves = 2;
  ASSERT_TRUE(run(saving).ok());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(saving.saveState)) names.insert(entry.path().filename());
  EXPECT_THAT(names, ElementsAre("latest", "step-00000006", "step-00000007"));
  exec::RunOptions resuming = options(plan(2, 2), 8);
  resuming.resume = saving.saveState;
  ASSERT_TRUE(run(resuming).ok());
  EXPECT_THAT(stderr_, HasSubstr("resumed from " + (folder_ / "state/step-00000007")));
}

TEST_F(RunTest, StatesOfAnotherTrainingStay) {
  exec::RunOptions first = options(plan(2, 2), 4);
  first.saveState = folder_ / "state";
  ASSERT_TRUE(run(first).ok());
  EXPECT_THAT(stderr_, Not(HasSubstr("another training")));
  exec::RunOptions other = options(plan(2, 2), 5);
  other.saveState = first.saveState;
  other.keepSaves = 1;
  EXPECT_THAT(run(other).message(), AllOf(HasSubstr("--save-state: " + first.saveState + " holds states of another"),
                                          HasSubstr("step-00000004"), HasSubstr("--resume " + first.saveState)));
  EXPECT_TRUE(std::filesystem::exists(first.saveState + "/step-00000004"));
  for (const std::string& resumed : {first.saveState, first.saveState + "/step-00000004", first.saveState + "/"}) {
    other.resume = resumed;
    Status status = run(other);
    EXPECT_TRUE(status.ok()) << resumed << ": " << status.message();
    std::filesystem::remove_all(first.saveState);
    ASSERT_TRUE(run(first).ok());
  }
  other.resume.clear();
  other.keepSaves = 0;
  ASSERT_TRUE(run(other).ok());
  EXPECT_THAT(stderr_, HasSubstr("holds states of another training, such as step-00000004; those of the same steps"));
  // A state is not a folder of states.
  other.saveState = first.saveState + "/step-00000004";
  EXPECT_THAT(run(other).message(), AllOf(HasSubstr("is a saved state"), HasSubstr("holds it, " + first.saveState)));
}

TEST_F(RunTest, ACopyOfAStateIsTheSameTraining) {
  exec::RunOptions first = options(plan(2, 2), 4);
  first.saveState = folder_ / "state";
  ASSERT_EQ(run(first).message(), "");
  std::filesystem::copy(first.saveState + "/step-00000004", folder_ / "backup");
  exec::RunOptions goesOn = options(plan(2, 2), 5);
  goesOn.saveState = first.saveState;
  goesOn.keepSaves = 1;
  goesOn.resume = folder_ / "backup";
  EXPECT_EQ(run(goesOn).message(), "");
  // The state of step 5, which has replaced the one of step 4, is not the one that the run resumes.
  EXPECT_THAT(run(goesOn).message(), HasSubstr("holds states of another training, such as step-00000005"));
}

// A folder step-N of --outputs, and a manifest of a web application.
TEST_F(RunTest, ForeignStepFoldersAndManifestsAreNoStates) {
  const std::string folder = folder_ / "shared";
  std::filesystem::create_directories(folder + "/step-00000002");
  writeFile(folder + "/step-00000002/logits.npy", "outputs");
  writeFile(folder + "/manifest.json", R"({"name": "app"})");
  exec::RunOptions saving = options(plan(2, 2), 4);
  saving.saveState = folder;
  saving.keepSaves = 1;
  ASSERT_EQ(run(saving).message(), "");
  EXPECT_THAT(stderr_, Not(HasSubstr("another training")));
  exec::RunOptions resuming = options(plan(2, 2), 5);
  resuming.resume = folder;
  ASSERT_EQ(run(resuming).message(), "");
  EXPECT_THAT(stderr_, HasSubstr("resumed from " + folder + "/step-00000004"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/step-00000002/logits.npy"));
}

TEST_F(RunTest, ARefusedRunLeavesTheLogOfAnEarlierOne) {
  exec::RunOptions refused = options(plan(2, 2), 4);
  writeFile(refused.log, "earlier\n");
  refused.threadsPerRank = 5000;
  EXPECT_THAT(run(refused).message(), HasSubstr("a rank has at most 1024 threads"));
  EXPECT_EQ(readFile(refused.log), "earlier\n");
  std::filesystem::remove(refused.log);
  EXPECT_FALSE(run(refused).ok());
  EXPECT_THAT(readFile(refused.log), HasSubstr("\"error\""));
  refused.threadsPerRank = 0;
  ASSERT_TRUE(run(refused).ok());
  EXPECT_THAT(readFile(refused.log), Not(HasSubstr("\"error\"")));
}

TEST_F(RunTest, DoesNotRemoveStatesOfARunUnderWay) {
  exec::RunOptions saving = options(plan(2, 2), 2);
  saving.saveState = folder_ / "state";
  auto other = io::KeptStates::open(saving.saveState, 0);
  ASSERT_TRUE(other.ok());
  saving.keepSaves = 1;
  EXPECT_THAT(run(saving).message(),
              AllOf(HasSubstr("--save-state: another run"), HasSubstr(saving.saveState), HasSubstr("another folder")));
  saving.keepSaves = 0;
  EXPECT_TRUE(run(saving).ok());
}

TEST_F(RunTest, SavesWhileItGoesOnWithTheSameBytes) {
  for (auto [ranks, stage] : {std::pair<int64_t, int>(1, 0), {2, 2}, {4, 3}})
    for (uint64_t staging : {uint64_t{64}, UINT64_MAX}) {
      exec::RunOptions waiting = options(plan(ranks, stage), 9);
      waiting.saveEvery = 2;
      waiting.saveState = folder_ / "waiting";
      exec::RunOptions staged = waiting;
      staged.saveState = folder_ / "staged";
      staged.saveStaging = staging;
      ASSERT_TRUE(run(waiting).ok());
      Status status = run(staged);
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<double> saved;
      for (const LogLine& line : log(true))
        if (*line.value.object()->find("event")->string() == "saved_state") {
          saved.push_back(line.number("step"));
          EXPECT_GE(line.number("seconds"), line.number("stalled_seconds"));
        }
      EXPECT_THAT(saved, ElementsAre(2, 4, 6, 8, 9));
      for (const auto& entry : std::filesystem::recursive_directory_iterator(waiting.saveState))
        if (entry.is_regular_file()) {
          const std::string name = std::filesystem::relative(entry.path(), waiting.saveState);
          EXPECT_EQ(contentOfSaved(staged.saveState + "/" + name), contentOfSaved(entry.path()))
              << name << " of " << ranks << " ranks with staging " << staging;
        }
      std::filesystem::remove_all(waiting.saveState);
      std::filesystem::remove_all(staged.saveState);
    }
}

TEST_F(RunTest, AFolderForStatesThatCannotBeIsFoundBeforeTheTraining) {
  writeFile(folder_ / "file", "");
  for (int64_t keep : {0, 1}) {
    exec::RunOptions saving = options(plan(1, 0), 3);
    saving.saveState = folder_ / "file/state";
    saving.keepSaves = keep;
    EXPECT_THAT(run(saving).message(), AllOf(HasSubstr("--save-state"), HasSubstr("file/state")));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "log"));
  }
}

TEST_F(RunTest, AStateOfAnotherModelIsRefused) {
  exec::RunOptions first = options(plan(2, 2), 1);
  first.saveState = folder_ / "state";
  ASSERT_TRUE(run(first).ok());
  auto rename = [](plan::Plan& plan) { plan.mutable_parameters(1)->set_name("c"); };
  auto otherState = [](plan::Plan& plan) { plan.mutable_buckets(0)->mutable_states(0)->set_name("exp_avg"); };
  exec::RunOptions second = options(plan(2, 2, rename), 1), third = options(plan(2, 2, otherState), 1);
  second.resume = third.resume = first.saveState;
  EXPECT_THAT(run(second).message(), HasSubstr("no parameter 'c'"));
  EXPECT_THAT(run(third).message(), AllOf(HasSubstr("(momentum)"), HasSubstr("(exp_avg)")));
}

TEST_F(RunTest, WeightsByNameInTheirOwnLayout) {
  exec::RunOptions first = options(plan(2, 3), 3);
  first.save = folder_ / "w";
  ASSERT_TRUE(run(first).ok());
  exec::RunOptions zeroRate = options(plan(4, 1), 1);
  zeroRate.weights = first.save;
  zeroRate.learningRate = 0;
  zeroRate.save = folder_ / "again";
  ASSERT_TRUE(run(zeroRate).ok());
  EXPECT_EQ(readFile(zeroRate.save), readFile(first.save));
}

TEST_F(RunTest, WeightsInSeveralFiles) {
  for (auto [ranks, stage] : {std::pair<int64_t, int>(1, 0), {4, 0}, {2, 1}, {4, 3}}) {
    exec::RunOptions saving = options(plan(ranks, stage), 3), whole = saving;
    saving.save = folder_ / "w.safetensors.index.json";
    saving.shardBytes = 100;
    whole.save = folder_ / "whole";
    ASSERT_TRUE(run(saving).ok());
    ASSERT_TRUE(run(whole).ok());
    auto ours = io::Safetensors::openWeights(saving.save), expected = io::Safetensors::open(whole.save);
    ASSERT_TRUE(ours.ok()) << ours.status().message();
    EXPECT_EQ(ours->files().size(), 2u);
    for (const auto& [name, tensor] : expected->tensors()) {
      ASSERT_NE(ours->find(name), nullptr);
      EXPECT_EQ(ours->find(name)->shape, tensor.shape);
      EXPECT_TRUE(std::ranges::equal(ours->find(name)->data, tensor.data)) << name << " of " << ranks;
    }
    exec::RunOptions again = options(plan(2, 1), 1);
    again.weights = saving.save;
    again.learningRate = 0;
    again.save = folder_ / "again";
    ASSERT_TRUE(run(again).ok());
    EXPECT_EQ(readFile(again.save), readFile(whole.save));
  }
}

TEST_F(RunTest, WeightErrors) {
  auto withoutSource = [](plan::Plan& plan) { plan.mutable_parameters(1)->clear_source(); };
  EXPECT_THAT(run(options(plan(1, 0, withoutSource), 1)).message(), AllOf(HasSubstr("b"), HasSubstr("sheaf init")));
  auto otherFile = [](plan::Plan& plan) { plan.mutable_files(0)->set_size(1000); };
  EXPECT_THAT(run(options(plan(1, 0, otherFile), 1)).message(), AllOf(HasSubstr("weights.bin"), HasSubstr("1000")));
  auto otherHash = [](plan::Plan& plan) { plan.mutable_files(0)->set_size(232); };
  EXPECT_THAT(run(options(plan(1, 0, otherHash), 1)).message(), HasSubstr("changed"));
  std::filesystem::create_directory(folder_ / "moved");
  std::filesystem::rename(folder_ / "weights.bin", folder_ / "moved/weights.bin");
  exec::RunOptions moved = options(plan(1, 0), 1);
  EXPECT_THAT(run(moved).message(), HasSubstr("--weights-dir"));
  moved.weightsFolder = folder_ / "moved";
  EXPECT_EQ(run(moved).message(), "");
  std::filesystem::resize_file(folder_ / "moved/weights.bin", 200);
  EXPECT_THAT(run(moved).message(), HasSubstr("truncated"));
}

TEST_F(RunTest, NotFiniteStopsAndSavesNothing) {
  std::vector<float> x = trainingRows(kRows);
  x[2 * kBatch * kElements + 5] = NAN;
  writeFile(folder_ / "x.npy", npy<float>("<f4", {kRows, kElements}, x));
  exec::RunOptions stop = options(plan(2, 3), 6);
  stop.save = folder_ / "w";
  stop.saveState = folder_ / "state";
  stop.saveEvery = 2;
  for (uint64_t staging : {uint64_t{0}, UINT64_MAX}) {
    stop.saveStaging = staging;
    std::string message = run(stop).message();
    EXPECT_THAT(message, AllOf(HasSubstr("step 2:"), HasSubstr("step-00000002")));
    EXPECT_FALSE(std::filesystem::exists(stop.save));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "state/step-00000004"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "state/step-00000002/manifest.json"));
    EXPECT_EQ(log(false).size(), 3u);
    std::filesystem::remove_all(folder_ / "state");
  }
}

TEST_F(RunTest, AnErrorOfARankEndsTheRunWithItsPlace) {
  // A row that does not fit its type, found by the second rank in the second step.
  auto integers = [](plan::Plan& plan) {
    plan::Input* input = plan.add_inputs();
    input->set_name("t");
    input->set_type(plan::I8);
    input->add_shape(plan.inputs(0).shape(0));
    plan::Buffer* buffer = plan.add_buffers();
    buffer->set_kind(plan::ACTIVATIONS);
    buffer->set_offset((plan.memory().peak_bytes() + 127) / 128 * 128);
    buffer->set_bytes(4);
    plan.mutable_memory()->set_peak_bytes(buffer->offset() + 4);
    plan::Instruction* read = plan.add_body();
    read->set_label("t of the step");
    read->mutable_input()->set_input(1);
    plan::Operand* destination = read->add_operands();
    destination->set_buffer(static_cast<uint32_t>(plan.buffers_size() - 1));
    destination->set_bytes(4);
    destination->set_access(plan::WRITE);
  };
  std::vector<int32_t> t(kRows);
  t[13] = 300;
  writeFile(folder_ / "t.npy", npy<int32_t>("<i4", {kRows}, t));
  exec::RunOptions failing = options(plan(2, 3, integers), 6);
  failing.data.push_back(*io::parseDataArgument("t=" + (folder_ / "t.npy")));
  failing.save = folder_ / "w";
  EXPECT_THAT(run(failing).message(),
              AllOf(HasSubstr("rank 1"), HasSubstr("t of the step"), HasSubstr("row 13"), HasSubstr("300")));
  EXPECT_FALSE(std::filesystem::exists(failing.save));
}

TEST_F(RunTest, AnInterruptedRunSavesItsState) {
  control_.interrupted = true;
  exec::RunOptions stopped = options(plan(2, 1), 5);
  stopped.saveState = folder_ / "state";
  Status status = run(stopped);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(log(false).empty());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "state/step-00000000/manifest.json"));
  EXPECT_THAT(stderr_, HasSubstr("interrupted: 0 of 5 steps are done; saving the state"));
  EXPECT_THAT(stderr_, ::testing::Not(HasSubstr("to go on"))) << "the command is not known";
  control_.commandToResume = [](const std::string& folder) { return "again " + folder; };
  ASSERT_TRUE(run(stopped).ok());
  EXPECT_THAT(stderr_, HasSubstr("to go on: again " + stopped.saveState + "\n"));
  stopped.saveState.clear();
  ASSERT_TRUE(run(stopped).ok());
  EXPECT_THAT(stderr_, HasSubstr("0 of 5 steps are done; no state is saved: --save-state DIR saves one\n"));
  EXPECT_THAT(stderr_, ::testing::Not(HasSubstr("to go on")));
}

TEST_F(RunTest, OptionErrors) {
  exec::RunOptions threads = options(plan(1, 0), 1);
  threads.threadsPerRank = 3;
  EXPECT_THAT(run(threads).message(), HasSubstr("--max-threads-per-rank 3"));
  exec::RunOptions nowhere = options(plan(1, 0), 1);
  nowhere.save = folder_ / "none/w";
  EXPECT_THAT(run(nowhere).message(), HasSubstr("--save"));
  auto huge = [](plan::Plan& plan) {
    plan::Buffer* buffer = plan.add_buffers();
    buffer->set_kind(plan::ACTIVATIONS);
    buffer->set_bytes(uint64_t{1} << 45);
    plan.mutable_memory()->set_peak_bytes(buffer->bytes());
    buffer->set_offset(0);
    for (plan::Buffer& other : *plan.mutable_buffers()) other.set_persistent(false);
  };
  EXPECT_THAT(run(options(plan(1, 0, huge), 1)).message(), HasSubstr("plan is wrong"));
  auto large = [](plan::Plan& plan) {
    plan::Buffer* buffer = plan.add_buffers();
    buffer->set_kind(plan::ACTIVATIONS);
    buffer->set_offset((plan.memory().peak_bytes() + 127) / 128 * 128);
    buffer->set_bytes(uint64_t{1} << 45);
    plan.mutable_memory()->set_peak_bytes(buffer->offset() + buffer->bytes());
  };
  EXPECT_THAT(run(options(plan(1, 0, large), 1)).message(), HasSubstr("this machine has"));
}

}  // namespace
}  // namespace sheaf
