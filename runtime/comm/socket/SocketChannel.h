// A channel of one connection to each of the other processes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/socket/Socket.h"
#include "runtime/comm/transport/SendRate.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class SocketChannel : public CountingChannel {
 public:
  // `sockets` has one for each process of the group but this. `wakeup` is a descriptor that can be read once the
  // transport is aborted. `rate`: null without a limit.
  SocketChannel(std::vector<Socket> sockets, const ProcessGroup& group, int wakeup, Traffic& traffic,
                int64_t communicator, SendRate* rate);

  void send(int64_t process, std::span<const std::byte> piece) override;
  void receive(int64_t process, std::span<std::byte> piece) override;
  Expected<bool> poll(std::chrono::milliseconds wait) override;
  uint64_t received(int64_t process) const override { return links_[static_cast<size_t>(process)].in.done; }
  bool idle(int64_t process) const override;

 private:
  // Pieces in one direction, in order.
  struct Flow {
    std::vector<iovec> pieces;
    size_t at = 0;      // the first piece that is not done
    uint64_t done = 0;  // whole pieces, of all that were ever queued
    bool idle() const { return at == pieces.size(); }
    void add(std::byte* data, size_t bytes);
    void advance(size_t bytes);
  };
  struct Link {
    Socket socket;
    Flow out, in;
    // With a rate: bytes that may be sent from `due` on, and since when the next ones have waited.
    uint64_t reserved = 0;
    Clock::time_point due, since;
    bool idle() const { return out.idle() && in.idle(); }
  };
  // Of what is to be sent, what may be now.
  uint64_t allowed(Link& link) const;
  // Moves what can be moved now; sets `moved` if that is anything.
  Status advance(int64_t process, bool& moved);
  void wait(std::chrono::milliseconds limit) const;
  Status broken(int64_t process, const std::string& why) const;

  const ProcessGroup& group_;
  const int wakeup_;
  SendRate* const rate_;
  std::vector<Link> links_;  // to each process
};

}  // namespace sheaf::comm
