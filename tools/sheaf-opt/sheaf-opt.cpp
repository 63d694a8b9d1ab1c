// The MLIR driver with Sheaf's dialects and passes, for tests and for looking at one pass at a time.
#include "ir/FatalErrors.h"
#include "ir/Plan/PlanDialect.h"
#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"
#include "passes/plan/Passes.h"
#include "passes/train/Passes.h"
#include "passes/zero/Passes.h"

int main(int argc, char** argv) {
  sheaf::installCompilerCrashHandlers("sheaf-opt");
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, sheaf::train::TrainDialect, sheaf::zero::ZeroDialect,
                  sheaf::plan_ir::PlanDialect>();
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  sheaf::train::registerTrainPasses();
  sheaf::zero::registerZeroPasses();
  sheaf::plan_ir::registerPlanPasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "Sheaf's optimizer driver\n", registry));
}
