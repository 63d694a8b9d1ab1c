// Collectives between ranks of one process, or of processes that share memory: every rank reads straight from its
// peers' memory.
#pragma once

#include "runtime/comm/local/Rendezvous.h"

namespace sheaf::comm {

class LocalCommunicator : public Communicator {
 public:
  // As Rendezvous's, which says where the ranks are.
  LocalCommunicator(int64_t ranks, AbortSignal& abort, int spins) : rendezvous_(ranks, abort, spins) {}
  LocalCommunicator(int64_t ranks, AbortSignal& abort, int spins, Rendezvous::Shared shared)
      : rendezvous_(ranks, abort, spins, std::move(shared)) {}

  // Begins when all ranks have arrived. Each rank's part is done by its own thread, or by another rank's that comes to
  // it first; returns when all parts are done.
  Status run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead = nullptr) override;

 private:
  Rendezvous rendezvous_;
};

}  // namespace sheaf::comm
