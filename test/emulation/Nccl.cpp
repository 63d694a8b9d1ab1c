// The emulated NCCL, between threads or processes of one machine: messages go through mailboxes in memory that they
// share, a file that the unique id names and that loses its name when all have joined. As with the real one, calls of
// communicators that do not block are accepted at once and done later, and what is received and sent in a group happens
// together.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/cuda/nccl/NcclApi.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {
namespace {

// From one rank to another, a piece of a message at a time.
struct Mailbox {
  static constexpr size_t kPiece = (64 << 10) - 8;
  std::atomic<uint64_t> filled;  // bytes; 0 when the receiver has taken them
  char piece[kPiece];
};

// What the ranks share, zeroed in the beginning; the mailboxes follow.
struct Shared {
  std::atomic<int> joined;
  alignas(4096) Mailbox mailboxes[];
};

}  // namespace
}  // namespace sheaf::emulation

struct ncclComm {
  std::string path;
  int rank = 0, ranks = 0;
  sheaf::emulation::Shared* shared = nullptr;
  size_t sharedBytes = 0;
  std::atomic<bool> aborted = false;
  std::mutex mutex;  // one exchange at a time

  sheaf::emulation::Mailbox& mailbox(int from, int to) const { return shared->mailboxes[from * ranks + to]; }
};

