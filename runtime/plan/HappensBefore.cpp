#include "runtime/plan/HappensBefore.h"

#include <algorithm>

namespace sheaf::plan {

HappensBefore::HappensBefore(std::span<const IssuedInstruction> sequence, uint32_t streams, uint32_t events)
    : sequence_(sequence),
      streams_(streams),
      position_(sequence.size()),
      clocks_(sequence.size() * streams),
      needed_(sequence.size()) {
  // What each stream knows once all it has been issued is done, and what an event's latest record knew.
  std::vector<std::vector<uint32_t>> known(streams, std::vector<uint32_t>(streams));
  std::vector<std::vector<uint32_t>> recorded(events);
  std::vector<uint32_t> issued(streams);
  for (size_t i = 0; i < sequence.size(); ++i) {
    const IssuedInstruction& instruction = sequence[i];
    std::vector<uint32_t>& mine = known[instruction.stream];
    if (instruction.kind == IssuedInstruction::kWait)
      for (uint32_t s = 0; s < recorded[instruction.event].size(); ++s)
        if (recorded[instruction.event][s] > mine[s]) {
          mine[s] = recorded[instruction.event][s];
          needed_[i] = true;
        }
    std::copy(mine.begin(), mine.end(), clocks_.begin() + i * streams);
    position_[i] = mine[instruction.stream] = ++issued[instruction.stream];
    if (instruction.kind == IssuedInstruction::kRecord) recorded[instruction.event] = mine;
  }
}

}  // namespace sheaf::plan
