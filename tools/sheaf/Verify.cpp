// sheaf verify: the proof that sheaf-run demands of a plan, without running it.
#include <cstdio>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Proof.h"
#include "tools/sheaf/Command.h"

namespace sheaf::tool {
namespace {

struct VerifyOptions {
  std::string plan;
};

int verify(VerifyOptions& o, const options::Given&) {
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(o.plan);
  if (!plan.ok()) return fail(plan.status().message());
  out::printf(
      "%s: no races, no deadlocks, all reads initialised and in bounds, computes what was compiled, ZeRO stage %d, "
      "%s\n",
      o.plan.c_str(), (*plan)->zero_stage(), counted((*plan)->ranks(), "rank").c_str());
  return kDone;
}

}  // namespace

Command verifyCommand() {
  using Row = options::Rows<VerifyOptions>;
  return command(
      options::Table{"sheaf verify",
                     "Proves that a plan has no races, deadlocks or reads of unwritten bytes, keeps to its "
                     "memory and its ZeRO stage, and is, by its digests, what was compiled. An error names the "
                     "instructions, or the table and its entry.",
                     {"sheaf verify OUT.plan"},
                     Row::positional<&VerifyOptions::plan>("OUT.plan"),
                     {},
                     ""},
      verify);
}

}  // namespace sheaf::tool
