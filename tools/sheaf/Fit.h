// What a training step needs on a rank at each ZeRO stage: of `sheaf fit`, and of `sheaf check`.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/Json.h"
#include "tools/sheaf/Links.h"
#include "tools/sheaf/Nodes.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {

struct FitOptions : TrainedOptions {
  uint64_t memory = 0;
  int64_t mostRanks = 0;  // that the profile can predict
  bool json = false;
  FitOptions() { import.ranks = 0, ranksPerNode = kProfilesNodes; }
};

// A stage's plan, with or without recomputation.
struct Layout {
  uint64_t bytes = 0, stateBytes = 0;          // of the arena; of what is kept from step to step
  uint64_t besides = 0;                        // libraries and exchanged sums
  uint64_t hostBytes = 0, fileBytes = 0;       // of the arenas in other spaces
  std::map<plan::BufferKind, uint64_t> kinds;  // largest at the same time
  double seconds = 0, exposed = 0;
  std::string text;
  bool fits = false;
  std::shared_ptr<const plan::Plan> plan;
  uint64_t needed() const { return bytes + besides; }
};

struct Stage {
  int64_t stage = 0;
  Layout plain, recomputed;
  std::optional<Layout> offloaded;  // with --offload, at the stages at which that may pay
  const Layout& best() const {
    if (offloaded && offloaded->fits && !plain.fits && (!recomputed.fits || offloaded->seconds < recomputed.seconds))
      return *offloaded;
    return plain.fits || recomputed.needed() >= plain.needed() ? plain : recomputed;
  }
};

struct Fit {
  std::vector<Stage> stages;
  int64_t fewest = 0;         // ranks on which stage 3 fits; 0: there is no such number
  int64_t exportedBatch = 0;  // the batch that is fixed in the model; 0 if it is dynamic or one row
  // Of the fastest plan that fits, if any does: what binds it, its links where the machine has several nodes, what it
  // writes, and other systems.
  int64_t fastest = -1;  // its stage
  double seconds = 0;
  std::optional<Links> links;
  schedule::Bound bound;
  Resources resources;
  Wear wear;
  Baselines baselines;

  // True if a stage fits.
  bool fits() const {
    return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.best().fits; });
  }
};

// Derives what follows from the options.
Status complete(FitOptions& options);
// Lays out every stage of a module that the phase `train` left. Nothing: an error has been printed.
std::optional<Fit> layOutStages(mlir::MLIRContext& context, const FitOptions& options, mlir::ModuleOp trained);
json::Value fitJson(const FitOptions& options, const Fit& fit);
void printFit(const FitOptions& options, const Fit& fit);

}  // namespace sheaf::tool
