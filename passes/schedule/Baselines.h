// Other systems' schedules of the same step, played by the same simulator with the best of their knobs.
// docs/schedule.md says how each is modelled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/schedule/BaselineStep.h"

namespace sheaf::schedule {

// kHsdp is FSDP2 on a mesh of two dimensions; kMics and kHpz are options of DeepSpeed's stage 3.
enum class Baseline { kFsdp2, kHsdp, kDeepSpeed, kMics, kHpz, kDeepCompile, kDdp, kEager };
// "fsdp2", "hsdp", "deepspeed", "mics", "hpz", "deepcompile", "ddp", "eager".
const char* baselineName(Baseline baseline);
// Those of the step's machine: HSDP, MiCS and hpZ are for several nodes.
std::vector<Baseline> baselinesFor(const BaselineStep& step);

struct BaselineResult {
  double seconds = 0;
  uint64_t bytes = 0;  // largest sum of what is alive; no layout is counted
  std::string knobs;   // the best ones
  bool fits = true;    // within the limit
};

// With the knobs that take the least time within the limit (bytes of a rank; 0: none), or the fewest bytes where
// nothing fits. Knobs are varied one at a time from the system's defaults and from its leanest setting until no change
// helps.
BaselineResult playBaseline(const BaselineStep& step, Baseline baseline, uint64_t memoryLimit);

}  // namespace sheaf::schedule
