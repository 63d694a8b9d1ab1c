// Collectives between ranks on several nodes, over any transport. A node is a process, or several processes of one host
// that share memory. Sums are made in the tree's order from every rank's own values, so the bits are those of the local
// communicator. Each node receives a value once: rank l of a node exchanges with the ranks l of the others, and the
// ranks of a node read from each other's memory what they have received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/Communicator.h"
#include "runtime/comm/local/Rendezvous.h"
#include "runtime/comm/transport/Rail.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class ProcessCommunicator : public Communicator {
 public:
  // The ranks of this process's node: their number, and those that this process has, counted within the node.
  struct NodeRanks {
    int64_t count = 1, first = 0, own = 1;
  };
  // `nodes` has one process of each node, all with the same place in theirs; `transport` is between them. shared:
  // where the node has several processes. exchangeBytes: see ExchangeBytes.h. The group and the signal must outlive it.
  ProcessCommunicator(const ProcessGroup& nodes, NodeRanks ranks, int64_t number, Transport& transport,
                      uint64_t exchangeBytes, AbortSignal& abort, int spins, Rendezvous::Shared shared = {});

  Status run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead = nullptr) override;

 private:
  struct Part {
    uint64_t begin = 0, count = 0;
  };
  // What one rank of this process works with, reused from call to call.
  struct Lane {
    std::unique_ptr<Rail> rail;
    std::vector<std::byte> exchange;
    std::vector<CollectiveBuffers> posted;  // by the ranks of the node
    std::vector<Part> parts;                // of the nodes
    std::vector<const std::byte*> sources;  // of all ranks
  };
  // One rank's view of a collective under way.
  struct Call {
    int64_t local;  // number within the node
    const CollectiveBuffers& buffers;
    const PeerReadListener& onPeerRead;
    uint64_t width;
    Lane& lane;
  };

  int64_t rankOf(int64_t node, int64_t local) const { return node * rails_ + local; }
  Part partOf(uint64_t count, int64_t rank) const;
  Status allGather(const Call& call);
  Status allReduce(const Call& call);
  Status allReduceSmall(const Call& call);
  // Sums, over all ranks and into `destination`, the elements of this rank's part; `parts` has those of its
  // counterparts on every node.
  Status reduce(const Call& call, const std::vector<Part>& parts, std::byte* destination);
  // From the results of the node's other ranks into this one's: `part` of every rank that is theirs.
  template <typename PartOf>
  void copyFromLocal(const Call& call, PartOf partOf);
  std::byte* slot(Lane& lane, int64_t node) const;

  const ProcessGroup& group_;
  const int64_t nodes_, mine_, rails_, firstLocal_;
  const uint64_t slotBytes_;  // for one rank's values
  Rendezvous rendezvous_;
  std::vector<Lane> lanes_;
};

}  // namespace sheaf::comm
