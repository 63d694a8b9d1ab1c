// TCP between the processes of a job: each pair of processes has one connection for each plan communicator and each
// rank of a process, so that communicators do not hold each other up.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/socket/SocketChannel.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class SocketTransport : public Transport {
 public:
  // Addresses and a secret that keeps other programs out go through the group; of two processes the later one connects.
  static Expected<std::unique_ptr<Transport>> connect(ProcessGroup& group, const TransportOptions& options,
                                                      const AbortSignal& abort);
  ~SocketTransport() override;

  Channel& channel(int64_t communicator, int64_t rail) override {
    return *channels_[static_cast<size_t>(communicator * rails_ + rail)];
  }
  void abort() override;

 private:
  SocketTransport(const TransportOptions& options, int64_t processes);

  const int64_t rails_;
  const int wakeup_;  // a descriptor that can be read once the transport is aborted
  const std::shared_ptr<Traffic> traffic_;
  const std::unique_ptr<SendRate> rate_;  // null without a limit
  std::vector<std::unique_ptr<SocketChannel>> channels_;
};

}  // namespace sheaf::comm
