#include "passes/Pipeline.h"

#include "mlir/Transforms/Passes.h"
#include "passes/plan/Passes.h"
#include "passes/train/Passes.h"
#include "passes/zero/Passes.h"

namespace sheaf {

void addImportPasses(mlir::OpPassManager& passes) {
  passes.addPass(train::createFoldConstants());
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
  passes.addPass(train::createLiftNormalization());
  passes.addPass(train::createLiftGelu());
  passes.addPass(train::createLiftAttention());
  passes.addPass(train::createLiftCrossEntropy());
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
}

void addTrainPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  passes.addPass(train::createWidenFloats());
  passes.addPass(train::createGlobalizeLoss());
  passes.addPass(train::createDifferentiate());
  train::AddOptimizerOptions optimizer;
  optimizer.optimizer = options.optimizer;
  optimizer.clip = options.clip;
  optimizer.skip = options.skip;
  passes.addPass(train::createAddOptimizer(optimizer));
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
  // Before composites are taken apart: the pieces of a split's gradient are recognised by their padding.
  passes.addPass(train::createMergePads());
  passes.addPass(train::createDecompose());
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
  // It fixes which ops become one kernel, and with the precision of what kernels store every bit of the result.
  passes.addPass(train::createAssignFusions());
  train::SetPrecisionOptions precision;
  precision.precision = options.precision;
  precision.reducePrecision = options.reducePrecision;
  passes.addPass(train::createSetPrecision(precision));
}

void addZeroPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  zero::FormBucketsOptions buckets;
  buckets.stage = options.stage;
  buckets.bucketBytes = options.bucketBytes;
  passes.addPass(zero::createFormBuckets(buckets));
  passes.addPass(zero::createGatherParameters());
  passes.addPass(zero::createReduceGradients());
  passes.addPass(zero::createPlaceUpdates());
  passes.addPass(zero::createVerifyStage());
}

void addFusePasses(mlir::OpPassManager& passes) {
  passes.addPass(train::createFuse());
}

void addPlanPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  passes.addPass(plan_ir::createSchedule());
  plan_ir::LowerToPlanOptions lower;
  lower.maxThreads = options.maxThreads;
  passes.addPass(plan_ir::createLowerToPlan(lower));
  passes.addPass(plan_ir::createInsertEvents());
  passes.addPass(plan_ir::createElideEvents());
  // After the streams' order is known: buffers share bytes only where it keeps their accesses apart.
  passes.addPass(plan_ir::createAllocateArena());
}

}  // namespace sheaf
