// Refusals of plans that a command has no use for: a probe of `sheaf profile`, or an evaluation alone.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::tool {

// Refuses a probe, which is a plan of no model. `path`: its file.
Status requireModel(const plan::Plan& plan, const std::string& path);

// Refuses a probe and a plan of --eval-only, which have no training step. `purpose`: "to report on".
Status requireStep(const plan::Plan& plan, const std::string& path, const std::string& purpose);

// "probe.plan is a probe of `sheaf profile`, not a plan of a model: ...".
std::string probeText(const std::string& path);

}  // namespace sheaf::tool
