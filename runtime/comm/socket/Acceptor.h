// Accepts connections from anyone and keeps those that have not said yet who they are, within limits.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/socket/OtherConnections.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

// After its owner has read from a pending peer.
enum class Heard {
  kNothing,    // it stays, and has sent nothing so far
  kPart,       // it stays, and has sent something
  kMember,     // it belongs to the job and has been treated
  kUnrelated,  // it does not belong to the job
};

// A pending peer that says who it is by one message of a fixed size.
template <typename Greeting>
class Greeter {
 public:
  explicit Greeter(Socket socket) : socket_(std::move(socket)) {}
  const Socket& socket() const { return socket_; }
  Socket take() { return std::move(socket_); }
  const Greeting& greeting() const { return greeting_; }

  // Reads what has come of the greeting: kMember once it is whole.
  Heard hear() {
    char* to = reinterpret_cast<char*>(&greeting_) + received_;
    const ssize_t count = recv(socket_.descriptor(), to, sizeof greeting_ - received_, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return Heard::kUnrelated;
    if (count > 0) received_ += static_cast<size_t>(count);
    if (received_ == sizeof greeting_) return Heard::kMember;
    return received_ > 0 ? Heard::kPart : Heard::kNothing;
  }

 private:
  Socket socket_;
  Greeting greeting_;
  size_t received_ = 0;
};

// A PendingPeer is made from a Socket, and socket() is its socket. The listener is always accepted from: a pending peer
// never holds a place for which another connection waits, and pending peers from the address that has the most leave
// first.
template <typename PendingPeer>
class Acceptor {
 public:
  struct Limits {
    size_t most;                     // pending peers at a time
    std::chrono::milliseconds time;  // for a pending peer to say who it is
  };
  using NameOf = std::function<std::string(const Socket& socket)>;

  // `nameOf` says where a connection comes from.
  Acceptor(Socket listener, Limits limits, NameOf nameOf = peerAddress)
      : listener_(std::move(listener)), limits_(limits), nameOf_(std::move(nameOf)) {}

  // Waits until a connection comes, a pending peer has sent something, or one of the other descriptors can be read.
  void wait(std::chrono::milliseconds limit, const std::vector<int>& others = {}) {
    std::vector<pollfd> polled{{listener_.descriptor(), POLLIN, 0}};
    for (const Entry& entry : entries_) polled.push_back({entry.peer.socket().descriptor(), POLLIN, 0});
    for (int other : others) polled.push_back({other, POLLIN, 0});
    poll(polled.data(), polled.size(), static_cast<int>(limit.count()));
    size_t at = 1;
    for (Entry& entry : entries_) entry.readable = polled[at++].revents != 0;
  }

  // Accepts connections and calls hear(peer), which never blocks, for each pending peer that may have sent something.
  // An error if connections cannot be accepted.
  template <typename Hear>
  Status serve(const Hear& hear) {
    // The pending peers that were here first.
    for (auto next = entries_.begin(); next != entries_.end();) {
      const Place place = next++;
      if (std::exchange(place->readable, false) && !stays(*place, hear)) remove(place);
    }
    for (size_t accepted = 0; accepted < kAtOnce; ++accepted) {
      Expected<Socket> socket = acceptFrom(listener_);
      // Descriptors may have run out because pending peers hold them.
      while (!socket.ok() && leaveOne()) socket = acceptFrom(listener_);
      if (!socket.ok()) return Status::error(cat(socket.status().message(), others()));
      if (!socket->open()) break;
      std::string name = nameOf_(*socket);
      Entry entry{PendingPeer(std::move(*socket)), std::move(name), Clock::now(), Heard::kNothing, false};
      // It may have sent everything already, so it needs no place.
      if (!stays(entry, hear)) continue;
      if (entries_.size() >= limits_.most) leaveOne();
      ++peersFrom_[entry.name];
      entries_.push_back(std::move(entry));
    }
    const auto latest = Clock::now() - limits_.time;
    while (!entries_.empty() && entries_.front().since < latest) leave(entries_.begin());
    return {};
  }

  // For errors: "; 3 connections of others: from 10.0.0.7 (3)"; empty if there were none.
  std::string others() const {
    OtherConnections all = others_;
    for (const Entry& entry : entries_) all.add(entry.name);
    return all.text();
  }

 private:
  struct Entry {
    PendingPeer peer;
    std::string name;
    Clock::time_point since;
    Heard heard;
    bool readable;
  };
  using Place = typename std::list<Entry>::iterator;

  // Connections that are accepted by one call, so that a flood does not keep the pending peers waiting.
  static constexpr size_t kAtOnce = 64;

  template <typename Hear>
  bool stays(Entry& entry, const Hear& hear) {
    entry.heard = hear(entry.peer);
    if (entry.heard == Heard::kUnrelated) others_.add(entry.name);
    return entry.heard == Heard::kNothing || entry.heard == Heard::kPart;
  }

  void remove(Place place) {
    if (const auto from = peersFrom_.find(place->name); --from->second == 0) peersFrom_.erase(from);
    entries_.erase(place);
  }

  void leave(Place place) {
    others_.add(place->name);
    remove(place);
  }

  // Closes the connection that came first from the address that has the most pending peers: one that is silent, if
  // there is one. False without pending peers.
  bool leaveOne() {
    const auto busiest = std::max_element(peersFrom_.begin(), peersFrom_.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (busiest == peersFrom_.end()) return false;
    Place first = entries_.end();
    for (Place place = entries_.begin(); place != entries_.end(); ++place) {
      if (place->name != busiest->first) continue;
      if (first == entries_.end() || (first->heard != Heard::kNothing && place->heard == Heard::kNothing))
        first = place;
      if (first->heard == Heard::kNothing) break;
    }
    leave(first);
    return true;
  }

  const Socket listener_;
  const Limits limits_;
  const NameOf nameOf_;
  std::list<Entry> entries_;  // in the order in which they came
  std::map<std::string, size_t> peersFrom_;
  OtherConnections others_;
};

}  // namespace sheaf::comm
