// The memory that one rank of a plan needs: what sheaf-run checks before it starts, and what sheaf fit predicts.
#pragma once

#include <cstdint>
#include <map>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

struct RankMemory {
  uint64_t arena = 0;
  uint64_t libraries = 0;  // what libraries allocate themselves
  uint64_t exchange = 0;   // to exchange sums with ranks of other processes
  uint64_t host = 0;       // the arena in host memory, of a rank whose device is the host's memory, too
  uint64_t total() const { return arena + libraries + exchange + host; }
};

// On a CPU: what oneDNN packs. `exchange`: see comm::exchangeBytes; 0 where all ranks are in one process.
RankMemory cpuRankMemory(const Plan& plan, uint64_t exchange = 0);

// What CUDA's libraries allocate on a GPU besides NCCL: kernels, graphs, cuBLASLt's buffers. An estimate on the safe
// side.
uint64_t cudaLibraryBytes();

// What a communicator of NCCL is used for.
struct NcclUse {
  bool collectives = false;  // NCCL's own: gathers, sums in ring order
  bool exchanges = false;    // sends of every rank to every other one, for sums in the tree's order
  bool votes = false;        // NCCL's own, of some bytes, in one channel
};
// What NCCL allocates for a communicator, an estimate on the safe side (see RankMemory.cpp); the runtime measures it
// before it sizes arenas. `severalNodes`: not all GPUs are in one machine.
uint64_t ncclLibraryBytes(const NcclUse& use, uint64_t ranks, bool severalNodes);

// On a GPU. `processes`: each rank is a process with a GPU of its own; else all share one process. `inTreeOrder`: sums
// over ranks are added in the tree's order, for which each rank collects the others' terms.
RankMemory gpuRankMemory(const Plan& plan, bool processes, bool inTreeOrder, bool severalNodes);

// Pinned host memory through which bytes pass between a GPU and files: `slots` chunks, of which one is copied while the
// next one is read or written. No larger than the largest transfer needs; nothing where all are of host memory.
struct FileStaging {
  uint64_t chunk = 0;  // bytes, a multiple of 4,096
  uint32_t slots = 0;
  uint64_t bytes() const { return chunk * slots; }
};
// Of each stream that has transfers of files.
std::map<uint32_t, FileStaging> fileStagings(const Plan& plan);
// Pinned host memory of a rank on a GPU: its arena in host memory and what its file transfers pass through.
uint64_t pinnedBytes(const Plan& plan);

// Bytes in which a rank collects the terms of a sum over `ranks` ranks; 0 for an all-gather.
uint64_t collectedBytes(const Collective& collective, uint64_t ranks);
// Of a sum of `count` elements, the largest part that one of `ranks` ranks adds, in elements.
uint64_t largestSumPart(uint64_t count, uint64_t ranks);
// Sums of at most so many bytes are not divided: every rank adds them all.
inline constexpr uint64_t kUndividedSumBytes = 64 << 10;

}  // namespace sheaf::plan
