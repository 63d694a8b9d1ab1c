// Collectives between ranks in several processes, over TCP. Sums are made in rank order from every rank's own values,
// so the bits are those of the local communicator. What a process has several ranks for is sent to it once: rank l of
// a process talks to the ranks l of the others, and passes on to its own process what it gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/Communicator.h"
#include "runtime/comm/local/Barrier.h"
#include "runtime/comm/socket/PeerSockets.h"
#include "runtime/comm/socket/Rail.h"

namespace sheaf::comm {

// Bytes that each rank of a process takes for one communicator of the plan to receive values that it sums.
uint64_t exchangeBytes(const plan::Plan& plan, uint32_t communicator, int64_t processes);
// The same for all communicators and the ranks of one process.
uint64_t exchangeBytes(const plan::Plan& plan, int64_t processes);

class SocketCommunicator : public Communicator {
 public:
  // For ranks [group.rank() * ranksPerProcess, ...). exchangeBytes: as above. The group and the signal must outlive it.
  SocketCommunicator(const ProcessGroup& group, int64_t ranksPerProcess, int64_t number, PeerSockets& sockets,
                     uint64_t exchangeBytes, AbortSignal& abort, int spins);
  ~SocketCommunicator() override;

  Status run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead = nullptr) override;

 private:
  struct Part {
    uint64_t begin = 0, count = 0;
  };
  // One rank's view of a collective under way.
  struct Call {
    int64_t local;
    const CollectiveBuffers& buffers;
    const PeerReadListener& onPeerRead;
    uint64_t width;
  };

  int64_t rankOf(int64_t process, int64_t local) const { return process * rails_ + local; }
  Part partOf(uint64_t count, int64_t rank) const;
  Status allGather(const Call& call);
  Status allReduce(const Call& call);
  Status allReduceSmall(const Call& call);
  // Sums, over all ranks and into `destination`, the elements of this process's part; `parts` has every process's.
  Status reduce(const Call& call, const std::vector<Part>& parts, std::byte* destination);
  // From the results of the other local ranks into this one's: `part` of every rank that is theirs.
  template <typename PartOf>
  void copyFromLocal(const Call& call, PartOf partOf);
  std::byte* slot(int64_t local, int64_t process) const;

  const ProcessGroup& group_;
  const int64_t processes_, mine_, rails_;
  const uint64_t slotBytes_;  // for one rank's values
  AbortSignal& abort_;
  Barrier meeting_;
  int wakeup_;
  std::vector<CollectiveBuffers> posted_;  // of each local rank
  std::vector<std::unique_ptr<Rail>> lines_;
  std::vector<std::vector<std::byte>> exchange_;
  std::vector<std::vector<Part>> parts_;                // of each local rank, reused
  std::vector<std::vector<const std::byte*>> sources_;  // likewise
};

}  // namespace sheaf::comm
