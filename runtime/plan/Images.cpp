#include "runtime/plan/Images.h"

#include <algorithm>
#include <numeric>

#include "runtime/plan/Types.h"

namespace sheaf::plan {

std::vector<uint32_t> imageGroups(const Plan& plan) {
  std::vector<uint32_t> least(static_cast<size_t>(plan.buffers_size()));
  std::iota(least.begin(), least.end(), 0);
  auto find = [&](uint32_t buffer) {
    while (least[buffer] != buffer) buffer = least[buffer] = least[least[buffer]];
    return buffer;
  };
  auto join = [&](uint32_t a, uint32_t b) {
    if (std::max(a, b) >= least.size()) return;
    const uint32_t x = find(a), y = find(b);
    least[std::max(x, y)] = std::min(x, y);
  };
  forEachInstruction(plan, [&](const Instruction& instruction) {
    if (instruction.has_transfer()) join(sourceOf(instruction).buffer(), destinationOf(instruction).buffer());
  });
  for (const Generation& generation : plan.generations()) join(generation.current(), generation.next());
  for (uint32_t buffer = 0; buffer < least.size(); ++buffer) least[buffer] = find(buffer);
  return least;
}

}  // namespace sheaf::plan
