#include "runtime/comm/socket/PeerSockets.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

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

}  // namespace

Expected<PeerSockets> PeerSockets::connect(ProcessGroup& group, int64_t communicators, int64_t rails,
                                           const AbortSignal& abort) {
  const int64_t processes = group.size(), mine = group.rank();
  PeerSockets result(processes, communicators, rails);
  allowDescriptors();
  Expected<Socket> listener = listenOn({group.address(mine), 0});
  if (!listener.ok()) return listener.status();
  Expected<std::vector<Address>> addresses = exchangeAddresses(group, localPort(*listener));
  if (!addresses.ok()) return addresses.status();
  const Address& first = addresses->front();
  auto deadline = Clock::now() + group.limit();

  for (int64_t process = 0; process < mine; ++process)
    for (int64_t communicator = 0; communicator < communicators; ++communicator)
      for (int64_t rail = 0; rail < rails; ++rail) {
        if (abort.raised()) return abort.status();
        uint16_t port = static_cast<uint16_t>((*addresses)[static_cast<size_t>(process)].port);
        Expected<Socket> socket = connectTo({group.address(process), port}, deadline);
        if (!socket.ok()) return Status::error(cat(group.describe(process), ": ", socket.status().message()));
        Greeting greeting;
        std::copy(std::begin(first.secret), std::end(first.secret), greeting.secret);
        greeting.process = static_cast<uint32_t>(mine);
        greeting.communicator = static_cast<uint32_t>(communicator);
        greeting.rail = static_cast<uint32_t>(rail);
        if (Status sent = writeWhole(*socket, greeting); !sent.ok())
          return Status::error(cat(group.describe(process), ": ", sent.message()));
        result.sockets_[result.index(communicator, rail, process)] = std::move(*socket);
      }

  std::vector<Unknown> unknown;
  int64_t expected = (processes - 1 - mine) * communicators * rails;
  while (expected > 0) {
    if (abort.raised()) return abort.status();
    if (Clock::now() >= deadline) {
      std::vector<std::string> missing;
      for (int64_t process = mine + 1; process < processes; ++process)
        if (!result.sockets_[result.index(communicators - 1, rails - 1, process)].open())
          missing.push_back(group.describe(process));
      return Status::error(cat("no connection for collectives from ", listText(missing), " (SHEAF_TIMEOUT)"));
    }
    std::vector<pollfd> polled{{listener->descriptor(), POLLIN, 0}};
    for (const Unknown& one : unknown) polled.push_back({one.socket.descriptor(), POLLIN, 0});
    poll(polled.data(), polled.size(), static_cast<int>(kLook.count()));
    while (unknown.size() < kMaxUnknown) {
      Socket socket = acceptFrom(*listener);
      if (!socket.open()) break;
      unknown.push_back({std::move(socket), {}, 0, false});
    }
    for (Unknown& one : unknown) {
      if (!hear(one)) continue;
      const Greeting& greeting = one.greeting;
      one.broken = true;  // or taken
      bool ours =
          greeting.magic == kMagic && std::equal(std::begin(first.secret), std::end(first.secret), greeting.secret);
      if (!ours || greeting.process <= mine || greeting.process >= processes ||
          greeting.communicator >= communicators || greeting.rail >= rails)
        continue;
      Socket& place = result.sockets_[result.index(greeting.communicator, greeting.rail, greeting.process)];
      if (place.open()) continue;
      place = std::move(one.socket);
      --expected;
    }
    std::erase_if(unknown, [](const Unknown& one) { return one.broken; });
  }
  SHEAF_RETURN_IF_ERROR(group.barrier("connections for the collectives"));
  return result;
}

std::vector<Socket> PeerSockets::take(int64_t communicator, int64_t rail) {
  std::vector<Socket> sockets(static_cast<size_t>(processes_));
  for (int64_t process = 0; process < processes_; ++process)
    sockets[static_cast<size_t>(process)] = std::move(sockets_[index(communicator, rail, process)]);
  return sockets;
}

}  // namespace sheaf::comm
