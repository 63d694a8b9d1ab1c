// The states that a training saves: the folder of --save-state, what saves into it (StateSaver.h), and which states of
// it are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"
#include "runtime/exec/SavedState.h"
#include "runtime/exec/StateAccess.h"
#include "runtime/exec/StateSaver.h"
#include "runtime/io/KeptStates.h"

namespace sheaf::exec {

// Errors name --save-state.
class RunSaves {
 public:
  // Opens the folder of --save-state before the training, in the process that writes folders. Fails if no state can be
  // written there. `position` is where the run begins. States of another training in the folder are an error with
  // --keep-saves, which would remove them, and otherwise a warning.
  Status open(const RunOptions& options, const RunPosition& position, std::vector<std::string>& warnings);
  // Takes memory and threads for `staging` bytes of each rank. `state` outlives the saves. From here on `complete` is
  // called for each state that is on the disk, by the functions below.
  Status start(const StateAccess& state, const std::string& folder, uint64_t staging,
               std::function<void(const CompleteSave&)> complete);
  // Abandons what is not complete.
  void stop() { saver_.reset(); }

  bool started() const { return saver_.has_value(); }
  // True if a state has been saved.
  bool any() const { return any_; }

  // Save a state, the last state of the run (which is on the disk afterwards), and wait for the save in progress. Every
  // process calls them together, and gets the same status. Without start() only finish() may be called.
  Status save(const RunPosition& position);
  Status saveLast(const RunPosition& position);
  Status finish();

  // Without waiting: reports complete saves, and returns false if any save has failed.
  bool poll();

 private:
  Status reported(const Status& status);

  std::optional<io::KeptStates> kept_;
  std::optional<StateSaver> saver_;
  std::function<void(const CompleteSave&)> complete_;
  bool any_ = false;
};

}  // namespace sheaf::exec
