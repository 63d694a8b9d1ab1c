// A run's whole state to and from folders: see io/Checkpoint.h for the format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/exec/StateAccess.h"
#include "runtime/io/Checkpoint.h"

namespace sheaf::exec {

// Where a run stands.
struct RunPosition {
  int64_t step = 0, updates = 0;
  uint64_t samples = 0;
  std::optional<int64_t> shuffleSeed;
};

// Writes FOLDER/step-N, every rank's part of every bucket in a file of its own, and names it in FOLDER/latest. Every
// process calls it and writes its own ranks' files; process 0 gives the whole its name when all are written.
Status saveState(const StateAccess& state, const std::string& folder, const RunPosition& position);

// An error unless the state has exactly the plan's parameters and optimizer states, in the plan's layout.
Status checkState(const plan::Plan& plan, const io::Checkpoint& checkpoint);
// Parameters and states into the ranks' storage, whatever the number of ranks that saved them.
Status loadState(const StateAccess& state, const io::Checkpoint& checkpoint);

}  // namespace sheaf::exec
