#include "runtime/exec/MixedHosts.h"

#include <vector>

#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

std::string remedyFor(const plan::CpuIdentity& a, const plan::CpuIdentity& b) {
  if (a.library != b.library) return "install the same version of the library for all";
  return "set ONEDNN_MAX_CPU_ISA=AVX2 in the environment of all";
}

}  // namespace

Expected<std::string> checkMixedHosts(comm::ProcessGroup* group, plan::CpuIdentity& mine, bool allow) {
  if (!group) return std::string();
  Expected<std::vector<std::string>> all =
      group->allGather(json::write(plan::jsonOf(mine)), "what the processes compute with");
  if (!all.ok()) return all.status();
  std::vector<plan::CpuIdentity> cpus;
  for (size_t process = 0; process < all->size(); ++process) {
    Expected<json::Value> value = json::parse((*all)[process]);
    std::optional<plan::CpuIdentity> cpu = value.ok() ? plan::cpuIdentityOf(*value) : std::nullopt;
    if (!cpu)
      return Status::error(cat(group->describe(static_cast<int64_t>(process)),
                               " does not say what it computes with: run the same version of sheaf-run everywhere"));
    cpus.push_back(std::move(*cpu));
  }
  for (size_t process = 1; process < cpus.size(); ++process) {
    if (plan::haveSameBits(cpus[0], cpus[process])) continue;
    const std::string difference =
        cat(group->describe(0), " has ", plan::text(cpus[0]), ", ", group->describe(static_cast<int64_t>(process)),
            " has ", plan::text(cpus[process]));
    if (!allow)
      return Status::error(cat("the processes would compute other bits: ", difference, "; ",
                               remedyFor(cpus[0], cpus[process]), ", or allow it with --allow-mixed-hosts"));
    mine.mixed = true;
    return cat("mixed hosts: results may differ in their last bits from those of other hosts: ", difference);
  }
  return std::string();
}

std::string warnOfOtherCpu(const std::optional<plan::CpuIdentity>& saved,
                           const std::optional<plan::CpuIdentity>& mine) {
  if (!saved || !mine || plan::haveSameBits(*saved, *mine)) return {};
  return cat("the state was saved by a run that computed with ", plan::text(*saved), "; this one has ",
             plan::text(*mine),
             ": its results may differ in their last bits from those of a run that was not interrupted");
}

}  // namespace sheaf::exec
