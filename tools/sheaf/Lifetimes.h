// When buffers hold what is still to be read, in a step of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/schedule/PlanLoop.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::tool {

// From a buffer's first write to the last read of what was written. Ops are those of the loop; a lifetime that began
// in the step before has the first op -1, one that ends in the next step the last op `loop.ops.size()`.
struct Lifetime {
  uint32_t buffer = 0;
  int64_t first = 0, last = 0;
  double begin = 0, end = 0;  // seconds of the timeline, over all that touch it: streams overlap
};

// Of a step with others before and after it, in the order of their first ops; a persistent buffer always lives. A
// buffer that is written again after its last read has several lifetimes, one that the step does not touch none.
std::vector<Lifetime> lifetimesOf(const plan::Plan& plan, const schedule::PlanLoop& loop,
                                  const schedule::Timeline& timeline);

// The bytes of each kind of buffer in a space that live at the same time, from `seconds` on.
struct MemoryUse {
  double seconds = 0;
  std::vector<uint64_t> bytes;  // by plan::BufferKind
};
// Where they change, in order of time, from 0 to the end of the last op.
std::vector<MemoryUse> memoryUseOf(const plan::Plan& plan, const std::vector<Lifetime>& lifetimes,
                                   plan::Buffer::Space space = plan::Buffer::DEVICE);

}  // namespace sheaf::tool
