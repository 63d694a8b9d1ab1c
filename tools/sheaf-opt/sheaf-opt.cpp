// The MLIR driver with Sheaf's dialects and passes, for tests and for looking at one pass at a time.
#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"
#include "passes/train/Passes.h"

int main(int argc, char** argv) {
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, sheaf::train::TrainDialect>();
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  sheaf::train::registerTrainPasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "Sheaf's optimizer driver\n", registry));
}
