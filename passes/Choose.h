// Chooses what the user left open: stage, recomputation, buckets, retention, offload. Every candidate is compiled to a
// laid out plan, so that what is compared are its bytes and its simulated time, not estimates of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/Pipeline.h"
#include "runtime/base/Status.h"

namespace sheaf {

// ZeRO stages of the ranks of a node, and of ranks of different nodes: at most as high. Where there are no nodes both
// are the stage.
struct Stages {
  int64_t within = 0, between = 0;
  bool operator==(const Stages&) const = default;
};

// Where buckets are updated whose optimizer state has been moved. automatic: on the host if that makes the predicted
// step shorter.
enum class UpdateOn { automatic, device, host };

struct ChooseOptions {
  std::optional<Stages> stage;                    // none: the best
  std::optional<train::Recomputation> recompute;  // none: as little as fits
  uint64_t memoryLimit = 0;                       // of a rank's arena on the device; 0: none
  uint64_t hostLimit = 0, fileLimit = 0;          // of those in host memory and in files; 0: none
  bool offload = false;                           // where the limit asks for it, buffers may be moved to other spaces
  UpdateOn updateOn = UpdateOn::automatic;
  bool retention = true;     // which buckets stay gathered may be chosen; false: the options say
  bool secondary = true;     // so may those that keep secondary shards
  int64_t ranksPerNode = 0;  // of nodes that the plan may have, where the options give none; 0: it has none
  // Called before a candidate is compiled, as in "ZeRO-3, candidate 5"; null: nothing is.
  std::function<void(const std::string& text)> onCandidate = nullptr;
  // The limit is that of a rank's whole memory: what plan::RankMemory counts besides the arena must fit, too.
  bool wholeMemory = false;
};

// A candidate, compiled up to the phase `plan`.
struct Candidate {
  PipelineOptions options;
  mlir::OwningOpRef<mlir::ModuleOp> module;  // that was lowered, with its attributes and the draft's fusions
  plan_ir::Draft draft;
  double seconds = 0, bound = 0, exposed = 0;
  std::string boundBy;
  double floor = 0;  // of any plan of the model at this stage: schedule::Floor
  std::string floorBy;
  uint64_t bytes = 0;  // of the arena on the device
  uint64_t hostBytes = 0, fileBytes = 0;
  std::string moved;  // which bytes these are, and what is updated on the host, for text()
  bool updatesOnHost = false;
  std::string neediest;     // where it does not fit the device: the instruction during which most bytes are alive
  uint64_t besides = 0;     // what libraries and exchanged sums take, if the limit counts them
  uint64_t stateBytes = 0;  // of what is kept from step to step
  uint64_t wholeBytes = 0;  // of all parameters, unsharded
  bool fits = true;

  // "ZeRO-3, buckets of 64.0 MiB, all of 40 segments recomputed".
  std::string text() const;
};

// Whether a is to be preferred: it fits and b does not; or it takes less time, or as much and fewer bytes.
bool better(const Candidate& a, const Candidate& b);

// The candidate that takes the least time of those that fit, or, if none does, the one with the fewest bytes. Buckets
// that the options give stay, and so does retention unless it may be chosen. The module is the one that the phase
// `train` left; an error has been reported where this fails.
mlir::FailureOr<Candidate> choose(mlir::ModuleOp trained, const PipelineOptions& options, const ChooseOptions& choices);

}  // namespace sheaf
