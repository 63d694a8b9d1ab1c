// Whether the processes of a job compute the same bits (`sheaf-run --allow-mixed-hosts`).
#pragma once

#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/plan/CpuIdentity.h"

namespace sheaf::exec {

// Compares what the processes compute with; every process calls it with its own. Processes that would compute other
// bits are an error that names two of them and the remedy. With `allow` they are not: the result is then a warning, and
// `mine.mixed` is set. The result is empty if all compute the same bits. `group` is null in a job of one process.
Expected<std::string> checkMixedHosts(comm::ProcessGroup* group, plan::CpuIdentity& mine, bool allow);

// Returns the warning for a run on `mine` that resumes a state saved on `saved`; empty if both compute the same bits,
// or if one is not known.
std::string warnOfOtherCpu(const std::optional<plan::CpuIdentity>& saved, const std::optional<plan::CpuIdentity>& mine);

}  // namespace sheaf::exec
