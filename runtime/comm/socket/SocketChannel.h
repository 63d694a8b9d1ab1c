// A channel of one connection to each of the other processes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/socket/Socket.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class SocketChannel : public Channel {
 public:
  // `sockets` has one for each process of the group but this. `wakeup` is a descriptor that can be read once the
  // transport is aborted.
  SocketChannel(std::vector<Socket> sockets, const ProcessGroup& group, int wakeup);

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
    bool idle() const { return out.idle() && in.idle(); }
  };
  // Moves what can be moved now; sets `moved` if that is anything.
  Status advance(int64_t process, bool& moved);
  void wait(std::chrono::milliseconds limit) const;
  Status broken(int64_t process, const std::string& why) const;

  const ProcessGroup& group_;
  const int wakeup_;
  std::vector<Link> links_;  // to each process
};

}  // namespace sheaf::comm
