// The phases between the importer and the emitter, each a list of passes; see docs/pipeline.md.
#pragma once

#include <cstdint>
#include <string>

#include "mlir/Pass/PassManager.h"

namespace sheaf {

struct PipelineOptions {
  std::string optimizer;  // NAME[:key=value,...]; empty: the model's own, else adamw
  bool clip = false, skip = false;
  std::string precision = "f32", reducePrecision = "bf16";  // see train-set-precision
  int64_t stage = 0;
  int64_t bucketBytes = 0;  // 0: chosen from the model's size
  int64_t maxThreads = 8;
};

// Cleans up what the importer made: constants folded, sub-graphs lifted.
void addImportPasses(mlir::OpPassManager& passes);
// Loss, backward, optimizer; ends with everything decided that decides bits.
void addTrainPasses(mlir::OpPassManager& passes, const PipelineOptions& options);
// Buckets, gathers, reductions, updates on shards.
void addZeroPasses(mlir::OpPassManager& passes, const PipelineOptions& options);
// Outlines the kernels.
void addFusePasses(mlir::OpPassManager& passes);
// Schedule, instructions, events, memory.
void addPlanPasses(mlir::OpPassManager& passes, const PipelineOptions& options);

}  // namespace sheaf
