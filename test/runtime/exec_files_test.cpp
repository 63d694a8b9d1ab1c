// Files that a run writes: none replaces what it reads, and weights are written where a state cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "runtime/base/Text.h"
#include "runtime/exec/Run.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "test/Paths.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::readFile;
using testing::TemporaryFolder;
using testing::TrainingPlan;
using testing::writeFile;

class RunFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SHEAF_LIBRARY_PATH", sheaf::paths::kLibraries, 1);
    testing::writeTrainingFiles(folder_, 24);
    TrainingPlan made(2, 3, 8);
    plan::redigest(made.plan);
    ASSERT_TRUE(plan::writePlan(folder_ / "plan", made.plan).ok());
  }

  exec::RunOptions options(int64_t steps) {
    exec::RunOptions options;
    options.plan = folder_ / "plan";
    options.steps = steps;
    options.data = {*io::parseDataArgument("x=" + (folder_ / "x.npy"))};
    options.quiet = true;
    return options;
  }

  Status run(const exec::RunOptions& options) {
    exec::RunControl control;
    return exec::run(options, control);
  }

  std::map<std::string, std::string> contents() {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      files[entry.path()] = entry.is_regular_file() ? readFile(entry.path()) : "";
    return files;
  }

  TemporaryFolder folder_;
};

struct Writer {
  const char* option;
  std::string exec::RunOptions::*path;
  const char* ending = "";  // the given name has it
};
const Writer kWriters[] = {
    {"--log", &exec::RunOptions::log},
    {"--metrics-file", &exec::RunOptions::metrics},
    {"--save", &exec::RunOptions::save},
    {"--save", &exec::RunOptions::save, ".safetensors.index.json"},
    {"--dump-gradients", &exec::RunOptions::gradients},
    {"--trace", &exec::RunOptions::trace},
};

// Every option that writes a file, with every file that is read, named by a link, another link and another path.
TEST_F(RunFiles, NoFileThatIsReadIsWritten) {
  exec::RunOptions first = options(2);
  first.save = folder_ / "shards/model.safetensors.index.json";
  first.shardBytes = 40;
  first.saveState = folder_ / "state";
  fs::create_directory(folder_ / "shards");
  ASSERT_TRUE(run(first).ok());
  first.save = folder_ / "weights";
  ASSERT_TRUE(run(first).ok());
  const std::string state = "state/" + io::stepFolder(2) + "/";
  struct Reader {
    const char* option;
    std::string file;
    std::function<void(exec::RunOptions&)> set = [](exec::RunOptions&) {};
  };
  auto weights = [&](const std::string& path) {
    return [path = folder_ / path](exec::RunOptions& run) { run.weights = path; };
  };
  auto resume = [&](exec::RunOptions& run) { run.resume = folder_ / "state"; };
  const Reader readers[] = {
      {"the plan", "plan"},
      {"the plan's initial weights", "weights.bin"},
      {"--data", "x.npy"},
      {"--weights", "weights", weights("weights")},
      {"--weights", "shards/model.safetensors.index.json", weights("shards")},
      {"--weights", "shards/model-00001-of-00002.safetensors", weights("shards")},
      {"--weights", "shards/model.safetensors.index.json", weights("shards/model.safetensors.index.json")},
      {"--resume", state + "manifest.json", resume},
      {"--resume", state + "rank-00001.safetensors", resume}};
  fs::create_symlink(".", folder_ / "around");
  for (const Writer& writer : kWriters)
    for (const Reader& reader : readers) {
      const std::string link = folder_ / "link" + writer.ending, hard = folder_ / "hard" + writer.ending;
      fs::create_symlink(reader.file, link);
      fs::create_hard_link(folder_ / reader.file, hard);
      const auto before = contents();
      for (const std::string& path : {link, hard, folder_ / "around/" + reader.file}) {
        if (!path.ends_with(writer.ending)) continue;
        exec::RunOptions run = options(4);
        run.*writer.path = path;
        reader.set(run);
        EXPECT_THAT(this->run(run).message(), AllOf(HasSubstr(cat(writer.option, " ", path)), HasSubstr(reader.option),
                                                    HasSubstr("which is read")));
        EXPECT_EQ(contents(), before) << writer.option << " " << path;
      }
      fs::remove(link);
      fs::remove(hard);
    }
  // As one of the files of an index, also where it is named by a link from elsewhere.
  exec::RunOptions run = options(4);
  run.save = folder_ / "shards/model.safetensors.index.json";
  for (const char* name : {"shards/model-00001-of-00002.safetensors", "elsewhere"}) {
    if (!fs::exists(folder_ / name)) fs::create_symlink("shards/model-00001-of-00002.safetensors", folder_ / name);
    run.weights = folder_ / name;
    EXPECT_THAT(this->run(run).message(), AllOf(HasSubstr("would replace"), HasSubstr("--weights")));
  }
}

