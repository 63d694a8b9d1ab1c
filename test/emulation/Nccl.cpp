// The emulated NCCL: its communicators' lives. As with the real one, calls of communicators that do not block are
// accepted at once and done later, and nothing but a poll says when.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/Text.h"
#include "runtime/device/cuda/nccl/NcclApi.h"
#include "test/emulation/Devices.h"
#include "test/emulation/Memory.h"
#include "test/emulation/NcclComm.h"

namespace sheaf::emulation {
namespace {

constexpr size_t kCommunicatorBytes = 16 << 20;  // without connections
constexpr size_t kPage = 2 << 20;                // of the symmetric address space

bool is227() {
  return emulatedVersion() < NCCL_VERSION(2, 28, 0);
}

std::chrono::milliseconds delay(const char* name) {
  const char* value = std::getenv(name);
  return std::chrono::milliseconds(value ? std::atoi(value) : 0);
}

// Windows of all communicators of the process: their memory must not be freed. Of memory that was a window: whether
// all ranks have released it.
struct Registry {
  std::mutex mutex;
  std::vector<std::pair<const ncclComm*, const char*>> windows;
  std::map<const void*, std::function<bool()>> released;

  void remove(const ncclComm* comm, const char* begin) {
    std::lock_guard lock(mutex);
    std::erase_if(windows, [&](auto& each) { return each.first == comm && (!begin || each.second == begin); });
  }
};
Registry& registry() {
  static Registry& registry = *new Registry;
  return registry;
}

ncclResult_t getUniqueId(ncclUniqueId* id) {
  const char* folder = std::getenv("TMPDIR");
  std::string path = cat(folder ? folder : "/tmp", "/sheaf-nccl-XXXXXX");
  if (path.size() >= sizeof id->internal) return ncclSystemError;
  const int file = mkstemp(path.data());
  if (file < 0) return ncclSystemError;
  close(file);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, path.data(), path.size());
  return ncclSuccess;
}

bool map(ncclComm& comm) {
  const size_t bytes =
      sizeof(Shared) + static_cast<size_t>(comm.ranks) * static_cast<size_t>(comm.ranks) * sizeof(Mailbox);
  const int file = open(comm.path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return false;
  comm.shared.reset(static_cast<Shared*>(memory), [bytes](Shared* shared) { munmap(shared, bytes); });
  return true;
}

// The last one to join takes the file's name away: nothing is left behind, however the processes end.
ncclResult_t commInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;  // the real one would not come back when a rank is missing
  auto made = std::make_unique<ncclComm>();
  made->path = id.internal;
  made->rank = rank;
  made->ranks = ranks;
  useContext("ncclCommInitRankConfig");
  made->device = currentDevice();
  made->ctaPolicy = config->CTAPolicy;
  if (!map(*made)) return ncclSystemError;
  if (!takeDeviceMemory(kCommunicatorBytes)) return ncclUnhandledCudaError;
  made->deviceBytes = kCommunicatorBytes;
  if (made->shared->joined.fetch_add(1) + 1 == ranks) unlink(made->path.c_str());
  *comm = made.release();
  return begin(*comm, [comm = *comm] { return comm->shared->joined == comm->ranks ? ncclSuccess : ncclInProgress; });
}

ncclResult_t commGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  Use use(comm, "ncclCommGetAsyncError");
  if (comm->pending) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // as the real one waits for its thread to end
    *result = comm->asked ? comm->pending() : ncclInProgress;
    comm->asked = true;
    if (*result == ncclInProgress) return ncclSuccess;
    comm->pending = nullptr;
    comm->error = *result;
  }
  *result = comm->error;
  return ncclSuccess;
}

ncclResult_t commFinalize(ncclComm_t comm) {
  Use use(comm, "ncclCommFinalize");
  if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  return begin(comm, [comm] { return comm->graphs == 0 ? ncclSuccess : ncclInProgress; });
}

void dropMemory(ncclComm& comm) {
  registry().remove(&comm, nullptr);
  comm.windows.clear();
  giveDeviceMemory(comm.deviceBytes);
}

ncclResult_t commDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  useContext("ncclCommDestroy", comm->device);
  {
    Use use(comm, "ncclCommDestroy");
    if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  }
  awaitKernels(comm->rank);
  dropMemory(*comm);
  delete comm;
  return ncclSuccess;
}

// Blocks until the graphs that captured the communicator are gone, and, when it frees memory, until the GPU is idle.
// Its tasks may still look at it: it stays.
ncclResult_t commAbort(ncclComm_t comm) {
  static std::mutex mutex;
  static auto& aborted = *new std::vector<ncclComm_t>;
  if (!comm) return ncclSuccess;
  // It goes back to its thread's device at the end, and cudaSetDevice makes that device's context (group.cc,
  // ncclGroupEndInternal: savedDev).
  useContext("ncclCommAbort", comm->device);
  Use use(comm, "ncclCommAbort");
  comm->aborted = true;
  comm->pending = nullptr;
  if (comm->shared->joined < comm->ranks) unlink(comm->path.c_str());
  while (comm->graphs > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  awaitKernels(comm->rank);
  std::this_thread::sleep_for(delay("SHEAF_EMULATED_NCCL_ABORT"));
  dropMemory(*comm);
  std::lock_guard lock(mutex);
  aborted.push_back(comm);
  return ncclSuccess;
}

const char* getErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclInvalidArgument:
      return "invalid argument";
    default:
      return "an emulated error";
  }
}

const char* getLastError(ncclComm_t) {
  return "";
}

