// sheaf assemble: from a plan's text to the plan.
#include "ir/Plan/PlanProto.h"
#include "mlir/Parser/Parser.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Arguments.h"
#include "tools/sheaf/Diagnostics.h"

namespace sheaf::tool {

static const char kHelp[] = R"(Turns a plan's text back into the plan.

usage: sheaf assemble PLAN.mlir -o OUT.plan [--redigest]

  --redigest   state the plan's digests anew, after an intended edit; the digests in the text are kept otherwise, and a
               plan that they do not fit is refused when it is verified or run

Syntax is checked here; whether the plan is sound is judged when it is loaded.
)";

int assemble(const std::vector<std::string>& arguments) {
  std::string path, output;
  bool redigest = false;
  Arguments parser("assemble", "assemble PLAN.mlir -o OUT.plan");
  parser.positional("text", path);
  parser.option("-o", output);
  parser.flag("--redigest", redigest);
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help) return help(kHelp);
  if (output.empty()) return fail("-o OUT.plan is missing: where is the plan to be written?");
  mlir::DialectRegistry registry;
  registry.insert<plan_ir::PlanDialect>();
  mlir::MLIRContext context(registry);
  context.loadAllAvailableDialects();
  DiagnosticPrinter diagnostics(context);
  auto module = mlir::parseSourceFile<mlir::ModuleOp>(path, &context);
  if (!module) return 1;
  auto programs = module->getOps<plan_ir::ProgramOp>();
  if (programs.empty()) return fail(path + " has no plan.program");
  mlir::FailureOr<plan::Plan> plan = plan_ir::toProto(*programs.begin());
  if (mlir::failed(plan)) return 1;
  if (redigest) {
    if (Status sound = plan::verifyPlan(*plan); !sound.ok()) return fail(path + ": " + sound.message());
    plan::redigest(*plan);
  }
  Status written = plan::writePlan(output, *plan);
  return written.ok() ? 0 : fail(written.message());
}

}  // namespace sheaf::tool
