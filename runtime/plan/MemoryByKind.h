// Memory by kind of buffer, which plans declare and the proof checks.
#pragma once

#include <cstdint>
#include <map>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// The largest number of bytes that buffers of each kind hold at the same time on one rank, in issue order, over
// prologue, step, step, epilogue, and over the evaluation. A buffer counts whole from its first write to the last read
// of what was written; a persistent one always. All seven kinds are present. The plan must be verified.
std::map<BufferKind, uint64_t> memoryByKind(const Plan& plan, Buffer::Space space = Buffer::DEVICE);
// Writes them into the plan's tables, for every space that has buffers.
void declareMemoryByKind(Plan& plan);

// The instruction during which the buffers of a space hold the most bytes, and these; null where there are none. In the
// order and with the lifetimes of memoryByKind.
struct MostBytes {
  const Instruction* instruction = nullptr;
  uint64_t bytes = 0;
};
MostBytes mostBytes(const Plan& plan, Buffer::Space space = Buffer::DEVICE);

}  // namespace sheaf::plan
