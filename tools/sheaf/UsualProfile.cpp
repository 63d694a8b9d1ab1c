#include "tools/sheaf/UsualProfile.h"

namespace sheaf::tool {

const char* usualProfile(const codegen::KernelTarget& target) {
  constexpr int kAda = 89, kHopper = 90, kBlackwell = 100, kBlackwellOfGraphicsCards = 120;
  if (!target.isGpu()) return "cpu";
  const int architecture = target.architecture;
  if (architecture >= kBlackwellOfGraphicsCards || architecture == kAda) return "rtx4090";
  return architecture >= kBlackwell ? "gb200" : architecture >= kHopper ? "h100" : "a100";
}

const char* usualProfile(const plan::Plan& plan) {
  if (plan.images_size() == 0) return "cpu";
  const Expected<std::vector<codegen::KernelTarget>> targets = codegen::parseTargets(plan.images(0).target());
  return targets.ok() ? usualProfile(targets->front()) : "cpu";
}

}  // namespace sheaf::tool
