// Collectives on a GPU's streams, between the ranks of one process or of several.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/Communicator.h"
#include "runtime/device/cuda/Arena.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

// The plan's communicators. Every rank enqueues the same collectives on each in the same order.
class Communicators {
 public:
  virtual ~Communicators() = default;
  // Where the ranks' arenas are to be allocated.
  virtual Memory memory() const { return ordinaryMemory(); }
  // Receives the arenas of this process's ranks, once, before the first collective.
  virtual Status setArenas(const std::vector<std::unique_ptr<Arena>>& arenas) { return {}; }
  // Before they are freed, and after the last collective.
  virtual void releaseArenas() {}
  // Appends a collective to the stream, the plan's `streamIndex`-th, as one of the ranks of this process (`local`,
  // counted from 0). Waits, if at all, for the other ranks of this process to do the same.
  virtual Status enqueue(int64_t local, uint32_t communicator, const comm::CollectiveBuffers& buffers,
                         cudaStream_t stream, uint32_t streamIndex) = 0;
  // Waits until the issuing threads of all ranks of this process that meet on the communicator have come here.
  virtual Status meet(int64_t local, uint32_t communicator) { return {}; }
  // A graph begins or ends. All that was enqueued before this is ordered before what comes after it.
  virtual void beginOrder() {}
  // Whether what is enqueued may be captured in a graph.
  virtual bool capturable() const = 0;
  // Bytes that collectives need on the GPU besides the arenas, for all of this process's ranks.
  virtual uint64_t scratchBytes() const { return 0; }
  // What was chosen, for the log.
  virtual void describe(const std::function<void(const std::string& name, const std::string& value)>& note) const {}
};

// An all-reduce's elements are cut into parts, one for each rank to sum. Where they are cut does not change the bits;
// at these multiples whole vectors are read.
struct SumParts {
  SumParts(uint64_t count, uint64_t ranks) : count(count), largest(plan::largestSumPart(count, ranks)) {}
  uint64_t begin(uint64_t part) const { return std::min(count, part * largest); }
  uint64_t size(uint64_t part) const { return begin(part + 1) - begin(part); }

  const uint64_t count, largest;
};

// Ranks of one process on one GPU: sums in the tree's order, read straight from the peers' arenas.
std::unique_ptr<Communicators> makePeerCommunicators(const plan::Plan& plan, int64_t ranks, comm::AbortSignal& abort);

}  // namespace sheaf::cuda
