#include "runtime/exec/RunSaves.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/ResourceErrors.h"
#include "runtime/base/Text.h"
#include "runtime/exec/FileResume.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/StateFolder.h"

namespace sheaf::exec {
namespace {

namespace fs = std::filesystem;

Status ofSaves(const Status& status) {
  return status.ok() ? status : Status::error(cat("--save-state: ", status.message()));
}

// Returns true if --resume names the folder or a state in it.
bool isResumed(const std::string& folder, const std::string& resume) {
  std::error_code error;
  return !resume.empty() && (fs::equivalent(folder, resume, error) ||
                             fs::equivalent(folder, fs::path(resume).lexically_normal() / "..", error));
}

struct StateInFolder {
  std::string name;
  io::RunLineage run;
};

// Returns the states in the folder, the newest first. Folders step-N without files of a state are passed over:
// --outputs makes such folders.
std::vector<StateInFolder> statesIn(const std::string& folder) {
  std::vector<std::pair<int64_t, StateInFolder>> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::optional<int64_t> step = io::stepOfState(*entry);
    if (!step || !io::holdsState(entry->path())) continue;
    const Expected<io::Manifest> manifest = io::readManifest(entry->path());
    found.push_back({*step, {entry->path().filename(), manifest.ok() ? manifest->run : io::RunLineage()}});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<StateInFolder> states;
  for (auto& [step, state] : found) states.push_back(std::move(state));
  return states;
}

// Returns the newest state of another training in the folder of --save-state; empty if there is none. A state is of
// this training if the run goes on from the run that saved it. If --resume names the folder, states of all runs that
// have begun as this one count as well: the user goes back to an earlier state. States of 0.1.0 have no run: theirs is
// the training that --resume names.
std::string stateOfAnotherTraining(const RunOptions& options, const io::RunLineage& run) {
  const std::vector<StateInFolder> states = statesIn(options.saveState);
  std::set<uint64_t> own(run.earlier.begin(), run.earlier.end());
  if (run.number != 0) own.insert(run.number);
  // Files (--offload-dir) know the number of their run alone; the states that it has saved know those before it.
  for (const StateInFolder& state : states)
    if (state.run.number != 0 && state.run.number == run.number)
      own.insert(state.run.earlier.begin(), state.run.earlier.end());
  const bool isNamed = isResumed(options.saveState, options.resume);
  const bool fromFiles = !options.resume.empty() && isOneOf(options.resume, options.offloadFolders);
  auto isOwn = [&](const io::RunLineage& other) {
    if (other.number == 0) return isNamed || fromFiles;
    if (own.contains(other.number)) return true;
    return isNamed && std::any_of(other.earlier.begin(), other.earlier.end(),
                                  [&](uint64_t number) { return own.contains(number); });
  };
  for (const StateInFolder& state : states)
    if (!isOwn(state.run)) return state.name;
  return "";
}

}  // namespace

Status RunSaves::open(const RunOptions& options, const RunPosition& position, std::vector<std::string>& warnings) {
  const std::string& folder = options.saveState;
  if (io::isState(folder))
    return ofSaves(Status::error(cat(folder, " is a saved state; give the folder that holds it, ",
                                     fs::path(folder + "/..").lexically_normal().string())));
  const std::string other = stateOfAnotherTraining(options, position.run);
  if (!other.empty() && options.keepSaves > 0)
    return ofSaves(Status::error(cat(folder, " holds states of another training, such as ", other,
                                     ", which --keep-saves would remove: give another folder, or go on from them by ",
                                     "--resume ", shellPath(folder + "/" + other))));
  if (!other.empty())
    warnings.push_back(cat("--save-state: ", folder, " holds states of another training, such as ", other,
                           "; those of the same steps are replaced"));
  Expected<io::KeptStates> kept = io::KeptStates::open(folder, options.keepSaves);
  if (!kept.ok()) return ofSaves(kept.status());
  kept_ = std::move(*kept);
  return ofSaves(io::CheckpointWriter::create(folder, position.step).status());
}

Status RunSaves::start(const StateAccess& state, const std::string& folder, uint64_t staging,
                       std::function<void(const CompleteSave&)> complete) {
  complete_ = std::move(complete);
  Status status = catchOutOfMemory("staging of saved states (--save-staging)", [&] {
    saver_.emplace(state, StateSaver::Options{folder, staging,
                                              [this](int64_t step) { return kept_ ? kept_->prune(step) : Status(); }});
    return saver_->status();
  });
  if (!status.ok()) stop();
  return status;
}

Status RunSaves::save(const RunPosition& position) {
  return reported(saver_->save(position));
}

Status RunSaves::saveLast(const RunPosition& position) {
  SHEAF_RETURN_IF_ERROR(finish());
  SHEAF_RETURN_IF_ERROR(save(position));
  return finish();
}

Status RunSaves::finish() {
  return saver_ ? reported(saver_->finish()) : Status();
}

bool RunSaves::poll() {
  if (!saver_) return true;
  (void)reported({});
  return saver_->status().ok();
}

Status RunSaves::reported(const Status& status) {
  while (std::optional<CompleteSave> save = saver_->takeComplete()) {
    any_ = true;
    complete_(*save);
  }
  return ofSaves(status);
}

}  // namespace sheaf::exec
