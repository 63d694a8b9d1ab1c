#include "runtime/comm/shared/SharedMemory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/base/HugePages.h"
#include "runtime/base/Text.h"
#include "runtime/comm/socket/Acceptor.h"
#include "runtime/comm/socket/Socket.h"
#include "runtime/comm/socket/Token.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace sheaf::comm {
namespace {

constexpr std::chrono::milliseconds kLook(50);
// Between two attempts to reach a process whose backlog is full.
constexpr std::chrono::milliseconds kAgain(2);
// Connections that have not said yet from which process they are. Those of the job say so at once.
constexpr size_t kMaxUnknown = 64;

Status failed(const std::string& what) {
  return Status::error(cat("cannot share memory with the processes of this host: ", what, ": ", systemError(),
                           "; with another SHEAF_HOST for each process they exchange through sockets"));
}

// A socket in the abstract name space, which has no file.
struct Address {
  explicit Address(const std::string& name) {
    unix.sun_family = AF_UNIX;
    const size_t count = std::min(name.size(), sizeof unix.sun_path - 1);
    std::memcpy(unix.sun_path + 1, name.data(), count);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&unix); }
  sockaddr_un unix{};
  socklen_t size;
};

Expected<Socket> makeBlock(uint64_t bytes) {
  Socket file(memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.open()) return failed("memfd_create");
  if (ftruncate(file.descriptor(), static_cast<off_t>(bytes)) != 0) return failed(cat("a block of ", bytesText(bytes)));
  // A process that shrank it would crash the others.
  if (fcntl(file.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed("F_ADD_SEALS");
  return file;
}

// At a multiple of the size of huge pages, without which a mapping has none.
Expected<std::span<std::byte>> map(int file, uint64_t bytes) {
  void* room = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return failed(cat("an address range of ", bytesText(bytes)));
  std::byte* begin = static_cast<std::byte*>(room);
  std::byte* at = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  void* mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  if (mapped == MAP_FAILED) {
    Status status = failed(cat("mapping ", bytesText(bytes)));
    munmap(room, bytes + kHugePage);
    return status;
  }
  std::byte* end = at + (bytes + 4095) / 4096 * 4096;
  if (at > begin) munmap(begin, static_cast<size_t>(at - begin));
  if (end < begin + bytes + kHugePage) munmap(end, static_cast<size_t>(begin + bytes + kHugePage - end));
  return std::span(at, bytes);
}

// Shared memory has huge pages by default on few systems, but may be given some one by one. Without them the step is
// slower and the same. One touched byte makes a page that can be collapsed.
void takeHugePages(std::span<std::byte> block) {
  const uint64_t whole = block.size() / kHugePage * kHugePage;
  if (block.size() < kHugeBytes || madvise(block.data(), whole, MADV_HUGEPAGE) != 0) return;
  for (uint64_t at = 0; at < whole; at += kHugePage) {
    static_cast<volatile std::byte*>(block.data())[at] = std::byte{0};
    if (madvise(block.data() + at, kHugePage, MADV_COLLAPSE) != 0) return;
  }
}

// A message of one byte, with room for a descriptor: a descriptor does not travel alone (unix(7)).
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &data, header.msg_iovlen = 1;
    header.msg_control = control, header.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  msghdr header{};

 private:
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
};

// False if the other side has closed the connection.
Expected<bool> sendDescriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  if (sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) return true;
  if (errno == EPIPE || errno == ECONNRESET) return false;
  return failed("sending a descriptor");
}

// The first bytes of a connection: they show that the process is of the job, and give its number.
struct Greeting {
  Token token;
  int64_t process = 0;
};

using PendingPeer = Greeter<Greeting>;

