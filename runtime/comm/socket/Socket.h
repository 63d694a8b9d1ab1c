// TCP sockets as values, for joining a job and for collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace sheaf::comm {

using Clock = std::chrono::steady_clock;

struct Endpoint {
  std::string host;
  uint16_t port = 0;
};

// "node1:29500", "10.0.0.1:29500", "[fd00::1]:29500". The error does not say where the text comes from.
Expected<Endpoint> parseEndpoint(std::string_view text);
std::string text(const Endpoint& endpoint);

// A descriptor that is closed with its owner; never blocks, and small messages leave at once (TCP_NODELAY).
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// Listens on every interface, or, where the host is a loopback address, on that one alone. Port 0 takes a free one.
Expected<Socket> listenOn(const Endpoint& endpoint);
// The next connection that waits; a socket that is not open if none does. An error if connections cannot be accepted,
// because this process may have no more descriptors, say.
Expected<Socket> acceptFrom(const Socket& listener);
// Tries the host's addresses once each, until the deadline or until `cancelled` returns true.
Expected<Socket> connectTo(const Endpoint& endpoint, Clock::time_point deadline,
                           const std::function<bool()>& cancelled = nullptr);

// Port and numeric address of a socket's own side, numeric address of the other side; empty (0) if there is none.
uint16_t localPort(const Socket& socket);
std::string localAddress(const Socket& socket);
std::string peerAddress(const Socket& socket);
bool isLoopback(const std::string& address);

// The error of the last system call, in words; with the remedy where this process may have no more descriptors.
std::string systemError();

}  // namespace sheaf::comm
