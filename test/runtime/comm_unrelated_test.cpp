// Connections that do not belong to a job: they cost it neither its start nor an error that names the fault.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/base/Text.h"
#include "runtime/comm/shared/SharedMemory.h"
#include "runtime/comm/socket/Acceptor.h"
#include "runtime/comm/socket/Token.h"
#include "test/runtime/Deadline.h"
#include "test/runtime/Processes.h"

namespace sheaf::testing {
namespace {

using comm::Acceptor;
using comm::Heard;
using comm::Socket;
using comm::TcpProcessGroup;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kOtherUser = 65534;

using PendingPeer = comm::Greeter<uint64_t>;

// A listener and connections to it.
struct Door {
  Door(size_t most, milliseconds time, Acceptor<PendingPeer>::NameOf nameOf = comm::peerAddress)
      : listener(comm::listenOn({"127.0.0.1", 0})),
        port(comm::localPort(*listener)),
        acceptor(std::move(*listener), {most, time}, std::move(nameOf)) {}

  void connect(std::optional<uint64_t> said = {}) {
    auto socket = comm::connectTo({"127.0.0.1", port}, comm::Clock::now() + milliseconds(2000));
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    if (said) {
      ASSERT_EQ(send(socket->descriptor(), &*said, sizeof *said, 0), ssize_t{sizeof *said});
    }
    clients.push_back(std::move(*socket));
  }
  // Members say 7.
  Status serve() {
    acceptor.wait(milliseconds(20));
    return acceptor.serve([this](PendingPeer& peer) {
      const Heard heard = peer.hear();
      if (heard != Heard::kMember) return heard;
      if (peer.greeting() != 7) return Heard::kUnrelated;
      ++members;
      return Heard::kMember;
    });
  }
  // Connections that the acceptor has closed.
  size_t closed() const {
    char byte;
    return static_cast<size_t>(std::count_if(clients.begin(), clients.end(), [&](const Socket& client) {
      const ssize_t count = recv(client.descriptor(), &byte, 1, MSG_DONTWAIT);
      return count == 0 || (count < 0 && errno == ECONNRESET);
    }));
  }