// Two outputs in one file, and outputs in places where the run names files itself.
TEST_F(RunFiles, NoFileIsWrittenTwice) {
  const auto before = contents();
  for (const Writer& first : kWriters)
    for (const Writer& second : kWriters)
      if (first.path != second.path) {
        exec::RunOptions run = options(2);
        run.*first.path = folder_ / "new" + second.ending;
        run.*second.path = folder_ / "./new" + second.ending;
        EXPECT_THAT(this->run(run).message(),
                    AllOf(HasSubstr(first.option), HasSubstr(second.option), HasSubstr("too")));
      }
  for (const Writer& writer : kWriters)
    for (const std::string& name :
         {std::string("latest"), io::stepFolder(1), io::stepFolder(1) + "/rank-00000.safetensors"}) {
      if (*writer.ending) continue;
      exec::RunOptions run = options(2);
      run.saveState = folder_ / "state";
      run.*writer.path = folder_ / "state/" + name;
      EXPECT_THAT(this->run(run).message(), AllOf(HasSubstr(writer.option), HasSubstr("--save-state"))) << name;
    }
  for (const auto& [option, path] :
       {std::pair("--log", &exec::RunOptions::log), {"--trace", &exec::RunOptions::trace}}) {
    exec::RunOptions run = options(2);
    run.save = folder_ / "w.safetensors.index.json";
    run.*path = folder_ / "w-00001-of-00001.safetensors";
    EXPECT_THAT(this->run(run).message(), AllOf(HasSubstr("would replace"), HasSubstr(option)));
    run.*path = run.save + ".replaced";
    EXPECT_THAT(this->run(run).message(), AllOf(HasSubstr("--save"), HasSubstr(option), HasSubstr("too")));
  }
  EXPECT_EQ(contents(), before);
  // Outputs of evaluations may lie in the folders of states, whose files have other names.
  for (const int64_t steps : {2, 4}) {
    exec::RunOptions run = options(steps);
    run.saveState = folder_ / "both";
    run.log = folder_ / ("both/" + io::stepFolder(2) + "/log");
    if (steps > 2) run.resume = run.saveState;
    if (steps == 2) run.log.clear();
    EXPECT_EQ(this->run(run).message(), "");
  }
}

// The weights and the gradients of a training are written whatever happens to its states.
TEST_F(RunFiles, WeightsAreWrittenIfAStateCannotBe) {
  auto weightsAfter = [&](int64_t steps) {
    exec::RunOptions run = options(steps);
    run.save = folder_ / "reference";
    EXPECT_TRUE(this->run(run).ok());
    return readFile(run.save);
  };
  // A state cannot be named where `latest` is a folder, which is found when its files have been written.
  fs::create_directories(folder_ / "state/latest");
  for (const uint64_t staging : {uint64_t{0}, UINT64_MAX})
    for (const int64_t every : {0, 2}) {
      if (staging > 0 && every == 0) continue;
      exec::RunOptions run = options(40);
      run.save = folder_ / "w";
      run.gradients = folder_ / "g";
      run.trace = folder_ / "t";
      run.log = folder_ / "log";
      run.saveState = folder_ / "state";
      run.saveEvery = every;
      run.saveStaging = staging;
      EXPECT_THAT(this->run(run).message(), AllOf(HasSubstr("--save-state"), HasSubstr("latest")));
      const std::string log = readFile(run.log);
      const std::string_view key = "{\"step\":";
      const size_t line = log.rfind(key);
      ASSERT_NE(line, std::string::npos) << log;
      const int64_t steps = 1 + std::atoll(log.c_str() + line + key.size());
      // The run ends when it knows.
      const int64_t least = every == 0 ? 40 : 2, most = staging == 0 ? least : 40;
      EXPECT_TRUE(least <= steps && steps <= most) << steps;
      EXPECT_EQ(readFile(run.save), weightsAfter(steps)) << steps << " steps";
      EXPECT_THAT(log, HasSubstr("\"error\""));
      for (const std::string& path : {run.save, run.gradients, run.trace}) {
        EXPECT_TRUE(fs::exists(path)) << path;
        fs::remove(path);
      }
    }
}

}  // namespace
}  // namespace sheaf
