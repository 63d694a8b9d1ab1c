// The files that a run writes, compared with those that it reads.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"
#include "runtime/exec/RunInputs.h"

namespace sheaf::exec {

// Refuses a file to write that is a file to read, by whatever path or link, or another one to write; also one in a
// folder where the run gives files that name itself. Nothing has been written yet.
Status checkWrittenFiles(const RunOptions& options, const RunInputs& in);

}  // namespace sheaf::exec
