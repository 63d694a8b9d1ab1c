// Other systems' schedules of the same step, played by the same simulator with the best of their knobs.
// docs/schedule.md says how each is modelled.
#pragma once

#include <cstdint>
#include <string>

#include "passes/schedule/BaselineStep.h"

namespace sheaf::schedule {

enum class Baseline { kFsdp2, kDeepSpeed, kDeepCompile, kDdp, kEager };
inline constexpr Baseline kBaselines[] = {Baseline::kFsdp2, Baseline::kDeepSpeed, Baseline::kDeepCompile,
                                          Baseline::kDdp, Baseline::kEager};
// "fsdp2", "deepspeed", "deepcompile", "ddp", "eager".
const char* baselineName(Baseline baseline);

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
