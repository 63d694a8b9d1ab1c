#include "runtime/exec/RunSaves.h"

#include <algorithm>
#include <filesystem>
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

// Returns true if --resume names this folder, a state in it, or a copy of its state of `step`. `resumedState` is the
// folder of the state that the run has read.
bool isResumed(const std::string& folder, int64_t step, const std::string& resume, const std::string& resumedState) {
  std::error_code error;
  return !resume.empty() && (fs::equivalent(folder, resume, error) ||
                             fs::equivalent(folder, fs::path(resume).lexically_normal() / "..", error) ||
                             io::haveSameManifest(cat(folder, "/", io::stepFolder(step)), resumedState));
}

// Returns the newest state in the folder; empty if there is none. Folders step-N without files of a state are passed
// over: --outputs makes such folders.
std::string newestState(const std::string& folder) {
  std::error_code error;
  int64_t newest = -1;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (const std::optional<int64_t> step = io::stepOfState(*entry); step && io::holdsState(entry->path()))
      newest = std::max(newest, *step);
  return newest < 0 ? "" : io::stepFolder(newest);
}

}  // namespace

Status RunSaves::open(const RunOptions& options, int64_t step, const std::string& resumedState,
                      std::vector<std::string>& warnings) {
  const std::string& folder = options.saveState;
  if (io::isState(folder))
    return ofSaves(Status::error(cat(folder, " is a saved state; give the folder that holds it, ",
                                     fs::path(folder + "/..").lexically_normal().string())));
  // A training whose state is in files goes on from them, and saves on where it saved before.
  const bool goesOn = isResumed(folder, step, options.resume, resumedState) ||
                      (!options.resume.empty() && isOneOf(options.resume, options.offloadFolders));
  const std::string newest = goesOn ? "" : newestState(folder);
  if (!newest.empty() && options.keepSaves > 0)
    return ofSaves(Status::error(cat(folder, " holds states of another training, such as ", newest,
                                     ", which --keep-saves would remove: give another folder, or go on from them by ",
                                     "--resume ", folder)));
  if (!newest.empty())
    warnings.push_back(cat("--save-state: ", folder, " holds states of another training, such as ", newest,
                           "; those of the same steps are replaced"));
  Expected<io::KeptStates> kept = io::KeptStates::open(folder, options.keepSaves);
  if (!kept.ok()) return ofSaves(kept.status());
  kept_ = std::move(*kept);
  return ofSaves(io::CheckpointWriter::create(folder, step).status());
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
