// Collectives between the ranks of one process: every rank reads straight from its peers' memory.
#pragma once

#include <vector>

#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/Communicator.h"
#include "runtime/comm/local/Barrier.h"

namespace sheaf::comm {

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(int64_t ranks, AbortSignal& abort, int spins);

  // Begins when all ranks have arrived and returns when all have left.
  Status run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead = nullptr) override;

 private:
  const int64_t ranks_;
  AbortSignal& abort_;
  Barrier meeting_;
  std::vector<CollectiveBuffers> posted_;
};

}  // namespace sheaf::comm