std::optional<uid_t> userOf(const Socket& socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket.descriptor(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return credentials.uid;
}

std::string userText(const Socket& socket) {
  const std::optional<uid_t> user = userOf(socket);
  return user ? cat("user ", *user) : "an unknown user";
}

// Gives this process's block to the others and takes theirs. Connections are made and accepted at the same time, and
// nothing blocks: unrelated processes may fill the backlogs, and any process may be late.
class Blocks {
 public:
  Blocks(const ProcessGroup& group, const AbortSignal& abort, int file)
      : group_(group),
        abort_(abort),
        file_(file),
        deadline_(Clock::now() + group.limit()),
        links_(static_cast<size_t>(group.size())) {}

  Status listen() {
    // Anyone on the host sees the name (/proc/net/unix), but not the token.
    Expected<Token> token = Token::random(), name = Token::random();
    if (!token.ok() || !name.ok()) return Status::error(cat(token.status().message(), name.status().message()));
    token_ = *token;
    name_ = cat("sheaf-", hexText(name->words[0]), hexText(name->words[1]));
    const Address address(name_);
    Socket listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listener.open() || bind(listener.descriptor(), address.get(), address.size) != 0 ||
        ::listen(listener.descriptor(), SOMAXCONN) != 0)
      return failed("a UNIX socket");
    acceptor_.emplace(std::move(listener), Acceptor<PendingPeer>::Limits{kMaxUnknown, group_.limit()}, userText);
    return {};
  }

  // Tells the others where this process listens and what they must say.
  std::string place() const { return std::string(reinterpret_cast<const char*>(&token_), sizeof token_) + name_; }

  // `places` of all processes. Afterwards received() has their blocks.
  Status exchange(const std::vector<std::string>& places) {
    for (const std::string& place : places)
      if (place.size() < sizeof(Token)) return Status::error("names of the shared memory: they are of another size");
    while (unsent() + unreceived() > 0) {
      if (abort_.raised()) return abort_.status();
      if (Clock::now() >= deadline_) return late();
      bool again = false;
      std::vector<int> open;
      for (int64_t process = 0; process < group_.size(); ++process) {
        Link& link = links_[static_cast<size_t>(process)];
        if (process == group_.rank() || link.block.open()) continue;
        if (!link.connection.open()) SHEAF_RETURN_IF_ERROR(connect(process, places[static_cast<size_t>(process)]));
        if (link.connection.open()) SHEAF_RETURN_IF_ERROR(receive(process));
        again |= !link.connection.open();
        if (link.connection.open() && !link.block.open()) open.push_back(link.connection.descriptor());
      }
      Status sent;
      if (Status served = acceptor_->serve([&](PendingPeer& peer) { return hear(peer, sent); }); !served.ok())
        return Status::error(cat("cannot share memory with the processes of this host: ", served.message()));
      SHEAF_RETURN_IF_ERROR(sent);
      if (unsent() + unreceived() > 0) acceptor_->wait(again ? kAgain : kLook, open);
    }
    return {};
  }

  int received(int64_t process) const { return links_[static_cast<size_t>(process)].block.descriptor(); }

 private:
  struct Link {
    Socket connection;  // to the process, which sends its block
    Socket block;       // its descriptor
    bool sent = false;  // this process's block, to it
  };

  int64_t unsent() const {
    return group_.size() - 1 - std::count_if(links_.begin(), links_.end(), [](const Link& link) { return link.sent; });
  }
  int64_t unreceived() const {
    return group_.size() - 1 -
           std::count_if(links_.begin(), links_.end(), [](const Link& link) { return link.block.open(); });
  }

  // The link stays closed where the process cannot be reached now.
  Status connect(int64_t process, const std::string& place) {
    Greeting greeting{.token = {}, .process = group_.rank()};
    std::memcpy(&greeting.token, place.data(), sizeof greeting.token);
    const Address address(place.substr(sizeof greeting.token));
    Socket connection(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!connection.open()) return failed("a UNIX socket");
    if (::connect(connection.descriptor(), address.get(), address.size) != 0) {
      // Its backlog is full, or it has ended, which the group notices.
      if (errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED) return {};
      return failed(cat("connecting to ", group_.describe(process)));
    }
    if (userOf(connection) != geteuid())
      return Status::error(cat(group_.describe(process), " belongs to another user"));
    // A new connection takes this much at once.
    if (send(connection.descriptor(), &greeting, sizeof greeting, MSG_NOSIGNAL) == sizeof greeting)
      links_[static_cast<size_t>(process)].connection = std::move(connection);
    return {};
  }

  // Takes the process's block if it has come. Closes the connection if the other side has: it is made again.
  Status receive(int64_t process) {
    Link& link = links_[static_cast<size_t>(process)];
    DescriptorMessage message;
    const ssize_t count = recvmsg(link.connection.descriptor(), &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (count == 0 || (count < 0 && errno == ECONNRESET)) {
      link.connection = Socket();
      return {};
    }
    if (count < 0) return failed(cat("a block of ", group_.describe(process)));
    const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
    // The kernel leaves the descriptor out where this process may have no more.
    if (message.header.msg_flags & MSG_CTRUNC) {
      errno = EMFILE;
      return failed(cat("a block of ", group_.describe(process)));
    }
    if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
      return Status::error(cat(group_.describe(process), " has sent no block of memory"));
    int descriptor;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    link.block = Socket(descriptor);
    link.connection = Socket();
    return {};
  }

  // Sends this process's block to a pending peer that is of the job.
  Heard hear(PendingPeer& peer, Status& sent) {
    if (userOf(peer.socket()) != geteuid()) return Heard::kUnrelated;
    if (const Heard heard = peer.hear(); heard != Heard::kMember) return heard;
    const auto& [token, process] = peer.greeting();
    if (!(token == token_) || process < 0 || process >= group_.size() || process == group_.rank())
      return Heard::kUnrelated;
    Expected<bool> done = sendDescriptor(peer.socket().descriptor(), file_);
    if (!done.ok()) sent = done.status();
    if (!done.ok() || !*done) return Heard::kUnrelated;
    links_[static_cast<size_t>(process)].sent = true;
    return Heard::kMember;
  }

  Status late() const {
    std::vector<std::string> names;
    for (int64_t process = 0; process < group_.size(); ++process) {
      const Link& link = links_[static_cast<size_t>(process)];
      if (process != group_.rank() && !(link.sent && link.block.open())) names.push_back(group_.describe(process));
    }
    return Status::error(
        cat("memory could not be shared with ", listText(names), acceptor_->others(), " (SHEAF_TIMEOUT)"));
  }

  const ProcessGroup& group_;
  const AbortSignal& abort_;
  const int file_;
  const Clock::time_point deadline_;
  Token token_;
  std::string name_;
  std::optional<Acceptor<PendingPeer>> acceptor_;
  std::vector<Link> links_;  // to each process
};

}  // namespace

