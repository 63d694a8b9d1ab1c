// sheaf inspect: what a plan is.
#include <cstdio>

#include "ir/Plan/PlanProto.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Arguments.h"

namespace sheaf::tool {

static const char kHelp[] = R"(Shows a plan.

usage: sheaf inspect OUT.plan [--format summary|text|json]

  summary   parameters, memory by kind next to what the stages would need, communication (default)
  text      the whole plan in the `plan` dialect; `sheaf assemble` turns it back into the same bytes
  json      the summary for programs
)";

int inspect(const std::vector<std::string>& arguments) {
  std::string path, format = "summary";
  Arguments parser("inspect", "inspect OUT.plan");
  parser.positional("plan", path);
  parser.option("--format", [&](const std::string& value) {
    format = value;
    bool known = value == "summary" || value == "text" || value == "json";
    return known ? Status() : Status::error("--format " + value + ": expected summary, text or json");
  });
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help) return help(kHelp);
  Expected<std::unique_ptr<plan::Plan>> plan = plan::readVerifiedPlan(path);
  if (!plan.ok()) return fail(plan.status().message());
  std::string text;
  if (format == "text") {
    mlir::DialectRegistry registry;
    registry.insert<plan_ir::PlanDialect>();
    mlir::MLIRContext context(registry);
    context.loadAllAvailableDialects();
    llvm::raw_string_ostream stream(text);
    plan_ir::fromProto(context, **plan)->print(stream);
    stream << "\n";
  } else {
    text = format == "json" ? json::write(plan::summaryJson(**plan), 2) + "\n" : plan::summaryText(**plan);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace sheaf::tool
