// Compares the processors of a job (`sheaf-run --allow-mixed-hosts`), and that of a saved state with this one.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/plan/CpuIdentity.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// Returns whether the plan has parameters in bf16.
bool computesInBf16(const plan::Plan& plan);

// Compares what the processes compute with; every process calls it with its own. Processes that may compute other bits
// (plan::haveSameBits) are an error that names two of them and the remedy. With `allow` they are not: the result is
// then a warning, and `mine.mixed` is set. The result is empty if all compute the same bits. `group` is null in a job
// of one process.
Expected<std::string> checkMixedHosts(comm::ProcessGroup* group, plan::CpuIdentity& mine, bool bf16, bool allow);

// Returns the warning for a run on `mine` that resumes a state saved on `saved`; empty if both compute the same bits,
// or if one is not known.
std::string warnOfOtherCpu(const std::optional<plan::CpuIdentity>& saved, const std::optional<plan::CpuIdentity>& mine,
                           bool bf16);

}  // namespace sheaf::exec