  Expected<Socket> listener;
  uint16_t port;
  Acceptor<PendingPeer> acceptor;
  std::vector<Socket> clients;
  int members = 0;
};

TEST(Acceptor, TheOldestSilentConnectionLeaves) {
  Door door(8, std::chrono::seconds(60));
  for (int i = 0; i < 40; ++i) door.connect();
  door.connect(7);
  door.connect(8);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(door.serve().ok());
  EXPECT_EQ(door.members, 1);
  EXPECT_EQ(door.acceptor.others(), "; 41 connections of others: from 127.0.0.1 (41)");
  EXPECT_EQ(door.closed(), 42u - 8);  // the member's, too: it has been treated
  for (size_t i = 32; i < 40; ++i) {
    char byte;
    EXPECT_EQ(recv(door.clients[i].descriptor(), &byte, 1, MSG_DONTWAIT), -1) << "connection " << i;
  }
}

TEST(Acceptor, TheAddressWithTheMostConnectionsLosesOne) {
  int connections = 0;
  Door door(4, std::chrono::seconds(60), [&](const Socket&) { return cat("10.0.0.", ++connections == 1 ? 1 : 2); });
  for (int i = 0; i < 9; ++i) door.connect();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(door.serve().ok());
  EXPECT_EQ(door.closed(), 5u);
  char byte;
  EXPECT_EQ(recv(door.clients[0].descriptor(), &byte, 1, MSG_DONTWAIT), -1)
      << "the first, of another address, is closed";
  EXPECT_EQ(door.acceptor.others(), "; 9 connections of others: from 10.0.0.2 (8), 10.0.0.1 (1)");
}

TEST(Acceptor, SilentConnectionsLeaveAfterATime) {
  Door door(8, milliseconds(50));
  door.connect();
  ASSERT_TRUE(door.serve().ok());
  EXPECT_EQ(door.closed(), 0u);
  std::this_thread::sleep_for(milliseconds(60));
  ASSERT_TRUE(door.serve().ok());
  EXPECT_EQ(door.closed(), 1u);
}

// From here on the process may open no file.
void takeDescriptors() {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  limit.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(Acceptor, WithoutDescriptorsItIsAnError) {
  expectEnds(std::chrono::seconds(10), [] {
    Door door(8, std::chrono::seconds(60));
    door.connect(7);
    takeDescriptors();
    EXPECT_THAT(door.serve().message(),
                AllOf(HasSubstr("cannot accept a connection: Too many open files"), HasSubstr("ulimit -n")));
  });
}

TEST(Acceptor, PendingPeersGiveTheirDescriptorsBack) {
  expectEnds(std::chrono::seconds(10), [] {
    Door door(8, std::chrono::seconds(60));
    for (int i = 0; i < 3; ++i) door.connect();
    ASSERT_TRUE(door.serve().ok());
    door.connect(7);
    takeDescriptors();
    ASSERT_TRUE(door.serve().ok());
    EXPECT_EQ(door.members, 1);
    EXPECT_EQ(door.closed(), 2u);  // the member's, and that of one pending peer
  });
}

TEST(Token, EveryBitCounts) {
  auto token = comm::Token::random(), other = comm::Token::random();
  ASSERT_TRUE(token.ok() && other.ok());
  EXPECT_TRUE(*token == *token);
  EXPECT_FALSE(*token == *other);
  for (int bit = 0; bit < 128; ++bit) {
    comm::Token changed = *token;
    changed.words[bit / 64] ^= uint64_t{1} << bit % 64;
    EXPECT_FALSE(changed == *token) << bit;
  }
}

// Names of abstract sockets that the process listens on.
std::set<std::string> namesOf(pid_t process) {
  std::set<std::string> inodes, names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(cat("/proc/", process, "/fd"), ignored)) {
    const std::string target = std::filesystem::read_symlink(entry, ignored);
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    if (all.size() == 8 && all[7].starts_with("@sheaf-") && inodes.contains(all[6])) names.insert(all[7].substr(1));
  }
  return names;
}

// Connects to what its parent listens on until no more connections are taken, and says nothing; as another user where
// this one is root.
[[noreturn]] void fillBacklogs(pid_t process) {
  for (; getppid() == process; usleep(500))
    for (const std::string& name : namesOf(process)) {
      (void)!seteuid(kOtherUser);
      // A connection keeps its place when it is closed. Where connections are accepted meanwhile, there is no end.
      for (int i = 0, taken = 0; i < 20000 && taken == 0; ++i) {
        const int one = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::copy(name.begin(), name.end(), address.sun_path + 1);
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
        taken = ::connect(one, reinterpret_cast<sockaddr*>(&address), size);
        close(one);
      }
      (void)!seteuid(0);
    }
  _exit(0);
}

// Another process fills the backlogs of all but the last process, which is late: the others connect when they are full.
void shareUnderAttack(int64_t processes) {
  const pid_t self = getpid(), attacker = fork();
  ASSERT_GE(attacker, 0);
  if (attacker == 0) fillBacklogs(self);
  onProcesses(processes, milliseconds(20000), [&](TcpProcessGroup& group) {
    comm::AbortSignal abort;
    if (group.rank() + 1 == group.size()) std::this_thread::sleep_for(milliseconds(300));
    auto memory = comm::SharedMemory::create(group, 4096, abort);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_TRUE(group.leave().ok());
  });
  kill(attacker, SIGKILL);
  waitpid(attacker, nullptr, 0);
}

TEST(SharedMemory, ConnectionsThatFillTheBacklogDoNotHoldTheJobUp) {
  expectEnds(std::chrono::seconds(30), [] { shareUnderAttack(4); });
}

// A process that listens, but does not answer.
TEST(SharedMemory, WhoDoesNotAnswerIsNamedWithinTheLimit) {
  expectEnds(std::chrono::seconds(30), [] {
    onProcesses(2, milliseconds(1000), [](TcpProcessGroup& group) {
      comm::AbortSignal abort;
      if (group.rank() == 1) {
        const int silent = socket(AF_UNIX, SOCK_STREAM, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const std::string name = cat("sheaf-test-", getpid());
        std::copy(name.begin(), name.end(), address.sun_path + 1);
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
        ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
        ASSERT_EQ(listen(silent, 0), 0);
        EXPECT_TRUE(group.allGather(std::string(16, 't') + name, "names of the shared memory").ok());
        std::this_thread::sleep_for(milliseconds(1500));
        close(silent);
        return;
      }
      const auto begin = comm::Clock::now();
      auto memory = comm::SharedMemory::create(group, 4096, abort);
      EXPECT_THAT(memory.status().message(),
                  AllOf(HasSubstr("memory could not be shared with process 1 ("), HasSubstr("SHEAF_TIMEOUT")));
      EXPECT_LT(comm::Clock::now() - begin, std::chrono::seconds(4));
    });
  });
}

// A failure elsewhere ends the waiting.
TEST(SharedMemory, AnAbortEndsTheExchange) {
  expectEnds(std::chrono::seconds(30), [] {
    onProcesses(2, milliseconds(20000), [](TcpProcessGroup& group) {
      comm::AbortSignal abort;
      if (group.rank() == 1) {
        EXPECT_TRUE(group.allGather(std::string(16, 't') + "sheaf-no-listener", "names of the shared memory").ok());
        std::this_thread::sleep_for(milliseconds(500));
        return;
      }
      std::thread failing([&] {
        std::this_thread::sleep_for(milliseconds(200));
        abort.raise(Status::error("elsewhere"));
      });
      EXPECT_EQ(comm::SharedMemory::create(group, 4096, abort).status().message(), "elsewhere");
      failing.join();
    });
  });
}

}  // namespace
}  // namespace sheaf::testing
