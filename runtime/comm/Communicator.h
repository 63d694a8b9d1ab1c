// Collectives between the ranks of a run, whatever carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::comm {

// One rank's operands of a collective: addresses of its operands in memory that all ranks can read.
struct CollectiveBuffers {
  plan::CollectiveOp op = plan::COLLECTIVE_OP_UNSPECIFIED;
  plan::ElementType type = plan::ELEMENT_TYPE_UNSPECIFIED;
  uint64_t count = 0;  // as in plan::Collective
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  // A sum goes on from what its destination holds: see sumOverRanks.
  bool continues = false;
};

// Called with each range of a peer's memory before it is read.
using PeerReadListener = std::function<void(const void*, size_t)>;

// All ranks run the same collectives on a communicator in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // Runs a collective as one of this process's ranks, given by its number in the whole run. When it returns, the
  // buffers may be reused.
  virtual Status run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead = nullptr) = 0;
};

}  // namespace sheaf::comm
