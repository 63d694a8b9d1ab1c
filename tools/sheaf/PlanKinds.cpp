#include "tools/sheaf/PlanKinds.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Probe.h"

namespace sheaf::tool {

std::string probeText(const std::string& path) {
  return cat(path, " is a probe of `sheaf profile`, not a plan of a model: `sheaf-run ", shellPath(path),
             " --measure PROFILE.json` measures a machine with it");
}

Status requireModel(const plan::Plan& plan, const std::string& path) {
  return plan::isProbe(plan) ? Status::error(cat(probeText(path), "; give a plan that `sheaf compile` made"))
                             : Status();
}

Status requireStep(const plan::Plan& plan, const std::string& path, const std::string& purpose) {
  SHEAF_RETURN_IF_ERROR(requireModel(plan, path));
  if (plan.body_size() > 0) return {};
  return Status::error(cat(path, ": the plan only evaluates (`sheaf compile --eval-only`): it has no training step ",
                           purpose, "; compile the model without --eval-only, or with --eval to have both"));
}

}  // namespace sheaf::tool
