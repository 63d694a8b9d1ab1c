// The phases between the importer and the emitter, each a list of passes; see docs/pipeline.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/Plan/Draft.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

namespace sheaf {

// In which space each kind of buffer lies: "device", "host" or "file"; see plan-offload.
struct OffloadSpaces {
  std::string optimizer = "device", parameters = "device", gradients = "device", activations = "device";
  bool operator==(const OffloadSpaces&) const = default;
  bool any() const { return *this != OffloadSpaces(); }
};

// The kinds, by the names that options use.
struct OffloadKind {
  std::string_view name;
  std::string OffloadSpaces::*space;
};
inline constexpr OffloadKind kOffloadKinds[] = {{"optimizer", &OffloadSpaces::optimizer},
                                                {"parameters", &OffloadSpaces::parameters},
                                                {"gradients", &OffloadSpaces::gradients},
                                                {"activations", &OffloadSpaces::activations}};

struct PipelineOptions {
  std::string optimizer;            // NAME[:key=value,...]; empty: the model's own, else adamw
  std::vector<std::string> groups;  // REGEX:key=value,... for the parameters whose names match
  bool noDecay = false;             // no weight decay for vectors and embeddings
  bool clip = false, skip = false;
  std::string reduce = "auto";                         // of several micro-batches: see zero-split-micro-batches
  bool scaled = false;                                 // the loss is multiplied by a loss scale
  bool gemmEpilogues = false;                          // see train-fuse-gemm-epilogues
  train::Precision precision = train::Precision::f32;  // see train-set-precision
  std::optional<train::Precision> reducePrecision;     // of sums over ranks; absent: as `precision`
  int64_t stage = 0;                                   // of the ranks of a node, where there are nodes
  int64_t networkStage = -1;                           // of ranks of different nodes; negative: `stage`
  int64_t ranksPerNode = 0;                            // 0: there are no nodes
  int64_t bucketBytes = 0;                             // 0: chosen from the model's size
  int64_t leastBucketBytes = 64 << 10;                 // where it is chosen
  train::Recomputation recompute = train::Recomputation::none;  // see train-recompute
  int64_t recomputeEvery = 2, recomputeSegments = -1;
  double keepPart = 0;  // of the buckets, those used last in the forward pass: they stay gathered for the backward pass
  std::string keep;     // and those with a parameter that this regular expression matches
  double secondaryPart = 0;  // of the other buckets, those used last: the result of a gather's first hop is kept
  int64_t maxThreads = 8;
  bool cpu = true, gpu = false;  // what the plan is to run on
  std::string profile = "cpu";   // the hardware that the step is scheduled for: a name or a file
  uint64_t memoryLimit = 0;      // most bytes of a rank's arena; 0: no limit
  OffloadSpaces offload;
  int64_t fileGenerations = 2;  // of state in files, if it is all there: see plan-generations
  // Instead of whole kinds, by cost what it takes for so many bytes to be alive on the device; negative: as `offload`
  // says. Of it at most offloadHost bytes to host memory, the rest to files; negative: all to host memory.
  int64_t offloadWithin = -1, offloadHost = -1;
  bool updateOnHost = false;  // buckets whose optimizer state has been moved
  bool offloads() const { return offload.any() || offloadWithin >= 0; }
  int64_t prefetch = -1;  // gathers under way beyond those in use; negative: what is best
};

// Cleans up what the importer made: constants folded, sub-graphs lifted.
void addImportPasses(mlir::OpPassManager& passes);
// Loss, backward, optimizer; ends with everything decided that decides bits.
void addTrainPasses(mlir::OpPassManager& passes, const PipelineOptions& options);
// The same for a module whose @step is an evaluation: outputs and loss of a batch, without a backward pass.
void addEvaluationPasses(mlir::OpPassManager& passes, const PipelineOptions& options);
// Buckets, gathers, reductions, updates on shards.
void addZeroPasses(mlir::OpPassManager& passes, const PipelineOptions& options);
// Outlines the kernels.
void addFusePasses(mlir::OpPassManager& passes);
// Buffers, instructions, schedule, events, memory, from a module that the phase before left; it keeps the fusions of
// the draft. Errors have been reported at the module.
mlir::FailureOr<plan_ir::Draft> makePlan(mlir::ModuleOp module, const PipelineOptions& options);

}  // namespace sheaf
