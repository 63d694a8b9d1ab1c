// The connections that collectives between processes use: each pair of processes has one for each plan communicator and
// each rank of a process, so that communicators do not hold each other up.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

class PeerSockets {
 public:
  // Every process calls it with the same numbers. Addresses and a secret that keeps other programs out go through the
  // group; of two processes the later one connects. Ends early with the signal.
  static Expected<PeerSockets> connect(ProcessGroup& group, int64_t communicators, int64_t ranksPerProcess,
                                       const AbortSignal& abort);

  // To each process, by its number; none to this one. `rail` is the number of a rank within its process. Only once.
  std::vector<Socket> take(int64_t communicator, int64_t rail);

 private:
  PeerSockets(int64_t processes, int64_t communicators, int64_t rails)
      : processes_(processes), rails_(rails), sockets_(static_cast<size_t>(processes * communicators * rails)) {}
  size_t index(int64_t communicator, int64_t rail, int64_t process) const {
    return static_cast<size_t>((communicator * rails_ + rail) * processes_ + process);
  }

  int64_t processes_, rails_;
  std::vector<Socket> sockets_;
};

}  // namespace sheaf::comm