namespace sheaf::emulation {
namespace {

struct Message {
  ncclComm* comm;
  cudaStream_t stream;
  bool send;
  int peer;
  char* address;
  size_t bytes;
};

thread_local int groupDepth = 0;
thread_local std::vector<Message> group;

constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// Moves the message's next piece if that is possible now.
bool progress(Message& m) {
  Mailbox& mailbox = m.send ? m.comm->mailbox(m.comm->rank, m.peer) : m.comm->mailbox(m.peer, m.comm->rank);
  const uint64_t filled = mailbox.filled.load(std::memory_order_acquire);
  if (m.send == (filled > 0)) return false;
  const size_t bytes = m.send ? std::min(m.bytes, Mailbox::kPiece) : filled;
  if (m.send)
    std::memcpy(mailbox.piece, m.address, bytes);
  else
    std::memcpy(m.address, mailbox.piece, std::min(bytes, m.bytes));
  mailbox.filled.store(m.send ? bytes : 0, std::memory_order_release);
  m.address += bytes;
  m.bytes -= std::min(bytes, m.bytes);
  return true;
}

void perform(std::vector<Message> messages) {
  ncclComm& comm = *messages[0].comm;
  std::lock_guard lock(comm.mutex);
  while (!comm.aborted) {
    bool moved = false, done = true;
    for (Message& m : messages) {
      if (m.bytes > 0) moved |= progress(m);
      done &= m.bytes == 0;
    }
    if (done) return;
    if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

ncclResult_t add(Message message) {
  if (message.peer < 0 || message.peer >= message.comm->ranks) return ncclInvalidArgument;
  group.push_back(message);
  return ncclSuccess;
}

ncclResult_t groupStart() {
  ++groupDepth;
  return ncclSuccess;
}

ncclResult_t groupEnd() {
  if (groupDepth == 0) return ncclInvalidUsage;
  if (--groupDepth > 0 || group.empty()) return ncclSuccess;
  std::vector<Message> messages;
  messages.swap(group);
  if (enqueue(messages[0].stream, [messages] { perform(messages); }) != cudaSuccess) return ncclUnhandledCudaError;
  return ncclInProgress;
}

ncclResult_t send(const void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add({comm, stream, true, peer, static_cast<char*>(const_cast<void*>(address)), count * kTypeBytes[type]});
}

ncclResult_t recv(void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({comm, stream, false, peer, static_cast<char*>(address), count * kTypeBytes[type]});
}

ncclResult_t allGather(const void* source, void* destination, size_t count, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream) {
  const size_t bytes = count * kTypeBytes[type];
  groupStart();
  for (int peer = 0; peer < comm->ranks; ++peer) {
    send(source, count, type, peer, comm, stream);
    recv(static_cast<char*>(destination) + static_cast<size_t>(peer) * bytes, count, type, peer, comm, stream);
  }
  return groupEnd();
}

// Element i's terms are added as a ring would: each part begins at another rank. Only f32, which the tests need.
ncclResult_t ringSum(const void* source, void* destination, size_t first, size_t count, size_t all, ncclDataType_t type,
                     ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  auto task = [=] {
    std::vector<std::vector<float>> terms(static_cast<size_t>(comm->ranks), std::vector<float>(all));
    std::vector<Message> messages;
    for (int peer = 0; peer < comm->ranks; ++peer) {
      messages.push_back(
          {comm, stream, true, peer, static_cast<char*>(const_cast<void*>(source)), all * sizeof(float)});
      char* place = reinterpret_cast<char*>(terms[static_cast<size_t>(peer)].data());
      messages.push_back({comm, stream, false, peer, place, all * sizeof(float)});
    }
    perform(messages);
    const size_t ranks = terms.size(), part = (all + ranks - 1) / ranks;
    for (size_t i = first; i < first + count; ++i) {
      const size_t begin = i / part + 1;
      float sum = terms[begin % ranks][i];
      for (size_t k = 1; k < ranks; ++k) sum += terms[(begin + k) % ranks][i];
      static_cast<float*>(destination)[i - first] = sum;
    }
  };
  return enqueue(stream, task) == cudaSuccess ? ncclInProgress : ncclUnhandledCudaError;
}

ncclResult_t reduceScatter(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t ranks = static_cast<size_t>(comm->ranks);
  return ringSum(source, destination, static_cast<size_t>(comm->rank) * count, count, count * ranks, type, comm,
                 stream);
}

ncclResult_t allReduce(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t,
                       ncclComm_t comm, cudaStream_t stream) {
  return ringSum(source, destination, 0, count, count, type, comm, stream);
}

ncclResult_t getUniqueId(ncclUniqueId* id) {
  std::string path = std::filesystem::temp_directory_path() / "sheaf-nccl-XXXXXX";
  if (path.size() >= sizeof id->internal) return ncclSystemError;
  const int file = mkstemp(path.data());
  if (file < 0) return ncclSystemError;
  close(file);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, path.data(), path.size());
  return ncclSuccess;
}

bool map(ncclComm& comm) {
  comm.sharedBytes =
      sizeof(Shared) + static_cast<size_t>(comm.ranks) * static_cast<size_t>(comm.ranks) * sizeof(Mailbox);
  const int file = open(comm.path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(comm.sharedBytes)) == 0)
    memory = mmap(nullptr, comm.sharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return false;
  comm.shared = static_cast<Shared*>(memory);
  return true;
}

// The last one to join takes the file's name away: nothing is left behind, however the processes end.
ncclResult_t commInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;  // the real one would not come back when a rank is missing
  auto made = std::make_unique<ncclComm>();
  made->path = id.internal;
  made->rank = rank;
  made->ranks = ranks;
  if (!map(*made)) return ncclSystemError;
  if (made->shared->joined.fetch_add(1) + 1 == ranks) unlink(made->path.c_str());
  *comm = made.release();
  return ncclInProgress;
}

ncclResult_t commGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->shared->joined == comm->ranks ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t commFinalize(ncclComm_t) {
  return ncclSuccess;
}

ncclResult_t commDestroy(ncclComm_t comm) {
  munmap(comm->shared, comm->sharedBytes);
  delete comm;
  return ncclSuccess;
}

// Its tasks may still look at it: it stays.
ncclResult_t commAbort(ncclComm_t comm) {
  static std::mutex mutex;
  static auto& aborted = *new std::vector<ncclComm_t>;
  comm->aborted = true;
  if (comm->shared->joined < comm->ranks) unlink(comm->path.c_str());
  std::lock_guard lock(mutex);
  aborted.push_back(comm);
  return ncclSuccess;
}

const char* getErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "an emulated error";
}

const char* getLastError(ncclComm_t) {
  return "";
}

ncclResult_t memAlloc(void** address, size_t bytes) {
  return cudaMalloc(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t memFree(void* address) {
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t commWindowRegister(ncclComm_t, void* address, size_t bytes, ncclWindow_t* window, int) {
  if (reinterpret_cast<uintptr_t>(address) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) return ncclInvalidArgument;
  *window = static_cast<ncclWindow_t>(address);
  return ncclSuccess;
}

ncclResult_t commWindowDeregister(ncclComm_t, ncclWindow_t) {
  return ncclSuccess;
}

}  // namespace
}  // namespace sheaf::emulation

namespace sheaf::nccl {

Expected<const Api*> loadNccl() {
  static const Api api = {.version = NCCL_VERSION_CODE,
                          .getVersion = nullptr,
                          .getUniqueId = emulation::getUniqueId,
                          .commInitRankConfig = emulation::commInitRankConfig,
                          .commFinalize = emulation::commFinalize,
                          .commDestroy = emulation::commDestroy,
                          .commAbort = emulation::commAbort,
                          .commGetAsyncError = emulation::commGetAsyncError,
                          .getErrorString = emulation::getErrorString,
                          .getLastError = emulation::getLastError,
                          .allGather = emulation::allGather,
                          .reduceScatter = emulation::reduceScatter,
                          .allReduce = emulation::allReduce,
                          .send = emulation::send,
                          .recv = emulation::recv,
                          .groupStart = emulation::groupStart,
                          .groupEnd = emulation::groupEnd,
                          .memAlloc = emulation::memAlloc,
                          .memFree = emulation::memFree,
                          .commWindowRegister = emulation::commWindowRegister,
                          .commWindowDeregister = emulation::commWindowDeregister};
  return &api;
}

}  // namespace sheaf::nccl
