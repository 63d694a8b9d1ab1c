// The connections of one rank, on one communicator, to its counterparts in the other processes: sends to and receives
// from all of them at the same time.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/Communicator.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

class Rail {
 public:
  // `sockets` has one for each process but this. `wakeup` is a descriptor that can be read once the signal is raised.
  // pieces: most that one transfer sends to a process.
  Rail(std::vector<Socket> sockets, const ProcessGroup& group, const AbortSignal& abort, int wakeup, size_t pieces);

  // A transfer: begin(), then what goes where, then finish(), which returns when all of it is sent and received. Both
  // sides say for which collective it is; an error if they do not agree, if a process is gone, or if nothing moves
  // within the group's time limit.
  void begin(const CollectiveBuffers& collective);
  void send(int64_t process, const std::byte* data, uint64_t bytes);
  void receive(int64_t process, std::byte* data, uint64_t bytes);
  Status finish();

 private:
  // What both sides of a transfer must agree on.
  struct Header {
    uint64_t number = 0;  // of the transfer on this rail
    uint32_t op = 0, type = 0;
    uint64_t count = 0;
    bool operator==(const Header&) const = default;
  };
  struct Link {
    Socket socket;
    Header header;  // received
    std::vector<iovec> out, in;
    size_t sent = 0, received = 0;  // whole pieces
    bool agreed = false;
    bool done() const { return sent == out.size() && received == in.size(); }
  };
  // Sets `moved` if any bytes went.
  Status advance(int64_t process, bool& moved);
  Status wait();
  Status gone(int64_t process, const std::string& why) const;
  Status late() const;

  const ProcessGroup& group_;
  const AbortSignal& abort_;
  const int wakeup_;
  std::vector<Link> links_;  // of each process
  Header mine_;
};

}  // namespace sheaf::comm
