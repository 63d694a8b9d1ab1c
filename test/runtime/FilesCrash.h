// Runs with state in files that end before their time, on whichever device: what a test finds in the files then.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/base/Json.h"
#include "runtime/exec/Run.h"
#include "runtime/plan/PlanFile.h"
#include "test/Paths.h"
#include "test/runtime/DurablePlan.h"
#include "test/runtime/VolatileFiles.h"

namespace sheaf::testing {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 24, kBatch = 8;

// A disk so slow that a step is computed before the state of the one before is in its file.
class SlowFiles : public FileLayer {
 public:
  ssize_t pwrite(int descriptor, const void* from, size_t bytes, uint64_t offset) override {
    wait();
    return FileLayer::pwrite(descriptor, from, bytes, offset);
  }
  int fdatasync(int descriptor) override {
    wait();
    return FileLayer::fdatasync(descriptor);
  }

 private:
  static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }
};

// A disk that takes nothing of a record and gives no reason: what errno has is of something else.
class NoRoomForRecords : public FileLayer {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    const int descriptor = FileLayer::open(path, flags, mode);
    if (path.ends_with(".commit")) records_.insert(descriptor);
    return descriptor;
  }
  ssize_t pwrite(int descriptor, const void* from, size_t bytes, uint64_t offset) override {
    if (!records_.contains(descriptor)) return FileLayer::pwrite(descriptor, from, bytes, offset);
    errno = EDOM;
    return 0;
  }

 private:
  std::set<int> records_;
};

// The plan with its input read first in each step, as a compiled one has it, and before it another one: a number of
// each row that fits 8 bits.
inline plan::Plan readsNumbersFirst(plan::Plan plan) {
  plan::Input& input = *plan.add_inputs();
  input.set_name("t");
  input.set_type(plan::I8);
  input.add_shape(plan.inputs(0).shape(0));
  const uint64_t rows = static_cast<uint64_t>(input.shape(0));
  plan::Buffer& buffer = *plan.add_buffers();
  buffer.set_kind(plan::ACTIVATIONS);
  buffer.set_offset((plan.memory().peak_bytes() + 127) / 128 * 128);
  buffer.set_bytes(rows);
  plan.mutable_memory()->set_peak_bytes(buffer.offset() + rows);
  plan::Instruction read;
  read.set_label("t of the step");
  read.mutable_input()->set_input(1);
  plan::Operand& destination = *read.add_operands();
  destination.set_buffer(static_cast<uint32_t>(plan.buffers_size() - 1));
  destination.set_bytes(rows);
  destination.set_access(plan::WRITE);
  const plan::InstructionList before = plan.body();
  plan.clear_body();
  *plan.add_body() = read;
  for (bool inputs : {true, false})
    for (const plan::Instruction& instruction : before)
      if (instruction.has_input() == inputs) {
        *plan.add_body() = instruction;
        // On the stream that uses it, so that it comes after the uses of the step before.
        if (inputs) plan.mutable_body()->rbegin()->set_stream(0);
      }
  plan::declareMemoryByKind(plan);
  plan::redigest(plan);
  return plan;
}

class FilesCrashTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SHEAF_LIBRARY_PATH", sheaf::paths::kLibraries, 1);
    writeTrainingFiles(folder_, kRows);
    writePlan(DurablePlan(ranks_, 3, kBatch).plan, "plan");
    files_ = folder_ / "files";
  }

  void writePlan(const plan::Plan& plan, const std::string& name) {
    ASSERT_TRUE(plan::writePlan(folder_ / name, plan).ok());
  }

  exec::RunOptions options(int64_t steps, bool resumes) {
    exec::RunOptions options;
    options.plan = folder_ / "plan";
    options.device = device_;
    options.graphs = graphs_;
    options.steps = steps;
    options.data = {*io::parseDataArgument("x=" + (folder_ / "x.npy"))};
    options.log = folder_ / "log";
    options.save = folder_ / "saved";
    options.offloadFolders = {files_};
    if (resumes) options.resume = files_;
    return options;
  }

  Status run(const exec::RunOptions& options, FileLayer* files = nullptr) {
    exec::RunControl control;
    control.files = files;
    std::filesystem::remove(folder_ / "log");
    ::testing::internal::CaptureStderr();
    Status status = exec::run(options, control);
    ::testing::internal::GetCapturedStderr();
    return status;
  }

  void empty() {
    std::filesystem::remove_all(files_);
    std::filesystem::create_directory(files_);
  }

  // Of the log: how many steps it reports, and after which one it began.
  struct Logged {
    int64_t reported = 0, begun = 0;
  };
  Logged logged() {
    Logged logged;
    std::istringstream text(readFile(folder_ / "log"));
    for (std::string line; std::getline(text, line);) {
      auto value = json::parse(line);
      if (!value.ok()) continue;
      double step = 0;
      if (const json::Value* member = value->object()->find("step")) (void)member->number(step);
      const json::Value* event = value->object()->find("event");
      if (!event) logged.reported = static_cast<int64_t>(step) + 1;
      if (event && event->string() && *event->string() == "resumed") logged.begun = static_cast<int64_t>(step);
    }
    return logged;
  }

  // The weights after steps_ steps that nothing disturbs.
  std::string undisturbed() {
    empty();
    Status status = run(options(steps_, false));
    EXPECT_TRUE(status.ok()) << status.message();
    return readFile(folder_ / "saved");
  }

  // How many calls on files of the rank a run makes that begins, or resumes.
  int64_t callsOf(const std::string& rank, bool resumes) {
    VolatileFiles files(rank, -1);
    Status status = run(options(steps_, resumes), &files);
    EXPECT_TRUE(status.ok()) << status.message();
    return files.calls();
  }

  // Goes on after a crash of a run that had begun after step `begun`, and has the same weights in the end.
  void expectResumes(const std::string& what, int64_t begun, const std::string& weights) {
    const Logged before = logged();
    // One step, if the state is not newer than what was reported, and then the rest.
    Status status = run(options(std::min(steps_, std::max(begun, before.reported) + 1), true));
    if (status.message().find("is of step") != std::string::npos) status = run(options(steps_, true));
    if (!status.ok() && begun < 0 && before.reported == 0) {
      // It had not come to its first step: there may be no state yet, and it begins again.
      EXPECT_THAT(status.message(), HasSubstr("--resume")) << what;
      status = run(options(steps_, false));
      ASSERT_TRUE(status.ok()) << what << ": " << status.message();
      EXPECT_EQ(readFile(folder_ / "saved"), weights) << what;
      return;
    }
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    const Logged after = logged();
    EXPECT_GE(after.begun, std::max(before.reported - 2, begun)) << what;
    status = run(options(steps_, true));
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    EXPECT_EQ(readFile(folder_ / "saved"), weights) << what;
  }

  void crashAtEveryCall() {
    const std::string weights = undisturbed();
    for (int64_t number = 0; number < ranks_; ++number) {
      const std::string rank = "rank-" + std::to_string(number) + ".";
      empty();
      const int64_t calls = callsOf(rank, false);
      ASSERT_GT(calls, 30);
      for (int64_t call = 0; call < calls; ++call)
        for (uint64_t seed = 1; seed <= seeds_; ++seed) {
          empty();
          VolatileFiles files(rank, call);
          Status status = run(options(steps_, false), &files);
          EXPECT_TRUE(!status.ok() || call + 4 >= calls);  // closing is not a failure
          files.afterCrash(seed * 1000 + static_cast<uint64_t>(call));
          expectResumes(rank + " at call " + std::to_string(call) + ", seed " + std::to_string(seed), -1, weights);
          if (HasFailure()) return;
        }
    }
  }

  void changeBytesAfterTheEnd() {
    const std::string weights = undisturbed();
    empty();
    ASSERT_TRUE(run(options(2, false)).ok());
    const std::string path = files_ + "/rank-" + std::to_string(ranks_ - 1) + ".arena", good = readFile(path);
    // After an even number of steps the current generation is in the places of the plan's current buffers.
    const DurablePlan plan(ranks_, 3, kBatch);
    for (const bool current : {true, false})
      for (const uint32_t buffer : current ? plan.homes : plan.next) {
        std::string changed = good;
        changed[plan.plan.buffers(static_cast<int>(buffer)).offset() + 100] ^= 1;
        writeFile(path, changed);
        exec::RunOptions reading = options(2, true);
        const Status status = run(reading);
        if (current) {
          EXPECT_THAT(status.message(),
                      AllOf(HasSubstr("--resume"), HasSubstr("after step 2 in " + path), HasSubstr("changed")));
        } else {
          EXPECT_TRUE(status.ok()) << status.message();
        }
      }
    writeFile(path, good);
    ASSERT_TRUE(run(options(4, true)).ok());
    EXPECT_EQ(logged().begun, 2);
    EXPECT_EQ(readFile(folder_ / "saved"), weights);
    // And so after an odd number.
    ASSERT_TRUE(run(options(5, true)).ok());
    std::string changed = readFile(path);
    changed[plan.plan.buffers(static_cast<int>(plan.next.back())).offset() + 100] ^= 1;
    writeFile(path, changed);
    EXPECT_THAT(run(options(6, true)).message(), HasSubstr("after step 5 in " + path));
  }

  // Neither a pipe that ends nor a row that cannot be read costs the step before, which is complete and was reported.
  void endWithAStepThatCannotBeRead() {
    writePlan(readsNumbersFirst(DurablePlan(ranks_, 3, kBatch).plan), "plan");
    auto numbers = [&](int32_t last) {
      std::vector<int32_t> t(kRows);
      t.back() = last;
      writeFile(folder_ / "t.npy", npy<int32_t>("<i4", {kRows}, t));
    };
    auto both = [&](int64_t steps, bool resumes) {
      exec::RunOptions made = options(steps, resumes);
      made.data.push_back(*io::parseDataArgument("t=" + (folder_ / "t.npy")));
      return made;
    };
    numbers(0);
    empty();
    const Status whole = run(both(steps_, false));
    ASSERT_TRUE(whole.ok()) << whole.message();
    const std::string weights = readFile(folder_ / "saved");
    for (const bool piped : {false, true}) {
      empty();
      SlowFiles files;
      exec::RunOptions failing = both(steps_, false);
      std::thread writer;
      if (piped) {
        const std::string pipe = folder_ / "rows";
        ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
        failing.data = {*io::parseDataArgument("x,t=" + pipe)};
        writer = std::thread([pipe] {
          const int64_t rows = 2 * kBatch;
          writeFile(pipe, npy<float>("<f4", {rows, kElements}, trainingRows(static_cast<size_t>(rows))) +
                              npy<int32_t>("<i4", {rows}, std::vector<int32_t>(static_cast<size_t>(rows))));
        });
      } else {
        numbers(300);  // the last row of step 2
      }
      const std::string message = run(failing, &files).message();
      if (piped) writer.join();
      if (piped) {
        EXPECT_THAT(message, AllOf(HasSubstr("ended after 16 rows"), HasSubstr("2 steps are done"),
                                   HasSubstr("--resume " + files_)));
      } else {
        EXPECT_THAT(message, AllOf(HasSubstr("row 23"), HasSubstr("300")));
      }
      EXPECT_EQ(logged().reported, 2);
      numbers(0);
      const Status rest = run(both(steps_, true));
      ASSERT_TRUE(rest.ok()) << rest.message();
      EXPECT_EQ(logged().begun, 2) << (piped ? "pipe" : "file");
      EXPECT_EQ(readFile(folder_ / "saved"), weights);
    }
  }

  // A step whose loss is not finite is not a state to go on from.
  void spoilAStep() {
    undisturbed();
    empty();
    ASSERT_TRUE(run(options(2, false)).ok());
    exec::RunOptions spoiled = options(6, true);
    spoiled.learningRate = INFINITY;
    // Its first step has a loss, and leaves weights that have none.
    EXPECT_THAT(run(spoiled).message(),
                AllOf(HasSubstr("step 3: the loss"), HasSubstr("not finite"), HasSubstr(files_)));
    EXPECT_THAT(run(options(4, true)).message(), HasSubstr("not finite"));
    EXPECT_EQ(logged().begun, 3);
  }

  // What goes wrong while it runs is one error, and the state is there.
  void failCalls() {
    const std::string weights = undisturbed();
    struct Case {
      const char* what;
      void (*arm)(VolatileFiles&);
      std::vector<std::string> texts;
    };
    const Case cases[] = {
        {"full disk", [](VolatileFiles& f) { f.failWrites(1, ENOSPC); }, {"cannot write", "No space left"}},
        {"read error", [](VolatileFiles& f) { f.failReads(1, EIO); }, {"cannot read", "Input/output error"}},
        {"not durable", [](VolatileFiles& f) { f.failSyncs(EIO); }, {"cannot make it durable", "Input/output error"}}};
    for (const Case& c : cases) {
      empty();
      ASSERT_TRUE(run(options(2, false)).ok());
      VolatileFiles files("rank-", -1);
      c.arm(files);
      const Status status = run(options(4, true), &files);
      EXPECT_FALSE(status.ok()) << c.what;
      for (const std::string& text : c.texts) EXPECT_THAT(status.message(), HasSubstr(text)) << c.what;
      EXPECT_THAT(status.message(), HasSubstr("rank-")) << c.what;
      ASSERT_TRUE(run(options(4, true)).ok()) << c.what;
      EXPECT_EQ(logged().begun, 2) << c.what;
      EXPECT_EQ(readFile(folder_ / "saved"), weights) << c.what;
    }
    empty();
    NoRoomForRecords noRoom;
    EXPECT_THAT(run(options(steps_, false), &noRoom).message(),
                HasSubstr("rank-0.commit: cannot write it: No space left on device"));
    // Writes that are short go on where they ended.
    empty();
    VolatileFiles files("rank-", -1);
    files.failWrites(4097, 0);
    ASSERT_TRUE(run(options(steps_, false), &files).ok());
    EXPECT_EQ(readFile(folder_ / "saved"), weights);
  }

  int64_t ranks_ = 2, steps_ = 4;
  uint64_t seeds_ = 2;  // of what is left after each crash
  std::string device_ = "cpu";
  bool graphs_ = true;
  TemporaryFolder folder_;
  std::string files_;
};

}  // namespace sheaf::testing
