// How other systems would schedule the same step, played by the same simulator. docs/schedule.md says how each is
// modelled.
#pragma once

#include <cstdint>
#include <string>

#include "passes/schedule/BaselineStep.h"

namespace sheaf::schedule {

enum class Baseline { kFsdp2, kDeepSpeed, kDeepCompile, kEager };
inline constexpr Baseline kBaselines[] = {Baseline::kFsdp2, Baseline::kDeepSpeed, Baseline::kDeepCompile,
                                          Baseline::kEager};
// "fsdp2", "deepspeed", "deepcompile", "eager".
const char* baselineName(Baseline baseline);

struct BaselineResult {
  double seconds = 0;
  uint64_t bytes = 0;  // largest sum of what is alive; no layout is counted
  std::string knobs;   // the best ones
  bool fits = true;    // within the limit
};

// With the knobs that take least time within the limit (0: none), or the fewest bytes where nothing fits.
BaselineResult playBaseline(const BaselineStep& step, Baseline baseline, uint64_t memoryLimit);

}  // namespace sheaf::schedule
