#include "runtime/base/Text.h"
#include "runtime/measure/InstructionTimer.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"
#include "runtime/plan/Types.h"

namespace sheaf::measure {

Status measureEpilogues(Device& device, const MeasureOptions& options, const RankSet& set, profile::ComputeCost& cost) {
  InstructionTimer timer(device, options, set, set.arenaBytes, plan::Plan());
  struct Pair {
    GemmShape shape;
    size_t without, with;
  };
  std::vector<Pair> pairs;
  for (const GemmShape& s : {GemmShape{256, 256, 128}, {2048, 3072, 768}, {16384, 3072, 768}}) {
    const MeasuredCall plain = gemmCall(plan::BF16, s.m, s.n, s.k, false, false), gelu = geluCall(s.m, s.n, s.k);
    const uint64_t bytes = gelu.bytes() + gelu.gpuScratch() + 8 * plan::kAlignment;
    if (bytes > set.arenaBytes || !gelu.supported()) break;
    size_t groups[2];
    for (bool with : {false, true}) {
      groups[with] = timer.group(bytes);
      addCalls(timer, with ? gelu : plain, 1);
    }
    pairs.push_back({s, groups[0], groups[1]});
  }
  SHEAF_RETURN_IF_ERROR(timer.open());
  Reach reach(true);
  for (const Pair& pair : pairs) {
    const GemmShape& s = pair.shape;
    const double flops = profile::gemmWork(plan::BF16, s.m, s.n, s.k, 1, false, false).flops;
    if (!reach.takes(flops)) break;
    Expected<double> without = timer.seconds(pair.without), with = timer.seconds(pair.with);
    if (!without.ok()) return without.status();
    if (!with.ok()) return with.status();
    reach.took(flops, *with);
    // The largest product is the most reliable. An epilogue that overlaps fully with the multiplications takes no time.
    const double bytes = static_cast<double>(bytesOf(plan::BF16, {s.m, s.n})), more = *with - *without;
    cost.epilogues = more > 0 ? bytes / more : 0;
    cost.epiloguesSource = cat("measured: bias and GELU of a product of ", s.m, " x ", s.n, " x ", s.k);
  }
  return {};
}

}  // namespace sheaf::measure
