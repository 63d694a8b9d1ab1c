#include "runtime/plan/RankMemory.h"

#include <algorithm>
#include <map>

#include "runtime/plan/Library.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

constexpr uint64_t kCudaLibraryBytes = 256 << 20;
// NCCL's communicator without connections, and with NVLink's multicast buffers.
constexpr uint64_t kCommunicatorBytes = 256 << 20;
// A GPU's buffers for one channel to and from another GPU. It receives into one for each protocol (LL 0.5 MiB, LL128
// 4.7 MiB, Simple 4 MiB), and both directions are rounded up to 2 MiB (NCCL 2.28.9: src/init.cc, computeBuffSizes;
// src/transport/p2p.cc, p2pSendSetup and p2pRecvSetup, CUDA_IPC_MIN).
constexpr uint64_t kConnectionBytes = 12 << 20;
// Most channels of a ring, and between two GPUs of a node (H100: 24 or 32).
constexpr uint64_t kChannels = 32;

// A GPU's arena is allocated in whole pages; an empty one has a page.
constexpr uint64_t kPage = 4096;
// Parts of a sum are multiples of this many elements.
constexpr uint64_t kPartMultiple = 64;

// A GPU copies a chunk in less than half the time that a disk takes for it, so two slots keep the disk busy.
constexpr uint64_t kStagingChunk = 4 << 20;
constexpr uint32_t kStagingSlots = 2;

// Channels between every two GPUs of a job: the fewest that any two take (src/graph/paths.cc, ncclTopoGetNchannels and
// ncclTopoComputeP2pChannels, of 2.21 to 2.28 and with a NIC for each GPU). From 2.29 on there are up to 4 between
// nodes if a NIC has 400 Gb/s. Every GPU is counted with buffers of its own, though those of other nodes share theirs
// (src/transport/net.cc, sharedNetBuffersInit): with 4 channels the count is too small by some 100 MiB on two nodes of
// eight GPUs, and too large from three nodes on.
uint64_t channelsBetween(uint64_t ranks, bool severalNodes) {
  if (!severalNodes) return kChannels;
  return 2 * ranks > 4 * kChannels ? 1 : 2;
}

}  // namespace

RankMemory cpuRankMemory(const Plan& plan, uint64_t exchange) {
  return {plan.memory().peak_bytes(), std::max(plan.memory().library_bytes(), libraryBytes(plan)), exchange,
          peakBytes(plan, Buffer::HOST)};
}

uint64_t cudaLibraryBytes() {
  return kCudaLibraryBytes;
}

uint64_t ncclLibraryBytes(const NcclUse& use, uint64_t ranks, bool severalNodes) {
  const uint64_t channels = use.collectives ? kChannels : use.votes ? 1 : 0;
  return kCommunicatorBytes + channels * kConnectionBytes +
         (use.exchanges ? (ranks - 1) * channelsBetween(ranks, severalNodes) * kConnectionBytes : 0);
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

std::map<uint32_t, FileStaging> fileStagings(const Plan& plan) {
  std::map<uint32_t, uint64_t> largest;
  forEachInstruction(plan, [&](const Instruction& instruction) {
    if (!instruction.has_transfer()) return;
    auto spaceOf = [&](const Operand& operand) { return plan.buffers(static_cast<int>(operand.buffer())).space(); };
    const Buffer::Space from = spaceOf(sourceOf(instruction)), to = spaceOf(destinationOf(instruction));
    if (from != Buffer::FILE && to != Buffer::FILE) return;
    uint64_t& bytes = largest[instruction.stream()];
    if (from == Buffer::DEVICE || to == Buffer::DEVICE) bytes = std::max(bytes, sourceOf(instruction).bytes());
  });
  std::map<uint32_t, FileStaging> stagings;
  for (const auto& [stream, bytes] : largest) {
    FileStaging& staging = stagings[stream];
    if (bytes == 0) continue;
    staging.chunk = bytes >= kStagingChunk ? kStagingChunk : (bytes + kPage - 1) / kPage * kPage;
    staging.slots = bytes > staging.chunk ? kStagingSlots : 1;
  }
  return stagings;
}

uint64_t pinnedBytes(const Plan& plan) {
  uint64_t bytes = arenaTop(plan, Buffer::HOST);
  for (const auto& [stream, staging] : fileStagings(plan)) bytes += staging.bytes();
  return bytes;
}

RankMemory gpuRankMemory(const Plan& plan, bool processes, bool inTreeOrder, bool severalNodes) {
  RankMemory memory;
  memory.arena = (std::max<uint64_t>(plan.memory().peak_bytes(), 1) + kPage - 1) / kPage * kPage;
  memory.libraries = cudaLibraryBytes();
  if (!processes) return memory;
  std::map<uint32_t, NcclUse> uses;
  std::map<uint32_t, uint64_t> ranks;  // by communicator
  // Collectives of one communicator and stream follow each other and share their scratch.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> scratch;
  forEachInstruction(plan, [&](const Instruction& instruction) {
    if (instruction.has_persist() && plan.ranks() > 1) {
      uses[instruction.persist().communicator()].votes = true;
      ranks[instruction.persist().communicator()] = static_cast<uint64_t>(plan.ranks());
    }
    if (!instruction.has_collective()) return;
    const Collective& collective = instruction.collective();
    const bool exchanged = (inTreeOrder && collective.op() != ALL_GATHER) || continues(instruction);
    NcclUse& use = uses[collective.communicator()];
    const uint64_t members = static_cast<uint64_t>(ranksOf(plan, collective));
    ranks[collective.communicator()] = members;
    (exchanged ? use.exchanges : use.collectives) = true;
    if (!exchanged) return;
    uint64_t& bytes = scratch[{collective.communicator(), instruction.stream()}];
    bytes = std::max(bytes, collectedBytes(collective, members));
  });
  for (const auto& [communicator, use] : uses)
    memory.libraries += ncclLibraryBytes(use, ranks[communicator], severalNodes);
  for (const auto& [place, bytes] : scratch) memory.exchange += bytes;
  return memory;
}

}  // namespace sheaf::plan
