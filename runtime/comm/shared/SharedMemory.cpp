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
#include <fstream>
#include <random>
#include <utility>

#include "runtime/base/HugePages.h"
#include "runtime/base/Text.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace sheaf::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook(50);

// A descriptor that is closed with its owner.
struct Descriptor {
  explicit Descriptor(int number = -1) : number(number) {}
  Descriptor(Descriptor&& other) noexcept : number(std::exchange(other.number, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number, other.number);
    return *this;
  }
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  int number;
};

Status failed(const std::string& what) {
  return Status::error(cat("cannot share memory with the processes of this host: ", what, ": ", std::strerror(errno),
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

std::string randomName() {
  std::random_device random;
  std::string name = "sheaf-";
  for (int i = 0; i < 4; ++i) name += hexText(random());
  return name;
}

Expected<Descriptor> makeBlock(uint64_t bytes) {
  Descriptor file(memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.number < 0) return failed("memfd_create");
  if (ftruncate(file.number, static_cast<off_t>(bytes)) != 0) return failed(cat("a block of ", bytesText(bytes)));
  // A process that shrank it would crash the others.
  if (fcntl(file.number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return failed("F_ADD_SEALS");
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

Status waitFor(int socket, Clock::time_point deadline, const AbortSignal& abort, const std::string& who) {
  for (;;) {
    if (abort.raised()) return abort.status();
    pollfd polled{socket, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(kLook.count())) > 0) return {};
    if (Clock::now() >= deadline)
      return Status::error(cat("no memory to share has come from ", who, " (SHEAF_TIMEOUT)"));
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

Status sendDescriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1 ? Status() : failed("sending a descriptor");
}

Expected<Descriptor> receiveDescriptor(int socket) {
  DescriptorMessage message;
  errno = EPIPE;
  if (recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1) return failed("receiving a descriptor");
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
    return failed("receiving a descriptor");
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return Descriptor(descriptor);
}

// Whether the other side belongs to this user.
bool isOurs(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == geteuid();
}

}  // namespace

Expected<std::unique_ptr<SharedMemory>> SharedMemory::create(ProcessGroup& group, uint64_t bytes,
                                                             const AbortSignal& abort) {
  const int64_t processes = group.size(), mine = group.rank();
  Expected<Descriptor> file = makeBlock(bytes);
  if (!file.ok()) return file.status();
  const std::string name = randomName();
  const Address ours(name);
  Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.number < 0 || bind(listener.number, ours.get(), ours.size) != 0 ||
      listen(listener.number, static_cast<int>(processes)) != 0)
    return failed("a UNIX socket");
  Expected<std::vector<std::string>> names = group.allGather(name, "names of the shared memory");
  if (!names.ok()) return names.status();
  const auto deadline = Clock::now() + group.limit();

  // All processes connect to all before any answers: the listeners' backlogs hold that many.
  std::vector<Descriptor> connections(static_cast<size_t>(processes));
  for (int64_t process = 0; process < processes; ++process) {
    if (process == mine) continue;
    Descriptor connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Address theirs((*names)[static_cast<size_t>(process)]);
    if (connection.number < 0 || connect(connection.number, theirs.get(), theirs.size) != 0)
      return failed(cat("connecting to ", group.describe(process)));
    connections[static_cast<size_t>(process)] = std::move(connection);
  }
  for (int64_t sent = 0; sent + 1 < processes;) {
    SHEAF_RETURN_IF_ERROR(waitFor(listener.number, deadline, abort, "this process's peers"));
    Descriptor connection(accept4(listener.number, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.number < 0 || !isOurs(connection.number)) continue;
    SHEAF_RETURN_IF_ERROR(sendDescriptor(connection.number, file->number));
    ++sent;
  }
  std::unique_ptr<SharedMemory> memory(new SharedMemory(static_cast<size_t>(processes)));
  for (int64_t process = 0; process < processes; ++process) {
    std::span<std::byte>& block = memory->blocks_[static_cast<size_t>(process)];
    if (process == mine) {
      Expected<std::span<std::byte>> mapped = map(file->number, bytes);
      if (!mapped.ok()) return mapped.status();
      block = *mapped;
      takeHugePages(block);
      continue;
    }
    const int connection = connections[static_cast<size_t>(process)].number;
    SHEAF_RETURN_IF_ERROR(waitFor(connection, deadline, abort, group.describe(process)));
    if (!isOurs(connection)) return Status::error(cat(group.describe(process), " belongs to another user"));
    Expected<Descriptor> theirs = receiveDescriptor(connection);
    if (!theirs.ok()) return theirs.status();
    const off_t size = lseek(theirs->number, 0, SEEK_END);
    if (size <= 0) return failed(cat("the block of ", group.describe(process)));
    Expected<std::span<std::byte>> mapped = map(theirs->number, static_cast<uint64_t>(size));
    if (!mapped.ok()) return mapped.status();
    block = *mapped;
  }
  SHEAF_RETURN_IF_ERROR(group.barrier("the shared memory"));
  return memory;
}

SharedMemory::~SharedMemory() {
  for (std::span<std::byte> block : blocks_)
    if (block.data()) munmap(block.data(), block.size());
}

std::string memoryId(const char* sheafHost) {
  if (sheafHost && *sheafHost) {
    std::string name = cat("SHEAF_HOST=", sheafHost);
    std::replace(name.begin(), name.end(), '\n', ' ');  // it travels as a line
    return name;
  }
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Abstract sockets are those of a network name space.
  char space[64] = "";
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
  return cat(boot, " ", space, " ", geteuid());
}

int64_t processesPerNode(const std::vector<std::string>& ids) {
  const int64_t processes = static_cast<int64_t>(ids.size());
  for (int64_t size = processes; size > 1; --size) {
    if (processes % size != 0) continue;
    bool alike = true;
    for (int64_t process = 0; process < processes; ++process)
      alike &= ids[static_cast<size_t>(process)] == ids[static_cast<size_t>(process / size * size)];
    if (alike) return size;
  }
  return 1;
}

}  // namespace sheaf::comm
