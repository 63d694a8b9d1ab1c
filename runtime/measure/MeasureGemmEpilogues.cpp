#include "runtime/base/Text.h"
#include "runtime/measure/InstructionTimer.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"
#include "runtime/plan/Types.h"

namespace sheaf::measure {

Status measureGemmEpilogues(Device& device, const MeasureOptions& options, const RankSet& set,
                            profile::ComputeCost& cost) {
  InstructionTimer timer(device, options, set, set.arenaBytes, plan::Plan());
  struct Pair {
    plan::GemmCall gelu;
    size_t without, with;
  };
  std::vector<Pair> pairs;
  for (const GemmShape& s : {GemmShape{256, 256, 128}, {2048, 3072, 768}, {16384, 3072, 768}}) {
    const plan::GemmCall plain = gemmCall(plan::BF16, s.m, s.n, s.k, false, false), gelu = geluCall(s.m, s.n, s.k);
    const uint64_t bytes = operandBytes(gelu) + gpuScratch(gelu) + 8 * plan::kAlignment;
    if (bytes > set.arenaBytes) break;
    size_t groups[2];
    for (bool with : {false, true}) {
      groups[with] = timer.group(bytes);
      timer.add(with ? gelu : plain);
    }
    pairs.push_back({gelu, groups[0], groups[1]});
  }
  SHEAF_RETURN_IF_ERROR(timer.open());
  SizeLimit limit(true);
  for (const Pair& pair : pairs) {
    const profile::Work work = profile::gemmWork(pair.gelu);
    if (!limit.allows(work.flops)) break;
    Expected<double> without = timer.seconds(pair.without), with = timer.seconds(pair.with);
    if (!without.ok()) return without.status();
    if (!with.ok()) return with.status();
    limit.record(work.flops, *with);
    // The largest product is the most reliable. An epilogue that overlaps fully with the multiplications takes no time.
    const double more = *with - *without;
    cost.epilogues = more > 0 ? work.epilogueBytes / more : 0;
    cost.epiloguesSource = cat("measured: bias and GELU of a product of ", work.m, " x ", work.n, " x ", work.k);
  }
  return {};
}

}  // namespace sheaf::measure
