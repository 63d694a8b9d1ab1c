// Compares the files that a run writes with those that it reads.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"
#include "runtime/exec/RunInputs.h"

namespace sheaf::exec {

// Fails if an output would overwrite an input (links are resolved), another output, or a file that --save-state or
// --offload-dir creates. Writes nothing.
Status checkOutputConflicts(const RunOptions& options, const RunInputs& in);

}  // namespace sheaf::exec
