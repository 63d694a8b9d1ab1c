// The executor's parts: step scalars, schedules, the ledger, layouts of weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/exec/StepLedger.h"
#include "runtime/exec/StepScalars.h"
#include "runtime/exec/WeightFiles.h"
#include "runtime/exec/Weights.h"
#include "runtime/plan/Schedules.h"
#include "test/runtime/TrainingPlan.h"
#include "tools/sheaf-run/Options.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StepScalars, EveryKind) {
  plan::Plan plan;
  using Scalar = plan::StepScalar;
  const std::pair<Scalar::Kind, double> scalars[] = {{Scalar::CONSTANT, 0.25},
                                                     {Scalar::LR_TIMES, 0.5},
                                                     {Scalar::ONE_MINUS_LR_TIMES, 0.01},
                                                     {Scalar::LR_OVER_BIAS_CORRECTION, 0.9},
                                                     {Scalar::BIAS_CORRECTION, 0.9},
                                                     {Scalar::SQRT_BIAS_CORRECTION, 0.999},
                                                     {Scalar::STEP, 0},
                                                     {Scalar::FIRST_STEP, 0},
                                                     {Scalar::MAX_NORM, 2}};
  for (auto [kind, value] : scalars) {
    Scalar* scalar = plan.add_scalars();
    scalar->set_kind(kind);
    scalar->set_value(value);
  }
  double lr = 0.1;
  auto f = [](double value) { return static_cast<float>(value); };
  EXPECT_THAT(exec::stepScalars(plan, std::vector{lr}, 3),
              ElementsAre(0.25f, f(lr * 0.5), f(1 - lr * 0.01), f(lr / (1 - std::pow(0.9, 3))), f(1 - std::pow(0.9, 3)),
                          f(std::sqrt(1 - std::pow(0.999, 3))), 3.f, 0.f, 2.f));
  EXPECT_EQ(exec::stepScalars(plan, std::vector{lr}, 1)[7], 1.f);
  // Scalars have the learning rate of their group.
  plan.mutable_scalars(1)->set_group(1);
  EXPECT_THAT(exec::stepScalars(plan, std::vector{lr, 3 * lr}, 3),
              AllOf(ElementsAre(0.25f, f(3 * lr * 0.5), f(1 - lr * 0.01), f(lr / (1 - std::pow(0.9, 3))), ::testing::_,
                                ::testing::_, 3.f, 0.f, 2.f)));
}

// Initial bytes of three pieces: those that are read must have the hashes that the plan states.
TEST(WeightFiles, HashesOfThePiecesThatAreRead) {
  testing::TemporaryFolder folder;
  constexpr uint64_t kOffset = 100, kLength = 2 * kSourceHashBytes + 5000;
  std::string file(kOffset + kLength + 50, '\0');
  for (size_t i = 0; i < file.size(); i += 1000) file[i] = static_cast<char>(i / 1000);
  plan::Plan plan;
  plan.add_files()->set_path("weights.bin");
  plan.mutable_files(0)->set_size(file.size());
  plan.mutable_files(0)->set_hash(fileHash(std::as_bytes(std::span(file))));
  plan::Source source;
  source.set_offset(kOffset);
  source.set_length(kLength);
  for (uint64_t begin = 0; begin < kLength; begin += kSourceHashBytes)
    source.add_hashes(
        xxh64(std::string_view(file).substr(kOffset + begin, std::min(kSourceHashBytes, kLength - begin))));
  ASSERT_EQ(source.hashes_size(), 3);
  // The error for a file with one byte changed (0: none), if only the pieces from `from` on are read.
  auto errorOf = [&](size_t changed, uint64_t from) {
    std::string damaged = file;
    if (changed > 0) damaged[changed] ^= 4;
    testing::writeFile(folder / "weights.bin", damaged);
    exec::WeightFiles files(plan, folder.path(), "");
    return files.bytes(source, [&](uint64_t begin, uint64_t) { return begin >= from; }).status().message();
  };
  EXPECT_EQ(errorOf(0, 0), "");
  EXPECT_THAT(errorOf(60000, 0),
              HasSubstr("has changed since the plan was made: its first 64.0 KiB have another hash"));
  EXPECT_THAT(errorOf(kOffset + kSourceHashBytes - 1, 0),
              HasSubstr("has changed since the plan was made: its bytes [100, 16777316) have another hash"));
  EXPECT_THAT(errorOf(kOffset + kLength - 1, 0), HasSubstr("its bytes [33554532, 33559532) have another hash"));
  EXPECT_EQ(errorOf(kOffset + kSourceHashBytes - 1, kSourceHashBytes), "");
  EXPECT_THAT(errorOf(kOffset + kSourceHashBytes, kSourceHashBytes), HasSubstr("its bytes [16777316, 33554532)"));
  // Bytes of no parameter are not checked.
  EXPECT_EQ(errorOf(kOffset + kLength, 0), "");
}