ncclResult_t memAlloc(void** address, size_t bytes) {
  return allocateShareable(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t memFree(void* address) {
  useContext("ncclMemFree");
  std::function<bool()> unmapped = [] { return true; };
  {
    std::lock_guard lock(registry().mutex);
    for (auto& [comm, begin] : registry().windows)
      if (begin == address) violated("memory is freed that is still registered as a window");
    if (auto window = registry().released.extract(address)) unmapped = std::move(window.mapped());
  }
  return releaseShareable(address, std::move(unmapped)) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// From 2.28 on it returns success at once: that it is done, and its handle written, only a poll says.
ncclResult_t commWindowRegister(ncclComm_t comm, void* address, size_t bytes, ncclWindow_t* window, int flags) {
  Use use(comm, "ncclCommWindowRegister");
  if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  const std::byte* base = shareableAllocation(address, bytes);
  if (!base) return ncclUnhandledCudaError;
  if ((static_cast<std::byte*>(address) - base) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) return ncclInvalidArgument;
  ++comm->shared->registrations;
  const int all = ++comm->registrations * comm->ranks;
  const auto done = std::chrono::steady_clock::now() + delay("SHEAF_EMULATED_NCCL_REGISTRATION");
  const ncclResult_t begun = begin(comm, [=]() -> ncclResult_t {
    if (comm->shared->registrations < all || std::chrono::steady_clock::now() < done) return ncclInProgress;
    const char* begin = static_cast<const char*>(address);
    size_t offset = 0;
    if (!takeSpace(*comm, bytes, &offset)) return ncclInternalError;
    comm->windows.push_back({begin, bytes, (flags & NCCL_WIN_COLL_SYMMETRIC) != 0, offset});
    std::lock_guard lock(registry().mutex);
    registry().windows.emplace_back(comm, begin);
    *window = static_cast<ncclWindow_t>(address);
    return ncclSuccess;
  });
  return is227() ? begun : ncclSuccess;
}

ncclResult_t commWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  Use use(comm, "ncclCommWindowDeregister");
  if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  if (std::getenv("SHEAF_EMULATED_NCCL_RELEASE_FAILS")) return ncclSystemError;
  const char* begin = reinterpret_cast<const char*>(window);
  auto found =
      std::find_if(comm->windows.begin(), comm->windows.end(), [&](auto& each) { return each.begin == begin; });
  if (found == comm->windows.end()) return ncclInvalidArgument;
  std::this_thread::sleep_for(comm->rank * delay("SHEAF_EMULATED_NCCL_RELEASE"));
  if (!is227()) comm->space.erase(found->offset);
  comm->windows.erase(found);
  registry().remove(comm, begin);
  ++comm->shared->releases;
  const int all = ++comm->releases * comm->ranks;
  std::lock_guard lock(registry().mutex);
  registry().released[begin] = [shared = comm->shared, all] { return shared->releases >= all; };
  return ncclSuccess;
}

}  // namespace

void report(const std::string& rule) {
  std::fprintf(stderr, "emulated NCCL: %s\n", rule.c_str());
}

void violated(const std::string& rule) {
  report(rule);
  std::abort();
}

Use::Use(ncclComm* comm, const char* function) : comm_(comm) {
  if (comm->inside.exchange(true))
    violated(cat(function, " is called while another thread is in the same communicator"));
}

ncclResult_t ready(const ncclComm& comm) {
  if (comm.pending) {
    report("a communicator is used before the previous call is done");
    return ncclInvalidArgument;
  }
  return comm.error;
}

ncclResult_t begin(ncclComm* comm, std::function<ncclResult_t()> job) {
  comm->pending = std::move(job);
  comm->asked = false;
  return ncclInProgress;
}

int emulatedVersion() {
  const char* version = std::getenv("SHEAF_EMULATED_NCCL");  // 2.MINOR
  return version ? NCCL_VERSION(2, std::atoi(version + 2), 0) : NCCL_VERSION_CODE;
}

bool takeSpace(ncclComm& comm, size_t bytes, size_t* offset) {
  const char* given = std::getenv("SHEAF_EMULATED_NCCL_SPACE");
  const size_t all = given ? std::strtoull(given, nullptr, 10) : (deviceMemory() + kPage - 1) / kPage * kPage;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  *offset = 0;
  for (const auto& [begin, size] : comm.space) {
    if (begin - *offset >= bytes) break;
    *offset = begin + size;
  }
  if (*offset + bytes > all) return false;
  comm.space[*offset] = bytes;
  return true;
}

bool inWindow(const ncclComm& comm, const void* address, size_t bytes, bool symmetric) {
  const char* begin = static_cast<const char*>(address);
  return std::any_of(comm.windows.begin(), comm.windows.end(), [&](const Window& each) {
    return each.begin <= begin && begin + bytes <= each.begin + each.bytes && (each.symmetric || !symmetric);
  });
}

}  // namespace sheaf::emulation

namespace sheaf::nccl {

// The table of the emulated version: before 2.27 it has no windows.
Expected<const Api*> loadNccl() {
  static std::mutex mutex;
  static auto& versions = *new std::map<int, Api>;
  std::lock_guard lock(mutex);
  const int version = emulation::emulatedVersion();
  const auto [entry, isNew] = versions.try_emplace(version);
  Api& api = entry->second;
  if (!isNew) return &api;
  api = {.version = version,
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
         .groupEnd = emulation::groupEnd};
  if (version >= NCCL_VERSION(2, 27, 0)) {
    api.memAlloc = emulation::memAlloc;
    api.memFree = emulation::memFree;
    api.commWindowRegister = emulation::commWindowRegister;
    api.commWindowDeregister = emulation::commWindowDeregister;
  }
  return &api;
}

}  // namespace sheaf::nccl
