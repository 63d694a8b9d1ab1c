// Agreements among the processes of a job. Every process calls these; without a group there is one process.
#pragma once

#include <chrono>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::exec {

// Returns the same status for all processes: the error of the first that has one, or an error if their subjects, such
// as paths, differ. `what` names the exchange, as in ProcessGroup.
Status agreeOnStatus(comm::ProcessGroup* group, const std::string& what, const Status& mine,
                     const std::string& subject = "");

// Returns process 0's `name` to all: a temporary name of files in which every process writes its part.
Expected<std::string> shareName(comm::ProcessGroup* group, const std::string& name, const std::string& what);

// Returns how long process 0 waits for a file lock: at most a minute, and half the time that the others wait for it.
std::chrono::milliseconds lockLimit(const comm::ProcessGroup* group);

}  // namespace sheaf::exec
