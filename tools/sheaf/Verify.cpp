// sheaf verify: the proof that sheaf-run demands of a plan, without running it.
#include <cstdio>

#include "runtime/plan/Proof.h"
#include "tools/sheaf/Arguments.h"

namespace sheaf::tool {

static const char kHelp[] =
    R"(Proves a plan free of races, deadlocks and reads of what was not written, within its memory, true to its stage, and,
by its digests, that it is what was compiled. An error names the instructions, or the table and its entry.

usage: sheaf verify OUT.plan
)";

int verify(const std::vector<std::string>& arguments) {
  std::string path;
  Arguments parser("verify", "verify OUT.plan");
  parser.positional("plan", path);
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help) return help(kHelp);
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(path);
  if (!plan.ok()) return fail(plan.status().message());
  std::printf(
      "%s: race-free, deadlock-free, initialised, bounded, faithful to what was compiled and true to ZeRO stage "
      "%d, for %lld ranks\n",
      path.c_str(), (*plan)->zero_stage(), static_cast<long long>((*plan)->ranks()));
  return 0;
}

}  // namespace sheaf::tool
