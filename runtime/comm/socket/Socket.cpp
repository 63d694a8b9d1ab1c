#include "runtime/comm/socket/Socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

// As many as the system allows: other connections may fill it before the job's own connections come.
constexpr int kBacklog = 4096;
constexpr std::chrono::milliseconds kLook(50);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Expected<Addresses> resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  int failed = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed)
    return Status::error(
        cat("cannot resolve '", host, "': ", failed == EAI_SYSTEM ? systemError() : gai_strerror(failed)));
  return Addresses(found, freeaddrinfo);
}

void sendAtOnce(const Socket& socket) {
  int on = 1;
  setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string numeric(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST))
    return {};
  // An IPv4 peer of a socket that takes both.
  constexpr std::string_view kMapped = "::ffff:";
  std::string_view text(host);
  return std::string(text.starts_with(kMapped) ? text.substr(kMapped.size()) : text);
}

// A connection attempt to one address, until the deadline.
Expected<Socket> connectOnce(const addrinfo& address, Clock::time_point deadline,
                             const std::function<bool()>& cancelled) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return Status::error(systemError());
  if (::connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Status::error(systemError());
    pollfd wait{socket.descriptor(), POLLOUT, 0};
    while (poll(&wait, 1, static_cast<int>(kLook.count())) <= 0) {
      if (cancelled && cancelled()) return Status::error("interrupted");
      if (Clock::now() >= deadline) return Status::error("no answer");
    }
    socklen_t size = sizeof errno;
    int failed = 0;
    getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &failed, &size);
    if (failed) return Status::error(std::strerror(failed));
  }
  // If nothing listens on a free port of this host, the kernel may connect the socket with itself.
  if (localPort(socket) == ntohs(reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_port) &&
      localAddress(socket) == peerAddress(socket))
    return Status::error(std::strerror(ECONNREFUSED));
  sendAtOnce(socket);
  return socket;
}

}  // namespace

std::string systemError() {
  const int error = errno;
  rlimit limit{};
  if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::strerror(error);
  return cat(std::strerror(error), "; this process may have ", limit.rlim_cur, " (ulimit -n)");
}

Expected<Endpoint> parseEndpoint(std::string_view text) {
  size_t colon = text.rfind(':');
  int64_t port = 0;
  if (colon == std::string_view::npos || colon == 0 || !parseInteger(text.substr(colon + 1), port) || port < 1 ||
      port > 65535)
    return Status::error(cat("'", text, "' is not host:port"));
  std::string_view host = text.substr(0, colon);
  bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find(':') != std::string_view::npos)
    return Status::error(cat("'", text, "' is not host:port; write an IPv6 address as [address]:port"));
  return Endpoint{std::string(host), static_cast<uint16_t>(port)};
}

std::string text(const Endpoint& endpoint) {
  bool six = endpoint.host.find(':') != std::string::npos;
  return cat(six ? "[" : "", endpoint.host, six ? "]:" : ":", endpoint.port);
}

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Expected<Socket> listenOn(const Endpoint& endpoint) {
  Expected<Addresses> addresses =
      resolve(isLoopback(endpoint.host) ? endpoint.host : std::string(), endpoint.port, AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  std::string why = "no address";
  // IPv6 first: such a socket takes IPv4 connections as well.
  for (int family : {AF_INET6, AF_INET})
    for (const addrinfo* address = addresses->get(); address; address = address->ai_next) {
      if (address->ai_family != family) continue;
      Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      int on = 1, off = 0;
      if (socket.open()) {
        setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (family == AF_INET6) setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(socket.descriptor(), address->ai_addr, address->ai_addrlen) == 0 &&
            listen(socket.descriptor(), kBacklog) == 0)
          return socket;
      }
      why = systemError();
    }
  return Status::error(cat("cannot listen on ", text(endpoint), ": ", why));
}

Expected<Socket> acceptFrom(const Socket& listener) {
  for (;;) {
    Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.open()) {
      sendAtOnce(socket);
      return socket;
    }
    switch (errno) {
      case EAGAIN:
        return socket;
      case EINTR:
      // Errors of the connection that waited, which is gone (accept(2)).
      case ECONNABORTED:
      case EHOSTDOWN:
      case EHOSTUNREACH:
      case ENETDOWN:
      case ENETUNREACH:
      case ENONET:
      case ENOPROTOOPT:
      case EOPNOTSUPP:
      case EPERM:
      case EPROTO:
        continue;
      default:
        return Status::error(cat("cannot accept a connection: ", systemError()));
    }
  }
}

Expected<Socket> connectTo(const Endpoint& endpoint, Clock::time_point deadline,
                           const std::function<bool()>& cancelled) {
  Expected<Addresses> addresses = resolve(endpoint.host, endpoint.port, 0);
  if (!addresses.ok()) return addresses.status();
  Status why = Status::error("no address");
  for (const addrinfo* address = addresses->get(); address; address = address->ai_next) {
    Expected<Socket> socket = connectOnce(*address, deadline, cancelled);
    if (socket.ok()) return socket;
    why = socket.status();
  }
  return Status::error(cat("cannot connect to ", text(endpoint), ": ", why.message()));
}

uint16_t localPort(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  // The port is at the same place for both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string localAddress(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric(address, size);
}

std::string peerAddress(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric(address, size);
}

bool isLoopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace sheaf::comm
