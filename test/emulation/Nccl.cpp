// The emulated NCCL, between threads or processes of one machine: messages are files in a folder that the unique id
// names. As with the real one, calls of communicators that do not block are accepted at once and done later, and what
// is received and sent in a group happens together.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "runtime/comm/nccl/NcclApi.h"
#include "test/emulation/Stream.h"

namespace fs = std::filesystem;

struct ncclComm {
  std::string folder;
  int rank = 0, ranks = 0;
  std::atomic<bool> aborted = false;
  std::mutex mutex;
  std::map<std::pair<int, int>, uint64_t> sent;  // messages so far, by sender and receiver
  std::map<std::pair<int, int>, uint64_t> received;
};

namespace sheaf::emulation {
namespace {

struct Message {
  ncclComm* comm;
  cudaStream_t stream;
  bool send;
  int peer;
  void* address;
  size_t bytes;
};

thread_local int groupDepth = 0;
thread_local std::vector<Message> group;

constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

std::string nameOf(ncclComm& comm, std::map<std::pair<int, int>, uint64_t>& counts, int from, int to) {
  std::lock_guard lock(comm.mutex);
  uint64_t number = counts[{from, to}]++;
  return comm.folder + "/" + std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number);
}

void writeWhole(const std::string& path, const void* address, size_t bytes) {
  const std::string temporary = path + ".new";
  std::ofstream(temporary, std::ios::binary)
      .write(static_cast<const char*>(address), static_cast<std::streamsize>(bytes));
  fs::rename(temporary, path);
}

bool waitFor(ncclComm& comm, const std::string& path) {
  while (!fs::exists(path)) {
    if (comm.aborted) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void perform(const std::vector<Message>& messages) {
  for (const Message& m : messages)
    if (m.send) writeWhole(nameOf(*m.comm, m.comm->sent, m.comm->rank, m.peer), m.address, m.bytes);
  for (const Message& m : messages) {
    if (m.send) continue;
    const std::string path = nameOf(*m.comm, m.comm->received, m.peer, m.comm->rank);
    if (!waitFor(*m.comm, path)) return;
    std::ifstream(path, std::ios::binary).read(static_cast<char*>(m.address), static_cast<std::streamsize>(m.bytes));
    fs::remove(path);
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
  return add({comm, stream, true, peer, const_cast<void*>(address), count * kTypeBytes[type]});
}

ncclResult_t recv(void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({comm, stream, false, peer, address, count * kTypeBytes[type]});
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
      messages.push_back({comm, stream, true, peer, const_cast<void*>(source), all * sizeof(float)});
      messages.push_back({comm, stream, false, peer, terms[static_cast<size_t>(peer)].data(), all * sizeof(float)});
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
  std::string folder = fs::temp_directory_path() / "sheaf-nccl-XXXXXX";
  if (!mkdtemp(folder.data()) || folder.size() >= sizeof id->internal) return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, folder.data(), folder.size());
  return ncclSuccess;
}

ncclResult_t commInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;  // the real one would not come back when a rank is missing
  *comm = new ncclComm;
  (*comm)->folder = id.internal;
  (*comm)->rank = rank;
  (*comm)->ranks = ranks;
  writeWhole((*comm)->folder + "/joined-" + std::to_string(rank), "", 0);
  return ncclInProgress;
}

ncclResult_t commGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = ncclSuccess;
  for (int rank = 0; rank < comm->ranks; ++rank)
    if (!fs::exists(comm->folder + "/joined-" + std::to_string(rank))) *result = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t commFinalize(ncclComm_t) {
  return ncclSuccess;
}

// The last one to leave removes the folder.
ncclResult_t leave(ncclComm_t comm) {
  writeWhole(comm->folder + "/left-" + std::to_string(comm->rank), "", 0);
  bool last = true;
  for (int rank = 0; rank < comm->ranks; ++rank) last &= fs::exists(comm->folder + "/left-" + std::to_string(rank));
  std::error_code ignored;
  if (last) fs::remove_all(comm->folder, ignored);
  return ncclSuccess;
}

ncclResult_t commDestroy(ncclComm_t comm) {
  leave(comm);
  delete comm;
  return ncclSuccess;
}

// Its tasks may still look at it: it stays.
ncclResult_t commAbort(ncclComm_t comm) {
  comm->aborted = true;
  return leave(comm);
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
