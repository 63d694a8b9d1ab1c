#include "runtime/exec/FileResume.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

#include "runtime/base/OutputPaths.h"
#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

struct Wire {
  int64_t updates;
  uint64_t samples;
  uint64_t shuffles;  // whether there is a seed for that
  int64_t shuffleSeed;
  uint64_t scales;  // whether there is a loss scale
  double scale;
  int64_t goodSteps;
};

// Follows, with the text of the schedule; absent in files of 0.1.0.
struct LengthWire {
  int64_t steps, batch, rows;
};

// What the ranks of a process have.
struct Mine {
  int64_t newest = 0;  // the oldest of their newest states
  uint64_t run = 0;
};

}  // namespace

Committed committedAt(const RunPosition& position, uint64_t run) {
  const io::LossScaleState scale = position.lossScale.value_or(io::LossScaleState());
  const Wire wire{position.updates,
                  position.samples,
                  position.shuffleSeed.has_value(),
                  position.shuffleSeed.value_or(0),
                  position.lossScale.has_value(),
                  scale.scale,
                  scale.goodSteps};
  std::string text(reinterpret_cast<const char*>(&wire), sizeof wire);
  if (const std::optional<io::TrainingLength>& length = position.length) {
    const LengthWire more{length->steps, length->batch, length->rows};
    text.append(reinterpret_cast<const char*>(&more), sizeof more).append(length->schedule);
  }
  return {position.step, run, std::move(text)};
}

Expected<RunPosition> positionOf(const Committed& state) {
  Wire wire;
  LengthWire more;
  const size_t size = state.position.size();
  if (size != sizeof wire && size < sizeof wire + sizeof more)
    return Status::error(cat("the position of step ", state.step, " is that of another version of sheaf-run"));
  std::memcpy(&wire, state.position.data(), sizeof wire);
  RunPosition position{.step = state.step,
                       .updates = wire.updates,
                       .samples = wire.samples,
                       .shuffleSeed = {},
                       .lossScale = {},
                       .length = {},
                       .cpu = {}};
  if (wire.shuffles) position.shuffleSeed = wire.shuffleSeed;
  if (wire.scales) position.lossScale = {.scale = wire.scale, .goodSteps = wire.goodSteps};
  if (size == sizeof wire) return position;
  std::memcpy(&more, state.position.data() + sizeof wire, sizeof more);
  position.length = {.steps = more.steps,
                     .schedule = state.position.substr(sizeof wire + sizeof more),
                     .batch = more.batch,
                     .rows = more.rows};
  SHEAF_RETURN_IF_ERROR(io::checkLength(*position.length, state.step));
  return position;
}

bool isOneOf(const std::string& folder, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& other) {
    std::error_code ignored;
    return canonicalPath(folder) == canonicalPath(other) || std::filesystem::equivalent(folder, other, ignored);
  });
}

Expected<FileResume> findFileState(Device& device, const plan::Plan& plan, uint64_t planHash,
                                   const std::vector<std::string>& folders, Job& job, FileLayer* files) {
  SHEAF_RETURN_IF_ERROR(job.share(plan.ranks()));
  std::vector<std::vector<Committed>> states;  // of each rank of this process
  Mine mine{.newest = std::numeric_limits<int64_t>::max(), .run = 0};
  for (int64_t rank = job.firstRank(); rank < job.firstRank() + job.localRanks(); ++rank) {
    Expected<std::vector<Committed>> found = device.committed(plan, planHash, folders, rank, files);
    if (!found.ok()) return found.status();
    auto newest = std::max_element(found->begin(), found->end(),
                                   [](const Committed& a, const Committed& b) { return a.step < b.step; });
    mine.newest = std::min(mine.newest, newest->step);
    if (!states.empty() && newest->run != mine.run)
      return Status::error(cat("the files of ranks ", job.firstRank(), " and ", rank, " are of different runs"));
    mine.run = newest->run;
    states.push_back(std::move(*found));
  }
  int64_t step = mine.newest;
  if (job.group()) {
    const std::string text(reinterpret_cast<const char*>(&mine), sizeof mine);
    Expected<std::vector<std::string>> all = job.group()->allGather(text, "the states in files");
    if (!all.ok()) return all.status();
    for (const std::string& theirs : *all) {
      Mine other;
      if (theirs.size() != sizeof other) return Status::error("a process does not go on from files");
      std::memcpy(&other, theirs.data(), sizeof other);
      if (other.run != mine.run) return Status::error("the files of the processes are of different runs");
      step = std::min(step, other.newest);
    }
  }
  FileResume resume{.position = {}, .run = mine.run};
  for (size_t i = 0; i < states.size(); ++i) {
    auto at = std::find_if(states[i].begin(), states[i].end(),
                           [&](const Committed& state) { return state.step == step && state.run == mine.run; });
    if (at == states[i].end())
      return Status::error(cat("the files of rank ", job.firstRank() + static_cast<int64_t>(i),
                               " do not hold the state after step ", step, ", which is the newest of other ranks"));
    Expected<RunPosition> position = positionOf(*at);
    if (!position.ok()) return position.status();
    resume.position = *position;
  }
  return resume;
}

Expected<uint64_t> newRun(Job& job) {
  std::random_device random;
  uint64_t run = (uint64_t{random()} << 32) | random();
  if (!job.group()) return run;
  const std::string mine(reinterpret_cast<const char*>(&run), sizeof run);
  Expected<std::vector<std::string>> all = job.group()->allGather(mine, "the number of the run");
  if (!all.ok()) return all.status();
  if (all->front().size() == sizeof run) std::memcpy(&run, all->front().data(), sizeof run);
  return run;
}

}  // namespace sheaf::exec
