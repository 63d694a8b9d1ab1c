// The transfers of one rank, on one communicator, with its counterparts in the other processes: sends to and receives
// from all of them at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/Communicator.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class Rail {
 public:
  Rail(Channel& channel, const ProcessGroup& group, const AbortSignal& abort)
      : channel_(channel), group_(group), abort_(abort), links_(static_cast<size_t>(group.size())) {}

  // A transfer: begin(), then what goes where, then finish(), which returns when all of it is sent and received. Both
  // sides say for which collective it is; an error if they do not agree, if a process is gone, or if nothing moves
  // within the group's time limit.
  void begin(const CollectiveBuffers& collective);
  void send(int64_t process, const std::byte* data, uint64_t bytes);
  void receive(int64_t process, std::byte* data, uint64_t bytes);
  Status finish();

 private:
  // What both sides of a transfer must agree on. It is the first piece in each direction.
  struct Header {
    uint64_t number = 0;  // of the transfer on this rail
    uint32_t op = 0, type = 0;
    uint64_t count = 0;
    bool operator==(const Header&) const = default;
  };
  struct Link {
    Header header;        // received
    uint64_t before = 0;  // pieces received before this transfer
    bool agreed = false;
  };
  Status checkHeaders();
  bool done() const;
  Status gone(const Status& why) const;
  Status late() const;

  Channel& channel_;
  const ProcessGroup& group_;
  const AbortSignal& abort_;
  std::vector<Link> links_;  // of each process
  Header mine_;
};

}  // namespace sheaf::comm
