#include "runtime/device/cuda/HostArena.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "runtime/base/HugePages.h"
#include "runtime/device/cuda/Check.h"

namespace sheaf::cuda {
namespace {

constexpr uint64_t kPage = 4096;
constexpr unsigned char kPattern = 0xA5;
// Registered at a time where the driver does not take all in one call: those from version 580 on refuse 512 GiB and
// more, though not as much in several calls (xcena-dev/maru, pull request 64: a table of theirs would have 2^31 bytes).
constexpr uint64_t kPiece = 256 << 20;

// Asks for pages of this node. Advice: where the system refuses it (containers often do), or the node is full, memory
// from elsewhere is slower and the same.
void prefer(void* memory, uint64_t bytes, int node) {
  constexpr unsigned long kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / kBits> nodes{};
  const unsigned long number = static_cast<unsigned long>(node);
  if (node < 0 || number >= nodes.size() * kBits) return;
  nodes[number / kBits] = 1ul << number % kBits;
  (void)syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.data(), nodes.size() * kBits, 0);
}

// The limits that pinned memory may meet, in the words of their remedies.
std::string limitsText() {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return cat(
      "this process may lock ", known ? bytesText(limit.rlim_cur) : "any amount", " of memory (ulimit -l",
      known ? ", which root, or a container's --ulimit memlock=-1, can raise" : "",
      "); if the machine or the container has too little, move less with --offload or --host-memory, or use more "
      "ranks on more machines");
}

}  // namespace

Expected<std::unique_ptr<HostArena>> HostArena::create(uint64_t bytes, int node, bool poison, const char* what) {
  auto failure = [&](const std::string& why) {
    return Status::error(cat("cannot pin ", bytesText(bytes), " (", bytes, " bytes) of host memory for ", what, ": ",
                             why, "; ", limitsText()));
  };
  if (bytes > UINT64_MAX / 2) return failure("no machine has as much");
  const uint64_t mapped = (std::max<uint64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return failure(std::strerror(errno));
  std::unique_ptr<HostArena> arena(new HostArena(static_cast<std::byte*>(memory), bytes, mapped));
  // Only advice: without huge pages there are more of them to register.
  if (mapped >= kHugeBytes) (void)madvise(memory, mapped, MADV_HUGEPAGE);
  prefer(memory, mapped, node);
  // The first touch, which gives pages their node.
  std::memset(memory, poison ? kPattern : 0, mapped);
  cudaError_t error = arena->registerPieces(mapped);
  if (error == cudaErrorMemoryAllocation && mapped > kPiece) error = arena->registerPieces(kPiece);
  if (error != cudaSuccess)
    return failure(cat(cudaGetErrorString(error), " (CUDA error ", static_cast<int>(error), ")"));
  return arena;
}

cudaError_t HostArena::registerPieces(uint64_t piece) {
  for (uint64_t begin = 0; begin < mapped_; begin += piece) {
    const cudaError_t error =
        cudaHostRegister(data_ + begin, std::min(piece, mapped_ - begin), cudaHostRegisterDefault);
    if (error == cudaSuccess) continue;
    (void)cudaGetLastError();
    piece_ = piece;
    unregister(begin);
    return error;
  }
  piece_ = piece;
  return cudaSuccess;
}

void HostArena::unregister(uint64_t bytes) {
  for (uint64_t begin = 0; piece_ > 0 && begin < bytes; begin += piece_) (void)cudaHostUnregister(data_ + begin);
  piece_ = 0;
}

HostArena::~HostArena() {
  unregister(mapped_);
  munmap(data_, mapped_);
}

uint64_t HostArena::copiable(const std::byte* place) const {
  const uint64_t offset = static_cast<uint64_t>(place - data_);
  return std::min(piece_ - offset % piece_, mapped_ - offset);
}

Status HostArena::checkRange(uint64_t offset, uint64_t bytes) const {
  if (offset <= size_ && bytes <= size_ - offset) return {};
  return Status::error(cat("bytes [", offset, ", +", bytes, ") lie outside the arena in host memory of ", size_));
}

Status HostArena::read(uint64_t offset, std::span<std::byte> host) const {
  SHEAF_RETURN_IF_ERROR(checkRange(offset, host.size()));
  if (!host.empty()) std::memcpy(host.data(), data_ + offset, host.size());
  return {};
}

Status HostArena::write(uint64_t offset, std::span<const std::byte> host) {
  SHEAF_RETURN_IF_ERROR(checkRange(offset, host.size()));
  if (!host.empty()) std::memcpy(data_ + offset, host.data(), host.size());
  return {};
}

int HostArena::node() const {
  int node = -1;
  const long done = syscall(SYS_get_mempolicy, &node, nullptr, 0, data_, MPOL_F_NODE | MPOL_F_ADDR);
  return done == 0 ? node : -1;
}

int nodeOf(int gpu) {
  int node = -1;
  if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, gpu) == cudaSuccess) return node;
  (void)cudaGetLastError();
  return -1;
}

void runOnNode(int node) {
  cpu_set_t allowed, chosen;
  CPU_ZERO(&chosen);
  if (node < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  // "0-15,32-47"
  std::ifstream list(cat("/sys/devices/system/node/node", node, "/cpulist"));
  for (std::string range; std::getline(list, range, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    for (int cpu = first; read > 0 && cpu <= (read > 1 ? last : first) && cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &chosen);
  }
  if (CPU_COUNT(&chosen) > 0) (void)sched_setaffinity(0, sizeof chosen, &chosen);
}

}  // namespace sheaf::cuda
