#include "passes/Pipeline.h"

#include "mlir/Transforms/Passes.h"
#include "passes/plan/Finish.h"
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

// What decides bits, of the step and of the evaluation alike.
static void addBitsPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  if (options.gemmEpilogues) passes.addPass(train::createFuseGemmEpilogues());
  passes.addPass(train::createDecompose());
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
  // It fixes which ops become one kernel, and with the precision of what kernels store every bit of the result.
  passes.addPass(train::createAssignFusions());
  train::SetPrecisionOptions precision;
  precision.precision = train::stringifyPrecision(options.precision).str();
  if (options.reducePrecision) precision.reducePrecision = train::stringifyPrecision(*options.reducePrecision).str();
  passes.addPass(train::createSetPrecision(precision));
  // From here on nothing decides bits: what follows depends on how many leaves a rank has.
  passes.addPass(train::createRecordOrigin());
  passes.addPass(train::createWidenLeaves());
}

// After the passes that follow the batch through the layouts of the graph, and before differentiation, so
// that gradients have the layouts of what they are gradients of.
static void addLayoutPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  // A GPU's convolutions and poolings are NCHW.
  if (options.gpu) return;
  passes.addPass(train::createChannelsLast());
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
}

void addTrainPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  passes.addPass(train::createWidenFloats());
  passes.addPass(train::createPartition());
  addLayoutPasses(passes, options);
  train::DifferentiateOptions differentiate;
  differentiate.scaled = options.scaled;
  passes.addPass(train::createDifferentiate(differentiate));
  train::AddOptimizerOptions optimizer;
  optimizer.optimizer = options.optimizer;
  optimizer.groups.assign(options.groups.begin(), options.groups.end());
  optimizer.noDecay = options.noDecay;
  optimizer.clip = options.clip;
  optimizer.skip = options.skip;
  optimizer.scaled = options.scaled;
  passes.addPass(train::createAddOptimizer(optimizer));
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
  // Before composites are taken apart: the pieces of a split's gradient are recognised by their padding.
  passes.addPass(train::createMergePads());
  addBitsPasses(passes, options);
}

void addEvaluationPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  passes.addPass(train::createWidenFloats());
  passes.addPass(train::createPartition());
  addLayoutPasses(passes, options);
  passes.addPass(mlir::createCanonicalizerPass());
  passes.addPass(mlir::createCSEPass());
  addBitsPasses(passes, options);
}

void addZeroPasses(mlir::OpPassManager& passes, const PipelineOptions& options) {
  // Before recomputation adds products: it is what the model needs, whatever the instructions.
  plan_ir::StateFloorOptions floor;
  floor.stage = options.stage;
  floor.ranksPerNode = options.ranksPerNode;
  floor.networkStage = options.networkStage;
  passes.addPass(plan_ir::createStateFloor(floor));
  // After everything that decides bits: clones are never merged back.
  train::RecomputeOptions recompute;
  recompute.what = train::stringifyRecomputation(options.recompute).str();
  recompute.every = options.recomputeEvery;
  recompute.segments = options.recomputeSegments;
  passes.addPass(train::createRecompute(recompute));
  zero::FormBucketsOptions buckets;
  buckets.stage = options.stage;
  buckets.ranksPerNode = options.ranksPerNode;
  buckets.networkStage = options.networkStage;
  buckets.bucketBytes = options.bucketBytes;
  buckets.leastBytes = options.leastBucketBytes;
  passes.addPass(zero::createFormBuckets(buckets));
  zero::GatherParametersOptions gather;
  gather.keepPart = options.keepPart;
  gather.keep = options.keep;
  gather.secondaryPart = options.secondaryPart;
  passes.addPass(zero::createGatherParameters(gather));
  passes.addPass(zero::createReduceGradients());
  passes.addPass(zero::createPlaceUpdates());
  passes.addPass(zero::createOrderGatheredRows());
  passes.addPass(zero::createVerifyStage());
  zero::SplitMicroBatchesOptions split;
  split.reduce = options.reduce;
  passes.addPass(zero::createSplitMicroBatches(split));
}

void addFusePasses(mlir::OpPassManager& passes) {
  passes.addPass(train::createFuse());
  // Once it is known what a kernel is: only kernels and products can step over what lies between rows.
  passes.addPass(train::createPitchRows());
}

// Runs the passes over the plan itself that follow the lowering.
static Status finishPlan(plan_ir::Draft& draft, const PipelineOptions& options) {
  // Before anything is decided about order and memory: the proof will say that the plan still computes this.
  SHEAF_RETURN_IF_ERROR(plan_ir::digestDataflow(draft));
  if (options.offloads()) {
    plan_ir::OffloadOptions offload;
    offload.optimizer = options.offload.optimizer;
    offload.parameters = options.offload.parameters;
    offload.gradients = options.offload.gradients;
    offload.activations = options.offload.activations;
    offload.within = options.offloadWithin;
    offload.hostBytes = options.offloadHost;
    offload.profileName = options.profile;
    offload.updateOn = options.updateOnHost ? "host" : "device";
    SHEAF_RETURN_IF_ERROR(plan_ir::offload(draft, offload));
    SHEAF_RETURN_IF_ERROR(plan_ir::copyHostOperands(draft));
  }
  plan_ir::ScheduleOptions schedule;
  schedule.profileName = options.profile;
  schedule.memoryLimit = options.memoryLimit;
  schedule.prefetch = options.prefetch;
  SHEAF_RETURN_IF_ERROR(plan_ir::scheduleInstructions(draft, schedule));
  if (options.offloads()) SHEAF_RETURN_IF_ERROR(plan_ir::addGenerations(draft, options.fileGenerations));
  SHEAF_RETURN_IF_ERROR(plan_ir::insertEvents(draft, /*placed=*/false));
  SHEAF_RETURN_IF_ERROR(plan_ir::elideEvents(draft));
  // After the streams' order is known: buffers share bytes only where it keeps their accesses apart.
  SHEAF_RETURN_IF_ERROR(plan_ir::allocateArena(draft));
  // The events so far say how far ahead a gather may run for memory's sake. What the layout needs of that, and no more,
  // is found again from the bytes that buffers share.
  SHEAF_RETURN_IF_ERROR(plan_ir::insertEvents(draft, /*placed=*/true));
  return plan_ir::elideEvents(draft);
}

mlir::FailureOr<plan_ir::Draft> makePlan(mlir::ModuleOp module, const PipelineOptions& options) {
  mlir::FailureOr<plan_ir::Draft> draft = plan_ir::lowerToPlan(module, {options.maxThreads, options.cpu, options.gpu});
  if (mlir::failed(draft)) return mlir::failure();
  if (Status finished = finishPlan(*draft, options); !finished.ok()) return module.emitError(finished.message());
  return draft;
}

}  // namespace sheaf