TEST(LearningRates, OfGroups) {
  plan::Training training;
  training.set_learning_rate(2);
  EXPECT_THAT(exec::learningRates(training, 1000), ElementsAre(2));
  *training.mutable_schedule() = *plan::parseSchedule("cosine:warmup=4,steps=12,min=0.1");
  EXPECT_DOUBLE_EQ(exec::learningRates(training, 0)[0], 0.5);
  EXPECT_DOUBLE_EQ(exec::learningRates(training, 8)[0], 1.1);
  // A group's own rate replaces that of the training, also a rate of 0, and the schedule multiplies both.
  for (const char* name : {"default", "no decay", "head", "frozen"}) training.add_groups()->set_name(name);
  training.mutable_groups(2)->set_learning_rate(8);
  training.mutable_groups(3)->set_learning_rate(0);
  EXPECT_THAT(exec::learningRates(training, 0), ElementsAre(0.5, 0.5, 2, 0));
  EXPECT_THAT(exec::learningRates(training, 4), ElementsAre(2, 2, 8, 0));
}

TEST(Layout, PermutedParametersGoThereAndBack) {
  plan::Parameter parameter;
  for (int64_t size : {4, 2, 3}) parameter.add_shape(size);
  for (int64_t dimension : {2, 0, 1}) parameter.add_permutation(dimension);
  EXPECT_THAT(exec::namedShape(parameter), ElementsAre(2, 3, 4));
  std::vector<float> named(24), values(24), back(24);
  for (size_t i = 0; i < 24; ++i) named[i] = static_cast<float>(i);
  auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
  for (uint64_t begin = 0; begin < 24; begin += 5)
    exec::namedToPlan(parameter, bytes(named), 4, begin, std::min<uint64_t>(24, begin + 5), bytes(values) + begin * 4);
  // values[a][b][c] is named[b][c][a].
  EXPECT_EQ(values[1 * 6 + 1 * 3 + 2], named[1 * 12 + 2 * 4 + 1]);
  EXPECT_EQ(values[3 * 6 + 0 * 3 + 1], named[0 * 12 + 1 * 4 + 3]);
  exec::planToNamed(parameter, bytes(values), 4, bytes(back));
  EXPECT_EQ(back, named);
}

exec::StepLedger::Config ledgerConfig(int64_t steps, bool skip) {
  exec::StepLedger::Config config;
  config.firstStep = 10;
  config.steps = steps;
  config.updates = 10;
  config.hasNorm = true;
  config.skipOnNan = skip;
  config.makeValues = [](int64_t step, int64_t update, double& rate) {
    auto values = std::make_shared<StepValues>();
    values->step = step;
    values->scalars = {static_cast<float>(update)};
    rate = 0.5;
    return values;
  };
  return config;
}

void finish(const std::shared_ptr<const StepValues>& values, double loss, double norm) {
  values->writeOutput(0, plan::GRADIENT_NORM, norm);
  values->writeOutput(0, plan::LOSS, loss);
}

