#include "runtime/comm/socket/SocketTransport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

constexpr uint64_t kMagic = 0x31534f434b465348;  // "HSFKCOS1"
constexpr std::chrono::milliseconds kLook(50);
// Connections that have not said yet what they are for.
constexpr size_t kMaxUnknown = 1024;

// The first bytes of a connection.
struct Greeting {
  uint64_t magic = kMagic;
  uint64_t secret[2] = {};
  uint32_t process = 0, communicator = 0, rail = 0, reserved = 0;
};

struct Unknown {
  Socket socket;
  Greeting greeting;
  size_t received = 0;
  bool broken = false;
};

// What each process sends to the others.
struct Address {
  uint64_t secret[2] = {};  // process 0's counts
  uint64_t port = 0;
};

Expected<std::vector<Address>> exchangeAddresses(ProcessGroup& group, uint16_t port) {
  Address mine{.secret = {}, .port = port};
  std::random_device random;
  for (uint64_t& word : mine.secret) word = uint64_t{random()} << 32 | random();
  auto all =
      group.allGather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine), "addresses for the collectives");
  if (!all.ok()) return all.status();
  std::vector<Address> addresses;
  for (const std::string& bytes : *all) {
    Address& address = addresses.emplace_back();
    if (bytes.size() != sizeof address) return Status::error("addresses for the collectives: they are of another size");
    std::memcpy(&address, bytes.data(), sizeof address);
    if (address.port < 1 || address.port > 65535) return Status::error("addresses for the collectives: no port");
  }
  return addresses;
}

