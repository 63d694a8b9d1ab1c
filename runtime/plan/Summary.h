// Reports what a plan costs: for `sheaf inspect`, `diff` and `report`. Programs that run plans do not link this
// (SheafReports).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// A collective of the step: `bytes` is the size of the whole array it works on, the parts of all ranks that it is
// between together.
struct Communication {
  CollectiveOp op = COLLECTIVE_OP_UNSPECIFIED;
  std::string bucket;
  Collective::Phase phase = Collective::PHASE_UNSPECIFIED;
  uint64_t bytes = 0;
  Axis axis = WORLD;
  uint64_t sent = 0;     // by one rank to others
  uint64_t network = 0;  // by all ranks to other nodes, see networkBytes()
};

// What one rank keeps from step to step at a stage, by the ZeRO arithmetic on this plan's buckets, padding included:
// whole, or an N-th. Gradients count as the optimizer sees them; activations are on top.
struct StageNeeds {
  uint64_t parameters = 0, gradients = 0, optimizer = 0;
  uint64_t total() const { return parameters + gradients + optimizer; }
};

// Transfers of one kind in a step, of one rank.
struct Moved {
  uint64_t count = 0, bytes = 0;
};

// A space other than the device's.
struct SpaceSummary {
  uint64_t peakBytes = 0;
  std::map<BufferKind, uint64_t> byKind;  // of kinds that have bytes there
};

struct Summary {
  uint64_t parameters = 0;        // trainable elements: no padding, a tied parameter once
  uint64_t frozenParameters = 0;  // frozen elements
  uint64_t peakBytes = 0, libraryBytes = 0;
  std::map<BufferKind, uint64_t> byKind;  // all seven kinds, in bytes on one rank
  std::map<Buffer::Space, SpaceSummary> spaces;
  std::map<Transfer::Kind, Moved> transfers;
  uint64_t updates = 0, updatesOnHost = 0;  // of buckets, in a step
  std::vector<Communication> communication;
  std::array<StageNeeds, 4> stages;
  StageNeeds own;                 // at the plan's own stages, within nodes and between them
  std::optional<StepWork> floor;  // as the plan states it
  StepWork issued;                // what its instructions do of the same
};

Summary summarize(const Plan& plan);

// "1.23 Gflop", "456 flop".
std::string flopsText(uint64_t flops);

// "8 ranks on 2 nodes of 4, ZeRO stage 3 within nodes and 0 between them".
std::string divisionText(const Plan& plan);

// ranks, zero, batch, parameters, memory, communication, stages, ...: one object.
json::Value summaryJson(const Plan& plan);
// The same for a person; ends with a newline.
std::string summaryText(const Plan& plan);

}  // namespace sheaf::plan
