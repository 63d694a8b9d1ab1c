#include "runtime/plan/RankMemory.h"

#include <algorithm>
#include <map>

#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

constexpr uint64_t kCudaLibraryBytes = 256 << 20;
constexpr uint64_t kCommunicatorBytes = 256 << 20;
// A GPU's arena is allocated in whole pages; an empty one has a page.
constexpr uint64_t kPage = 4096;
// Parts of a sum are multiples of this many elements.
constexpr uint64_t kPartMultiple = 64;

}  // namespace

RankMemory cpuRankMemory(const Plan& plan, uint64_t exchange) {
  return {plan.memory().peak_bytes(), std::max(plan.memory().library_bytes(), libraryBytes(plan)), exchange};
}

uint64_t cudaLibraryBytes(uint32_t communicators, bool processes) {
  return kCudaLibraryBytes + (processes ? communicators * kCommunicatorBytes : 0);
}

uint64_t largestSumPart(uint64_t count, uint64_t ranks) {
  return (count + ranks * kPartMultiple - 1) / (ranks * kPartMultiple) * kPartMultiple;
}

uint64_t collectedBytes(const Collective& collective, uint64_t ranks) {
  const uint64_t width = elementBytes(collective.type()), count = collective.count();
  if (collective.op() == ALL_GATHER) return 0;
  if (collective.op() == REDUCE_SCATTER || count * width <= kUndividedSumBytes) return ranks * aligned(count * width);
  return ranks * aligned(largestSumPart(count, ranks) * width);
}

RankMemory gpuRankMemory(const Plan& plan, bool processes, bool inRankOrder) {
  RankMemory memory;
  memory.arena = (std::max<uint64_t>(plan.memory().peak_bytes(), 1) + kPage - 1) / kPage * kPage;
  memory.libraries = cudaLibraryBytes(plan.communicators(), processes);
  if (!processes || !inRankOrder) return memory;
  // Collectives of one communicator and stream follow each other and share their scratch.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> scratch;
  forEachInstruction(plan, [&](const Instruction& instruction) {
    if (!instruction.has_collective()) return;
    uint64_t& bytes = scratch[{instruction.collective().communicator(), instruction.stream()}];
    bytes = std::max(bytes, collectedBytes(instruction.collective(), static_cast<uint64_t>(plan.ranks())));
  });
  for (const auto& [place, bytes] : scratch) memory.exchange += bytes;
  return memory;
}

}  // namespace sheaf::plan
