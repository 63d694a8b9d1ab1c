// sheaf inspect: what a plan is.
#include <cstdio>

#include "frontend/onnx/export/PhaseModel.h"
#include "ir/Plan/Text.h"
#include "runtime/plan/Probe.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/PlanKinds.h"

namespace sheaf::tool {
namespace {

struct InspectOptions {
  std::string plan, format = "summary";
};

int inspect(InspectOptions& o, const options::Given&) {
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readVerifiedPlan(o.plan);
  if (!plan.ok()) return fail(plan.status().message());
  std::string text;
  if (o.format == "onnx") return printBytes(frontend::planModel(**plan));
  if (o.format == "text") {
    text = plan_ir::textOf(**plan) + "\n";
  } else {
    if (o.format == "summary" && plan::isProbe(**plan)) return print(probeText(o.plan) + "\n");
    text = o.format == "json" ? json::write(plan::summaryJson(**plan), 2) + "\n" : plan::summaryText(**plan);
  }
  return print(text);
}

}  // namespace

Command inspectCommand() {
  using O = InspectOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf inspect",
                       "Shows a plan: its memory and communication, or its whole text.",
                       {"sheaf inspect OUT.plan [--format summary|text|json|onnx]"},
                       Row::positional<&O::plan>("OUT.plan"),
                       {},
                       ""};
  table.sections = {
      {"Options",
       {Row::word<&O::format>(
           "--format", {"summary", "text", "json", "onnx"},
           "summary: parameters, memory by kind and what every stage would keep, and "
           "communication; text: the whole plan, which `sheaf assemble` turns back into "
           "the same plan; json: the summary for programs; onnx: the instructions of a run of one step as an "
           "ONNX model to look at, in Netron for instance.")}}};
  return command(std::move(table), inspect);
}

}  // namespace sheaf::tool
