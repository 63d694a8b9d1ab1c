// sheaf assemble: from a plan's text to the plan.
#include <algorithm>
#include <span>
#include <string_view>

#include "ir/Plan/PlanProto.h"
#include "mlir/Parser/Parser.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Diagnostics.h"

namespace sheaf::tool {
namespace {

struct AssembleOptions {
  std::string text, output;
  bool redigest = false;
};

// MLIR's parser calls itself for what is nested, and plans nest little.
constexpr int64_t kMaxDepth = 200;

// Returns true if brackets outside of strings and comments are nested deeper than that.
bool isTooDeep(std::string_view text) {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    } else if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '(' || c == '[' || c == '{' || c == '<') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ')' || c == ']' || c == '}' || (c == '>' && (i == 0 || text[i - 1] != '-'))) {
      depth = std::max<int64_t>(depth - 1, 0);
    }
  }
  return false;
}

int assemble(AssembleOptions& o, const options::Given&) {
  mlir::DialectRegistry registry;
  registry.insert<plan_ir::PlanDialect>();
  mlir::MLIRContext context(registry);
  context.loadAllAvailableDialects();
  DiagnosticPrinter diagnostics(context);
  Expected<std::string> text = readSmallFile(o.text, plan::kMaxPlanBytes, "the text of a plan");
  if (!text.ok()) return fail(text.status().message());
  if (Status whole = refuseLfsPointer(o.text, std::as_bytes(std::span(*text))); !whole.ok())
    return fail(whole.message());
  if (isTooDeep(*text))
    return fail(cat(o.text, ": brackets are nested more than ", kMaxDepth, " deep; this is not a plan's text"));
  auto module = mlir::parseSourceString<mlir::ModuleOp>(*text, &context, o.text);
  if (!module) return kFailed;
  auto programs = module->getOps<plan_ir::ProgramOp>();
  if (programs.empty()) return fail(o.text + " has no plan.program");
  mlir::FailureOr<plan::Plan> plan = plan_ir::toProto(*programs.begin());
  if (mlir::failed(plan)) return kFailed;
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