// A large job needs more descriptors than a shell grants; the system's own limit is far higher.
void allowDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Status writeWhole(const Socket& socket, const Greeting& greeting) {
  // A new connection's buffer takes this much at once.
  ssize_t sent = send(socket.descriptor(), &greeting, sizeof greeting, MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(sizeof greeting) ? Status() : Status::error(systemError());
}

// Reads what there is of the greeting; true once it is whole.
bool hear(Unknown& one) {
  char* to = reinterpret_cast<char*>(&one.greeting) + one.received;
  ssize_t count = recv(one.socket.descriptor(), to, sizeof one.greeting - one.received, MSG_DONTWAIT);
  if (count > 0) one.received += static_cast<size_t>(count);
  one.broken = count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  return one.received == sizeof one.greeting;
}

// The sockets of all channels: [communicator][rail][process].
class Connector {
 public:
  Connector(ProcessGroup& group, const TransportOptions& options, const AbortSignal& abort)
      : group_(group),
        abort_(abort),
        communicators_(options.communicators),
        rails_(options.rails),
        meets_(options.meets),
        deadline_(Clock::now() + group.limit()),
        sockets_(static_cast<size_t>(group.size() * communicators_ * rails_)) {}

  Status run() {
    allowDescriptors();
    Expected<Socket> listener = listenOn({group_.address(group_.rank()), 0});
    if (!listener.ok()) return listener.status();
    Expected<std::vector<Address>> addresses = exchangeAddresses(group_, localPort(*listener));
    if (!addresses.ok()) return addresses.status();
    std::copy(std::begin(addresses->front().secret), std::end(addresses->front().secret), secret_);
    for (int64_t process = 0; process < group_.rank(); ++process)
      SHEAF_RETURN_IF_ERROR(connectTo(process, static_cast<uint16_t>((*addresses)[static_cast<size_t>(process)].port)));
    SHEAF_RETURN_IF_ERROR(accept(*listener));
    return group_.barrier("connections for the collectives");
  }

  // To each process, by its number; none to this one.
  std::vector<Socket> take(int64_t communicator, int64_t rail) {
    std::vector<Socket> sockets(static_cast<size_t>(group_.size()));
    for (int64_t process = 0; process < group_.size(); ++process)
      sockets[static_cast<size_t>(process)] = std::move(place(communicator, rail, process));
    return sockets;
  }

 private:
  Socket& place(int64_t communicator, int64_t rail, int64_t process) {
    return sockets_[static_cast<size_t>((communicator * rails_ + rail) * group_.size() + process)];
  }

  bool isNeeded(int64_t communicator, int64_t process) const { return !meets_ || meets_(communicator, process); }

  Status connectTo(int64_t process, uint16_t port) {
    for (int64_t communicator = 0; communicator < communicators_; ++communicator)
      for (int64_t rail = 0; rail < rails_ && isNeeded(communicator, process); ++rail) {
        if (abort_.raised()) return abort_.status();
        Expected<Socket> socket = comm::connectTo({group_.address(process), port}, deadline_);
        if (!socket.ok()) return Status::error(cat(group_.describe(process), ": ", socket.status().message()));
        Greeting greeting;
        std::copy(std::begin(secret_), std::end(secret_), greeting.secret);
        greeting.process = static_cast<uint32_t>(group_.rank());
        greeting.communicator = static_cast<uint32_t>(communicator);
        greeting.rail = static_cast<uint32_t>(rail);
        if (Status sent = writeWhole(*socket, greeting); !sent.ok())
          return Status::error(cat(group_.describe(process), ": ", sent.message()));
        place(communicator, rail, process) = std::move(*socket);
      }
    return {};
  }

  // The connections from later processes.
  Status accept(const Socket& listener) {
    std::vector<Unknown> unknown;
    int64_t expected = 0;
    for (int64_t process = group_.rank() + 1; process < group_.size(); ++process)
      for (int64_t communicator = 0; communicator < communicators_; ++communicator)
        expected += isNeeded(communicator, process) ? rails_ : 0;
    while (expected > 0) {
      if (abort_.raised()) return abort_.status();
      if (Clock::now() >= deadline_) return late();
      std::vector<pollfd> polled{{listener.descriptor(), POLLIN, 0}};
      for (const Unknown& one : unknown) polled.push_back({one.socket.descriptor(), POLLIN, 0});
      poll(polled.data(), polled.size(), static_cast<int>(kLook.count()));
      while (unknown.size() < kMaxUnknown) {
        Socket socket = acceptFrom(listener);
        if (!socket.open()) break;
        unknown.push_back({std::move(socket), {}, 0, false});
      }
      for (Unknown& one : unknown)
        if (hear(one)) expected -= admit(one);
      std::erase_if(unknown, [](const Unknown& one) { return one.broken; });
    }
    return {};
  }

  // Takes a connection whose greeting is whole: 1, or 0 if it is not one that is expected.
  int64_t admit(Unknown& one) {
    const Greeting& greeting = one.greeting;
    one.broken = true;  // or taken
    bool ours = greeting.magic == kMagic && std::equal(std::begin(secret_), std::end(secret_), greeting.secret);
    if (!ours || greeting.process <= group_.rank() || greeting.process >= group_.size() ||
        greeting.communicator >= communicators_ || greeting.rail >= rails_ ||
        !isNeeded(greeting.communicator, greeting.process))
      return 0;
    Socket& socket = place(greeting.communicator, greeting.rail, greeting.process);
    if (socket.open()) return 0;
    socket = std::move(one.socket);
    return 1;
  }

  Status late() {
    std::vector<std::string> missing;
    for (int64_t process = group_.rank() + 1; process < group_.size(); ++process) {
      bool open = true;
      for (int64_t communicator = 0; communicator < communicators_; ++communicator)
        open &= !isNeeded(communicator, process) || place(communicator, rails_ - 1, process).open();
      if (!open) missing.push_back(group_.describe(process));
    }
    return Status::error(cat("no connection for collectives from ", listText(missing), " (SHEAF_TIMEOUT)"));
  }

  ProcessGroup& group_;
  const AbortSignal& abort_;
  const int64_t communicators_, rails_;
  const std::function<bool(int64_t communicator, int64_t process)> meets_;
  const Clock::time_point deadline_;
  std::vector<Socket> sockets_;
  uint64_t secret_[2] = {};
};

}  // namespace

Expected<std::unique_ptr<Transport>> SocketTransport::connect(ProcessGroup& group, const TransportOptions& options,
                                                              const AbortSignal& abort) {
  Connector connector(group, options, abort);
  SHEAF_RETURN_IF_ERROR(connector.run());
  std::unique_ptr<SocketTransport> transport(new SocketTransport(options, group.size()));
  for (int64_t communicator = 0; communicator < options.communicators; ++communicator)
    for (int64_t rail = 0; rail < options.rails; ++rail)
      transport->channels_.push_back(std::make_unique<SocketChannel>(connector.take(communicator, rail), group,
                                                                     transport->wakeup_, *transport->traffic_,
                                                                     communicator, transport->rate_.get()));
  return std::unique_ptr<Transport>(std::move(transport));
}

SocketTransport::SocketTransport(const TransportOptions& options, int64_t processes)
    : rails_(options.rails),
      wakeup_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      traffic_(options.traffic ? options.traffic : std::make_shared<Traffic>()),
      rate_(options.sendRate > 0 ? std::make_unique<SendRate>(options.sendRate) : nullptr) {
  traffic_->open(options.communicators, processes);
}

SocketTransport::~SocketTransport() {
  close(wakeup_);
}

void SocketTransport::abort() {
  uint64_t one = 1;
  (void)!write(wakeup_, &one, sizeof one);
}

}  // namespace sheaf::comm
