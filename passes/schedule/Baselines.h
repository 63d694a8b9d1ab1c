// Other systems' schedules of the same step, played by the same simulator with the best of their knobs.
// docs/schedule.md says how each is modelled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/schedule/BaselineStep.h"

namespace sheaf::schedule {

// kHsdp is FSDP2 on a mesh of two dimensions; kMics and kHpz are options of DeepSpeed's stage 3. kZeroOffload,
// kZeroInfinity and kSuperOffload are DeepSpeed with state in host memory and files.
enum class Baseline {
  kFsdp2,
  kHsdp,
  kDeepSpeed,
  kMics,
  kHpz,
  kDeepCompile,
  kDdp,
  kEager,
  kZeroOffload,
  kZeroInfinity,
  kSuperOffload
};
// "fsdp2", "hsdp", "deepspeed", "mics", "hpz", "deepcompile", "ddp", "eager", "zero-offload", "zero-infinity",
// "superoffload".
const char* baselineName(Baseline baseline);
// Those of the step's machine: HSDP, MiCS and hpZ are for several nodes. `offloads`: also those with other spaces, if
// the machine's costs of them are known; on one rank these alone.
std::vector<Baseline> baselinesFor(const BaselineStep& step, bool offloads = false);

// Bytes of a rank on the device, in host memory and in files; 0: no limit.
struct BaselineLimits {
  uint64_t device = 0, host = 0, file = 0;
  BaselineLimits(uint64_t device = 0, uint64_t host = 0, uint64_t file = 0) : device(device), host(host), file(file) {}
};

struct BaselineResult {
  double seconds = 0;
  uint64_t bytes = 0;  // largest sum of what is alive on the device; no layout is counted
  uint64_t hostBytes = 0, fileBytes = 0;
  std::string knobs;  // the best ones
  bool fits = true;   // within the limits
};

// Whether a is to be preferred: it fits and b does not; or it takes less time, or as much and fewer bytes.
bool better(const BaselineResult& a, const BaselineResult& b);

// With the knobs that take the least time within the limits, or the fewest bytes of the device where nothing fits.
// Knobs are varied one at a time from the system's defaults and from its leanest setting until no change helps.
BaselineResult playBaseline(const BaselineStep& step, Baseline baseline, const BaselineLimits& limits);

}  // namespace sheaf::schedule
