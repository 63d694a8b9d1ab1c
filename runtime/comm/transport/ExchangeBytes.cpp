#include "runtime/comm/transport/ExchangeBytes.h"

#include <algorithm>

#include "runtime/plan/StepWork.h"
#include "runtime/plan/Types.h"

namespace sheaf::comm {
namespace {

// Bytes that a rank receives at a time: enough for a network's bandwidth, little compared with a rank's arena.
constexpr uint64_t kExchangeBytes = 4 << 20;
constexpr uint64_t kMinSlotBytes = 4096;

uint64_t alignedUp(uint64_t bytes) {
  return (bytes + plan::kAlignment - 1) / plan::kAlignment * plan::kAlignment;
}

// The ranks that meet in a communicator, and how many nodes they are on.
struct Members {
  uint64_t ranks, nodes;
  uint64_t others() const { return ranks - ranks / nodes; }
};

Members membersOf(const plan::Plan& plan, uint32_t communicator, int64_t nodes) {
  const plan::Axis axis = plan::axisOf(plan, static_cast<int>(communicator));
  const int64_t ranks = plan::ranksOn(plan, axis), here = plan.ranks() / nodes, each = plan::ranksPerNode(plan);
  int64_t reached = nodes;
  if (axis == plan::NODE) reached = std::max<int64_t>(1, each / here);
  if (axis == plan::NETWORK) reached = std::min(nodes, ranks);
  return {static_cast<uint64_t>(ranks), static_cast<uint64_t>(reached)};
}

// Returns the bytes that one rank's values take in the exchange memory.
uint64_t slotBytesFor(const plan::Plan& plan, uint32_t communicator, const Members& members) {
  const uint64_t ranks = members.ranks;
  uint64_t need = 0;
  plan::forEachInstruction(plan, [&](const plan::Instruction& instruction) {
    const plan::Collective& collective = instruction.collective();
    if (instruction.has_persist() && instruction.persist().communicator() == communicator && ranks > 1)
      need = std::max<uint64_t>(need, sizeof(float));
    if (!instruction.has_collective() || collective.communicator() != communicator) return;
    uint64_t bytes = collective.count() * plan::elementBytes(collective.type());
    if (collective.op() == plan::REDUCE_SCATTER) need = std::max(need, bytes);
    if (collective.op() == plan::ALL_REDUCE)
      need = std::max(
          need, bytes <= plan::kSmallAllReduceBytes ? bytes : bytes / ranks + plan::elementBytes(collective.type()));
  });
  return alignedUp(std::min(need, std::max(kExchangeBytes / std::max<uint64_t>(members.others(), 1), kMinSlotBytes)));
}

}  // namespace

uint64_t exchangeBytes(const plan::Plan& plan, uint32_t communicator, int64_t nodes) {
  const Members members = membersOf(plan, communicator, nodes);
  return slotBytesFor(plan, communicator, members) * members.others();
}

uint64_t exchangeBytes(const plan::Plan& plan, int64_t nodes) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan.communicators(); ++i) bytes += exchangeBytes(plan, i, nodes);
  return bytes;
}

}  // namespace sheaf::comm
