// Carries bytes between the processes of a job. Transports differ only in what carries the bytes: sums are made by the
// ProcessCommunicator from the bytes that arrive, so results do not depend on the transport.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/transport/ConnectTransport.h"
#include "runtime/comm/transport/Traffic.h"

namespace sheaf::comm {

// An ordered flow of pieces between this process and each of the others. One thread at a time uses a channel; channels
// do not hold each other up.
class Channel {
 public:
  virtual ~Channel() = default;

  // Queues a piece of at least one byte to be sent to a process, or the memory for the next piece from it. Both sides
  // queue pieces of the same sizes in the same order. Memory must stay valid and unchanged until the piece is done.
  virtual void send(int64_t process, std::span<const std::byte> piece) = 0;
  virtual void receive(int64_t process, std::span<std::byte> piece) = 0;

  // Moves what can be moved now. If nothing can, waits until something can, `wait` has passed, or the transport is
  // aborted. Returns whether bytes moved. Errors name the process whose connection is broken.
  virtual Expected<bool> poll(std::chrono::milliseconds wait) = 0;

  // Whole pieces received from the process since the channel was made.
  virtual uint64_t received(int64_t process) const = 0;
  // Whether everything queued for and from the process is done.
  virtual bool idle(int64_t process) const = 0;

  // Says that so many of the bytes that are sent to the process are a transfer's header, not values of ranks.
  virtual void countHeader(int64_t process, uint64_t bytes) = 0;
};

// Counts what it sends as the communicator's.
class CountingChannel : public Channel {
 public:
  CountingChannel(Traffic& traffic, int64_t communicator) : traffic_(traffic), communicator_(communicator) {}
  void countHeader(int64_t process, uint64_t bytes) override { traffic_.of(communicator_, process).headers += bytes; }

 protected:
  // To be called with all bytes that have gone out.
  void countSent(int64_t process, uint64_t bytes) { traffic_.of(communicator_, process).bytes += bytes; }

 private:
  Traffic& traffic_;
  const int64_t communicator_;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // The channel of one of this process's ranks (`rail`, its number within the process) on one of the plan's
  // communicators. The transport owns it.
  virtual Channel& channel(int64_t communicator, int64_t rail) = 0;
  // Ends every wait in poll(), now and from now on. Safe from any thread.
  virtual void abort() = 0;
};

struct TransportOptions {
  int64_t communicators = 1;  // of the plan
  int64_t rails = 1;          // ranks of each process
  // Longest message given to MPI, at most 1 GiB. Only whole messages count as progress against the group's time limit.
  uint64_t messageBytes = uint64_t{64} << 20;
  double sendRate = 0;  // bytes a second that this process sends at most, see SendRate; 0: no limit
  std::shared_ptr<Traffic> traffic = nullptr;  // counts what is sent; null: no count is wanted
  // If set: called if the transport cannot be ended because a library call does not return; reports `why` and ends the
  // process.
  std::function<void(const std::string& why)> abandon = nullptr;
  // If set: whether this process and another of the group exchange on a communicator; both say the same. Nothing is
  // sent on the others, which need no connection.
  std::function<bool(int64_t communicator, int64_t process)> meets = nullptr;
};

}  // namespace sheaf::comm
