#include "runtime/exec/RunSaves.h"

#include <utility>

#include "runtime/base/ResourceErrors.h"
#include "runtime/base/Text.h"
#include "runtime/io/Checkpoint.h"

namespace sheaf::exec {
namespace {

Status ofSaves(const Status& status) {
  return status.ok() ? status : Status::error(cat("--save-state: ", status.message()));
}

}  // namespace

Status RunSaves::open(const std::string& folder, int64_t keep, int64_t step) {
  Expected<io::KeptStates> kept = io::KeptStates::open(folder, keep);
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