TEST(StepLedger, HandsOutStepsInOrderAndTwoAtATime) {
  exec::StepLedger ledger(ledgerConfig(3, false));
  auto first = ledger.take(10), second = ledger.take(11);
  EXPECT_EQ(first->step, 10);
  EXPECT_EQ(second->scalars[0], 12.f);
  std::atomic<bool> taken{false};
  std::shared_ptr<const StepValues> third;
  std::thread other([&] {
    third = ledger.take(12);
    taken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(taken);
  finish(first, 1, 1);
  other.join();
  finish(second, 2, 1);
  finish(third, 3, 1);
  EXPECT_EQ(ledger.take(13), nullptr);
  ledger.rankDone();
  exec::StepResult result;
  for (int64_t step : {10, 11, 12}) {
    ASSERT_TRUE(ledger.nextResult(result));
    EXPECT_EQ(result.step, step);
    EXPECT_EQ(result.loss, static_cast<double>(step - 9));
  }
  EXPECT_FALSE(ledger.nextResult(result));
  EXPECT_EQ(ledger.nextStep(), 13);
  EXPECT_EQ(ledger.updates(), 13);
}

TEST(StepLedger, NoStepAfterOneThatIsNotFiniteIsAStateToGoOnFrom) {
  exec::StepLedger ledger(ledgerConfig(5, false));
  auto first = ledger.take(10), second = ledger.take(11);
  finish(first, 1, 1);
  auto third = ledger.take(12);
  finish(second, INFINITY, 1);
  finish(third, 1, 1);  // its own loss is finite again
  auto poll = [] { return Status(); };
  EXPECT_TRUE(ledger.outcome(10, poll)->finite);
  EXPECT_FALSE(ledger.outcome(11, poll)->finite);
  EXPECT_FALSE(ledger.outcome(12, poll)->finite);
}

TEST(StepLedger, StopsTwoStepsAfterALossThatIsNotFinite) {
  // Whether the next step is under way when the loss is known depends on time; where the run ends must not.
  for (bool early : {false, true}) {
    exec::StepLedger ledger(ledgerConfig(5, false));
    auto first = ledger.take(10);
    if (early) finish(first, NAN, 1);
    auto second = ledger.take(11);
    if (!early) finish(first, NAN, 1);
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(ledger.take(12), nullptr);
    finish(second, NAN, 1);
    EXPECT_EQ(ledger.badStep(), 10);
    EXPECT_EQ(ledger.nextStep(), 12);
    EXPECT_FALSE(ledger.interrupted());
  }
}

TEST(StepLedger, AboveItsFloorALossScaleMakesOverflowASkippedStep) {
  auto config = ledgerConfig(6, false);
  config.leastLossScale = 2;
  exec::StepLedger ledger(config);
  // The device counts updates: no step waits for the norm of the one before.
  auto first = ledger.take(10), second = ledger.take(11);
  ASSERT_TRUE(first && second);
  first->writeOutput(0, plan::LOSS_SCALE, 4);
  finish(first, NAN, INFINITY);
  EXPECT_EQ(ledger.badStep(), -1);
  exec::StepResult result;
  ASSERT_TRUE(ledger.nextResult(result));
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.lossScale, 4);
  finish(second, 1, 1);
  second->writeOutput(0, plan::LOSS_SCALE, 2);
  ASSERT_TRUE(ledger.nextResult(result));
  EXPECT_FALSE(result.skipped);
  EXPECT_EQ(ledger.updates(), 11);
  // At the floor the run ends, for on_nan is stop.
  auto third = ledger.take(12);
  ASSERT_NE(third, nullptr);
  finish(third, 1, NAN);
  EXPECT_EQ(ledger.badStep(), -1) << "the scale decides, and is not known yet";
  third->writeOutput(0, plan::LOSS_SCALE, 2);
  EXPECT_EQ(ledger.badStep(), 12);
}

TEST(StepLedger, EveryStepIsVotedOnWhileTheOneBeforeItRuns) {
  std::vector<std::pair<int64_t, bool>> votes;
  std::atomic<bool> interrupted{false}, asked{false};
  auto config = ledgerConfig(100, false);
  config.interrupted = &interrupted;
  config.vote = [&](int64_t step, bool stop) {
    votes.emplace_back(step, stop);
    asked = true;
  };
  exec::StepLedger ledger(config);
  std::thread first([&] { EXPECT_NE(ledger.take(10), nullptr); });
  while (!asked) std::this_thread::yield();
  ledger.voted(10, false);
  first.join();
  EXPECT_THAT(votes, ElementsAre(std::pair(10, false), std::pair(11, false)));
  interrupted = true;  // too late for step 11
  ledger.voted(11, false);
  EXPECT_NE(ledger.take(11), nullptr);
  EXPECT_THAT(votes.back(), std::pair(12, true));
  ledger.voted(12, true);
  EXPECT_EQ(ledger.take(12), nullptr);
  EXPECT_EQ(votes.size(), 3u);
  EXPECT_TRUE(ledger.interrupted());
  EXPECT_EQ(ledger.nextStep(), 12);
}

TEST(StepLedger, ASkippedStepIsNoUpdate) {
  exec::StepLedger ledger(ledgerConfig(5, true));
  finish(ledger.take(10), 1, INFINITY);
  auto next = ledger.take(11);
  EXPECT_EQ(next->scalars[0], 11.f);
  finish(next, 1, 1);
  EXPECT_EQ(ledger.badStep(), -1);
  EXPECT_EQ(ledger.updates(), 11);
  exec::StepResult result;
  ASSERT_TRUE(ledger.nextResult(result));
  EXPECT_TRUE(result.skipped);
  ASSERT_TRUE(ledger.nextResult(result));
  EXPECT_FALSE(result.skipped);
}

TEST(StepLedger, AllRanksEndAfterTheSameStep) {
  std::atomic<bool> interrupted{false};
  auto config = ledgerConfig(100, false);
  config.ranks = 2;
  config.interrupted = &interrupted;
  exec::StepLedger ledger(config);
  auto values = ledger.take(10);
  interrupted = true;
  EXPECT_NE(ledger.take(10), nullptr);  // the other rank still gets the step that was begun
  EXPECT_EQ(ledger.take(11), nullptr);
  interrupted = false;
  EXPECT_EQ(ledger.take(11), nullptr);
}

TEST(StepLedger, WithoutInputTheRunEndsAfterTheStepsThatHaveBegun) {
  auto config = ledgerConfig(100, false);
  config.ranks = 2;
  config.awaitInput = [](int64_t step) { return step < 12 ? Status() : Status::error("no rows"); };
  exec::StepLedger ledger(config);
  auto first = ledger.take(10), second = ledger.take(11);
  ASSERT_TRUE(first && second);
  finish(first, 1, 1);
  EXPECT_EQ(ledger.take(12), nullptr);
  // The other rank still gets the steps that have begun.
  EXPECT_TRUE(ledger.take(10) && ledger.take(11));
  EXPECT_EQ(ledger.take(12), nullptr);
  finish(second, 2, 1);
  EXPECT_TRUE(ledger.status().ok()) << "they are completed as if the run ended there";
  EXPECT_EQ(ledger.inputError().message(), "no rows");
  EXPECT_EQ(ledger.nextStep(), 12);
  EXPECT_FALSE(ledger.interrupted());
}

TEST(StepLedger, AFailureWakesAll) {
  exec::StepLedger ledger(ledgerConfig(9, false));
  ledger.take(10), ledger.take(11);
  std::thread waiting([&] { EXPECT_EQ(ledger.take(12), nullptr); });
  ledger.fail(Status::error("first"));
  ledger.fail(Status::error("second"));
  waiting.join();
  EXPECT_EQ(ledger.status().message(), "first");
}

TEST(CommandLine, Options) {
  auto line = parseCommandLine({"a.plan", "--data", "x=a.npy", "--data=y,z=t.bin:u16", "--steps", "5", "--lr=0.5",
                                "--shuffle", "-3", "--lr-schedule", "cosine:steps=9", "--poison"});
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->run.plan, "a.plan");
  EXPECT_EQ(line->run.steps, 5);
  EXPECT_EQ(line->run.data.size(), 2u);
  EXPECT_THAT(line->run.data[1].inputs, ElementsAre("y", "z"));
  EXPECT_EQ(line->run.data[1].type, "u16");
  EXPECT_EQ(line->run.learningRate, 0.5);
  EXPECT_EQ(line->run.shuffleSeed, -3);
  EXPECT_TRUE(line->run.poison);
  EXPECT_TRUE(line->run.graphs);
  line = parseCommandLine({"a.plan", "--steps", "5", "--device", "cuda", "--reduce-order=ring", "--no-graphs"});
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->run.device, "cuda");
  EXPECT_EQ(line->run.reduceOrder, plan::Training::RING);
  EXPECT_FALSE(line->run.graphs);
  line = parseCommandLine({"a.plan", "--epochs", "3"});
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->run.epochs, 3);
}

