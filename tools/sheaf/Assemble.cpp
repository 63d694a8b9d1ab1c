// sheaf assemble: from a plan's text to the plan.
#include "ir/Plan/PlanProto.h"
#include "mlir/Parser/Parser.h"
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

int assemble(AssembleOptions& o, const options::Given&) {
  mlir::DialectRegistry registry;
  registry.insert<plan_ir::PlanDialect>();
  mlir::MLIRContext context(registry);
  context.loadAllAvailableDialects();
  DiagnosticPrinter diagnostics(context);
  auto module = mlir::parseSourceFile<mlir::ModuleOp>(o.text, &context);
  if (!module) return kFailed;
  auto programs = module->getOps<plan_ir::ProgramOp>();
  if (programs.empty()) return fail(o.text + " has no plan.program");
  mlir::FailureOr<plan::Plan> plan = plan_ir::toProto(*programs.begin());
  if (mlir::failed(plan)) return kFailed;
  if (o.redigest) {
    if (Status sound = plan::verifyPlan(*plan); !sound.ok()) return fail(o.text + ": " + sound.message());
    plan::redigest(*plan);
  }
  Status written = plan::writePlan(o.output, *plan);
  return written.ok() ? kDone : fail(written.message());
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