Expected<std::unique_ptr<SharedMemory>> SharedMemory::create(ProcessGroup& group, uint64_t bytes,
                                                             const AbortSignal& abort) {
  const int64_t processes = group.size(), mine = group.rank();
  Expected<Socket> file = makeBlock(bytes);
  if (!file.ok()) return file.status();
  std::optional<Blocks> blocks(std::in_place, group, abort, file->descriptor());
  SHEAF_RETURN_IF_ERROR(blocks->listen());
  Expected<std::vector<std::string>> places = group.allGather(blocks->place(), "names of the shared memory");
  if (!places.ok()) return places.status();
  SHEAF_RETURN_IF_ERROR(blocks->exchange(*places));
  std::unique_ptr<SharedMemory> memory(new SharedMemory(static_cast<size_t>(processes)));
  for (int64_t process = 0; process < processes; ++process) {
    std::span<std::byte>& block = memory->blocks_[static_cast<size_t>(process)];
    if (process == mine) {
      Expected<std::span<std::byte>> mapped = map(file->descriptor(), bytes);
      if (!mapped.ok()) return mapped.status();
      block = *mapped;
      takeHugePages(block);
      continue;
    }
    const int theirs = blocks->received(process);
    const off_t size = lseek(theirs, 0, SEEK_END);
    if (size <= 0) return failed(cat("the block of ", group.describe(process)));
    Expected<std::span<std::byte>> mapped = map(theirs, static_cast<uint64_t>(size));
    if (!mapped.ok()) return mapped.status();
    block = *mapped;
  }
  blocks.reset();
  SHEAF_RETURN_IF_ERROR(group.barrier("the shared memory"));
  return memory;
}

SharedMemory::~SharedMemory() {
  for (std::span<std::byte> block : blocks_)
    if (block.data()) munmap(block.data(), block.size());
}

}  // namespace sheaf::comm
