#include "runtime/comm/socket/SocketTransport.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"
#include "runtime/comm/socket/Acceptor.h"
#include "runtime/comm/socket/Token.h"

namespace sheaf::comm {
namespace {

constexpr uint64_t kMagic = 0x31534f434b465348;  // "HSFKCOS1"
constexpr std::chrono::milliseconds kLook(50);
// Limits on connections that have not said yet what they are for.
constexpr size_t kMaxUnknown = 1024;
constexpr std::chrono::seconds kGreetingTime(10);

// The first bytes of a connection.
struct Greeting {
  uint64_t magic = kMagic;
  Token secret;
  uint32_t process = 0, communicator = 0, rail = 0, reserved = 0;
};

using Unknown = Greeter<Greeting>;

// What each process sends to the others.
struct Address {
  Token secret;  // process 0's counts
  uint64_t port = 0;
};

Expected<std::vector<Address>> exchangeAddresses(ProcessGroup& group, uint16_t port) {
  Expected<Token> secret = Token::random();
  if (!secret.ok()) return secret.status();
  const Address mine{.secret = *secret, .port = port};
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

Status writeWhole(const Socket& socket, const Greeting& greeting) {
  // A new connection's buffer takes this much at once.
  ssize_t sent = send(socket.descriptor(), &greeting, sizeof greeting, MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(sizeof greeting) ? Status() : Status::error(systemError());
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
    allowMostOpenFiles();  // a large job needs more than a shell grants
    Expected<Socket> listener = listenOn({group_.address(group_.rank()), 0});
    if (!listener.ok()) return listener.status();
    Expected<std::vector<Address>> addresses = exchangeAddresses(group_, localPort(*listener));
    if (!addresses.ok()) return addresses.status();
    secret_ = addresses->front().secret;
    for (int64_t process = 0; process < group_.rank(); ++process)
      SHEAF_RETURN_IF_ERROR(connectTo(process, static_cast<uint16_t>((*addresses)[static_cast<size_t>(process)].port)));
    SHEAF_RETURN_IF_ERROR(accept(std::move(*listener)));
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
        Expected<Socket> socket =
            comm::connectTo({group_.address(process), port}, deadline_, [&] { return abort_.raised(); });
        if (!socket.ok() && abort_.raised()) return abort_.status();
        if (!socket.ok()) return Status::error(cat(group_.describe(process), ": ", socket.status().message()));
        Greeting greeting;
        greeting.secret = secret_;
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
  Status accept(Socket listener) {
    Acceptor<Unknown> acceptor(std::move(listener), {kMaxUnknown, kGreetingTime});
    int64_t expected = 0;
    for (int64_t process = group_.rank() + 1; process < group_.size(); ++process)
      for (int64_t communicator = 0; communicator < communicators_; ++communicator)
        expected += isNeeded(communicator, process) ? rails_ : 0;
    while (expected > 0) {
      if (abort_.raised()) return abort_.status();
      if (Clock::now() >= deadline_) return late(acceptor.others());
      acceptor.wait(kLook);
      SHEAF_RETURN_IF_ERROR(acceptor.serve([&](Unknown& one) {
        const Heard heard = one.hear();
        if (heard != Heard::kMember) return heard;
        if (!admit(one)) return Heard::kUnrelated;
        --expected;
        return Heard::kMember;
      }));
    }
    return {};
  }

  // Takes a connection whose greeting is whole, unless it is not one that is expected.
  bool admit(Unknown& one) {
    const Greeting& greeting = one.greeting();
    const bool ours = greeting.magic == kMagic && greeting.secret == secret_;
    if (!ours || greeting.process <= group_.rank() || greeting.process >= group_.size() ||
        greeting.communicator >= communicators_ || greeting.rail >= rails_ ||
        !isNeeded(greeting.communicator, greeting.process))
      return false;
    Socket& socket = place(greeting.communicator, greeting.rail, greeting.process);
    if (socket.open()) return false;
    socket = one.take();
    return true;
  }

  Status late(const std::string& others) {
    std::vector<std::string> missing;
    for (int64_t process = group_.rank() + 1; process < group_.size(); ++process) {
      bool open = true;
      for (int64_t communicator = 0; communicator < communicators_; ++communicator)
        open &= !isNeeded(communicator, process) || place(communicator, rails_ - 1, process).open();
      if (!open) missing.push_back(group_.describe(process));
    }
    return Status::error(cat("no connection for collectives from ", listText(missing), others, " (SHEAF_TIMEOUT)"));
  }

  ProcessGroup& group_;
  const AbortSignal& abort_;
  const int64_t communicators_, rails_;
  const std::function<bool(int64_t communicator, int64_t process)> meets_;
  const Clock::time_point deadline_;
  std::vector<Socket> sockets_;
  Token secret_;
};

}  // namespace

Expected<std::unique_ptr<Transport>> SocketTransport::connect(ProcessGroup& group, const TransportOptions& options,
                                                              const AbortSignal& abort) {
  Connector connector(group, options, abort);
  SHEAF_RETURN_IF_ERROR(connector.run());
  std::unique_ptr<SocketTransport> transport(new SocketTransport(options, group.size()));
  if (transport->wakeup_ < 0) return Status::error(cat("no event for the collectives: ", systemError()));
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
  if (wakeup_ >= 0) close(wakeup_);
}

void SocketTransport::abort() {
  uint64_t one = 1;
  (void)!write(wakeup_, &one, sizeof one);
}

}  // namespace sheaf::comm