// Ctrl-C prints the command itself, as a shell reads it, with --resume.
TEST(CommandLine, ShellPath) {
  EXPECT_EQ(shellPath("a.plan"), "a.plan");
  EXPECT_EQ(shellPath("-q.plan"), "./-q.plan");
  EXPECT_EQ(shellPath("-my q.plan"), "'./-my q.plan'");
  EXPECT_EQ(shellWord("in put=FILE"), "'in put=FILE'");
}

TEST(CommandLine, CommandToResume) {
  auto resumed = [](std::vector<std::string> arguments, const std::string& folder = "state") {
    arguments.insert(arguments.begin(), "bin/sheaf-run");
    return commandToResume(arguments, folder);
  };
  EXPECT_EQ(resumed({"a.plan", "--data", "x=a.npy", "--steps=5"}),
            "bin/sheaf-run a.plan --data x=a.npy --steps=5 --resume state");
  EXPECT_EQ(resumed({"--resume", "old", "a.plan", "--poison"}), "bin/sheaf-run a.plan --poison --resume state");
  EXPECT_EQ(resumed({"a.plan", "--resume=old", "--resumes", "b"}), "bin/sheaf-run a.plan --resumes b --resume state");
  EXPECT_EQ(resumed({"--steps=5", "--resume", "old", "--", "--resume"}),
            "bin/sheaf-run --steps=5 --resume state -- --resume");
  EXPECT_EQ(
      resumed({"a b.plan", "--data", "x=*.npy", "it's", "", "~/w", "$HOME", "a\\b", "two\nlines"}, "my state"),
      "bin/sheaf-run 'a b.plan' --data 'x=*.npy' 'it'\\''s' '' '~/w' '$HOME' 'a\\b' 'two\nlines' --resume 'my state'");
}

