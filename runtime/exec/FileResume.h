// Runs that go on from the files of --offload-dir: what is written with them, and where all ranks can go on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/exec/Job.h"
#include "runtime/exec/SavedState.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// A position as files have it, and back.
Committed committedAt(const RunPosition& position, uint64_t run);
Expected<RunPosition> positionOf(const Committed& state);

// Whether it is one of the folders.
bool isOneOf(const std::string& folder, const std::vector<std::string>& folders);

struct FileResume {
  RunPosition position;
  uint64_t run = 0;
};

// The newest state that the files of all ranks hold: ranks may be a step apart. Every process calls it and looks at the
// files of its own ranks.
Expected<FileResume> findFileState(Device& device, const plan::Plan& plan, uint64_t planHash,
                                   const std::vector<std::string>& folders, Job& job, FileLayer* files);

// A number for a run that begins, the same for all processes.
Expected<uint64_t> newRun(Job& job);

}  // namespace sheaf::exec
