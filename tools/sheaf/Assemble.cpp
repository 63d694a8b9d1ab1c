// sheaf assemble: from a plan's text to the plan.
#include <cctype>
#include <span>

#include "ir/Plan/Text.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Command.h"

namespace sheaf::tool {
namespace {

struct AssembleOptions {
  std::string text, output;
  bool redigest = false;
};

int assemble(AssembleOptions& o, const options::Given&) {
  Expected<std::string> text = readSmallFile(o.text, plan::kMaxPlanBytes, "the text of a plan");
  if (!text.ok()) return fail(text.status().message());
  if (Status whole = refuseLfsPointer(o.text, std::as_bytes(std::span(*text))); !whole.ok())
    return fail(whole.message());
  if (plan::isPlanFile(o.text))
    return fail(cat(o.text, " is a plan, not its text: `sheaf inspect --format text` prints that"));
  const bool isText = text->empty() || std::isprint(static_cast<unsigned char>(text->front())) ||
                      std::isspace(static_cast<unsigned char>(text->front()));
  if (!isText || text->find("plan.program") == std::string::npos)
    return fail(cat(o.text, isText ? " is not the text of a plan, which has a plan.program" : " is not a text",
                    ": give the text that `sheaf inspect OUT.plan --format text` prints; `sheaf compile MODEL.onnx -o ",
                    "OUT.plan` makes a plan of a model"));
  Expected<plan::Plan> plan = plan_ir::parseText(*text, o.text);
  if (!plan.ok()) return fail(plan.status().message());
  if (plan->version() == 0)
    return fail(cat(o.text, ": plan.program has no version: give it `version = ", plan::kPlanVersion, " : i64`"));
  if (o.redigest) {
    if (Status sound = plan::verifyPlan(*plan); !sound.ok()) return fail(o.text + ": " + sound.message());
    plan::redigest(*plan);
  }
  if (Status written = plan::writePlan(o.output, *plan); !written.ok()) return fail(written.message());
  note("wrote " + writtenPath(o.output));
  return kDone;
}

}  // namespace

Command assembleCommand() {
  using Row = options::Rows<AssembleOptions>;
  using O = AssembleOptions;
  options::Table table{"sheaf assemble",
                       "Turns the text of a plan into the plan.",
                       {"sheaf assemble PLAN.mlir -o OUT.plan [--redigest]"},
                       Row::positional<&O::text>("PLAN.mlir"),
                       {},
                       "Only the syntax is checked here. The plan is verified when it is loaded; see `sheaf verify`."};
  table.sections = {{"Options",
                     {Row::text<&O::output>("-o", "OUT.plan", "File for the plan.")
                          .writes({"plan"})
                          .required("where is the plan to be written?"),
                      Row::flag<&O::redigest>(
                          "--redigest",
                          "Compute the plan's digests again, after an intended edit. Otherwise those in the text are "
                          "kept, and a plan that does not match them is refused when it is verified or run.")}}};
  return command(std::move(table), assemble);
}

}  // namespace sheaf::tool
