#include "runtime/exec/MixedHosts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

// Names the narrower of the two sets, as oneDNN's variable takes it.
std::string limitFor(const plan::CpuIdentity& a, const plan::CpuIdentity& b) {
  constexpr std::pair<const char*, const char*> kSets[] = {
      {"SSE4.1", "SSE41"}, {"AVX", "AVX"}, {"AVX2", "AVX2"}, {"AVX-512", "AVX512_CORE"}};
  if (a.instructions == b.instructions)
    return a.bf16 == "none" || b.bf16 == "none" ? "AVX512_CORE" : "AVX512_CORE_BF16";
  for (const auto& [name, value] : kSets)
    if (a.instructions == name || b.instructions == name) return value;
  return "AVX2";
}

std::string remedyFor(const plan::CpuIdentity& a, const plan::CpuIdentity& b, bool bf16) {
  std::string remedy;
  if (a.library != b.library) remedy = "install the same version of the library for all, ";
  if (a.instructions != b.instructions || (bf16 && a.bf16 != b.bf16))
    remedy += cat("set ONEDNN_MAX_CPU_ISA=", limitFor(a, b), " in the environment of all, ");
  return remedy + "or allow it with --allow-mixed-hosts";
}

}  // namespace

bool computesInBf16(const plan::Plan& plan) {
  return std::any_of(plan.buckets().begin(), plan.buckets().end(),
                     [](const plan::Bucket& bucket) { return bucket.type() == plan::BF16; });
}

Expected<std::string> checkMixedHosts(comm::ProcessGroup* group, plan::CpuIdentity& mine, bool bf16, bool allow) {
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
    if (plan::haveSameBits(cpus[0], cpus[process], bf16)) continue;
    const std::string difference =
        cat(group->describe(0), " has ", plan::text(cpus[0]), ", ", group->describe(static_cast<int64_t>(process)),
            " has ", plan::text(cpus[process]));
    if (!allow)
      return Status::error(cat("the processes may compute other bits than each other: ", difference, "; ",
                               remedyFor(cpus[0], cpus[process], bf16)));
    mine.mixed = true;
    return cat("mixed hosts: results may differ in their last bits from those of hosts that are all alike: ",
               difference);
  }
  return std::string();
}

std::string warnOfOtherCpu(const std::optional<plan::CpuIdentity>& saved, const std::optional<plan::CpuIdentity>& mine,
                           bool bf16) {
  if (!saved || !mine || plan::haveSameBits(*saved, *mine, bf16)) return {};
  return cat("the state was saved by a run that computed with ", plan::text(*saved), "; this one has ",
             plan::text(*mine),
             ": its results may differ in their last bits from those of a run that was not interrupted");
}

}  // namespace sheaf::exec