TEST(CommandLine, Errors) {
  auto refused = [](std::vector<std::string> arguments) { return parseCommandLine(arguments).status().message(); };
  EXPECT_THAT(refused({"a.plan", "--step", "5"}), HasSubstr("did you mean --steps?"));
  EXPECT_THAT(refused({"a.plan", "--xyzzyplugh", "5"}), HasSubstr("--help"));
  EXPECT_THAT(refused({"a.plan", "--steps"}), HasSubstr("--steps needs a value: an integer from 1"));
  EXPECT_THAT(refused({"a.plan", "--save", "--steps", "5"}), HasSubstr("--save needs a value"));
  EXPECT_THAT(refused({"a.plan", "--steps", "5", "--steps", "6"}), HasSubstr("--steps is given twice"));
  EXPECT_THAT(refused({"a.plan", "--steps", "-5"}), HasSubstr("--steps -5: expected an integer from 1"));
  EXPECT_THAT(refused({"a.plan", "--steps", "5x"}), AllOf(HasSubstr("--steps"), HasSubstr("5x")));
  EXPECT_THAT(refused({"a.plan"}), HasSubstr("--steps K or --epochs E is missing"));
  EXPECT_THAT(refused({"a.plan", "--steps", "3", "--epochs", "2"}), HasSubstr("exclude each other"));
  EXPECT_THAT(refused({"a.plan", "--epochs", "0"}), HasSubstr("an integer from 1"));
  EXPECT_THAT(refused({"--steps", "3"}), HasSubstr("no PLAN is given"));
  EXPECT_THAT(refused({"a", "b", "--measure", "p.json"}), HasSubstr("--measure takes one PROBE"));
  EXPECT_THAT(refused({"a", "--steps", "3", "--save-every", "2"}), HasSubstr("--save-state"));
  EXPECT_THAT(refused({"a", "--steps", "3", "--lr", "nan"}), HasSubstr("--lr"));
  EXPECT_THAT(refused({"a", "--steps", "3", "--lr-schedule", "step"}), HasSubstr("step_size=STEPS"));
  EXPECT_THAT(refused({"a", "--steps", "3", "--device", "tpu"}), HasSubstr("--device tpu: expected one of cpu, cuda"));
  EXPECT_THAT(refused({"a", "--steps", "3", "--reduce-order", "any"}), HasSubstr("expected one of tree, ring"));
  EXPECT_THAT(refused({"a", "--measure", "p.json", "--steps", "3"}),
              HasSubstr("--steps cannot be combined with --measure"));
  EXPECT_EQ(parseCommandLine({"--help"})->given.help, options::HelpForm::kText);
  EXPECT_TRUE(parseCommandLine({"--version"})->given.version);
}

}  // namespace
}  // namespace sheaf
