// The emulated CUDA runtime: device and pinned memory, both of the host. Memory is pinned by allocating it so, or by
// registering the caller's; there is a limit to what can be. An asynchronous copy must be
// between device memory and pinned memory, or within device memory: what a real runtime would stage, or wait for, is
// an error here. New memory is full of garbage.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "test/emulation/Devices.h"
#include "test/emulation/Memory.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {
namespace {

constexpr int kGarbage = 0xCB;
constexpr size_t kAlignment = 4096;

struct Memory {
  std::mutex mutex;
  std::map<const std::byte*, size_t> device, shareable, pinned, registered;  // address and bytes
  size_t used = 0;                                                           // on the device
  size_t locked = 0;                                                         // of the host
  // Released memory that other GPUs may still have mapped: whether they have not, and its bytes.
  std::vector<std::pair<std::function<bool()>, size_t>> mapped;

  size_t free() {
    std::erase_if(mapped, [this](auto& each) {
      if (!each.first()) return false;
      used -= each.second;
      return true;
    });
    return deviceMemory() - std::min(deviceMemory(), used);
  }

  static bool has(const std::map<const std::byte*, size_t>& ranges, const void* address, size_t bytes) {
    const std::byte* begin = static_cast<const std::byte*>(address);
    auto after = ranges.upper_bound(begin);
    if (after == ranges.begin()) return false;
    auto range = std::prev(after);
    return begin + bytes <= range->first + range->second;
  }
  bool onDevice(const void* address, size_t bytes) {
    std::lock_guard lock(mutex);
    return has(device, address, bytes) || has(shareable, address, bytes);
  }
  bool isPinned(const void* address, size_t bytes) {
    std::lock_guard lock(mutex);
    return has(pinned, address, bytes) || has(registered, address, bytes);
  }
  // Any of these bytes.
  static bool touches(const std::map<const std::byte*, size_t>& ranges, const void* address, size_t bytes) {
    const std::byte* begin = static_cast<const std::byte*>(address);
    auto after = ranges.lower_bound(begin + bytes);
    return after != ranges.begin() && std::prev(after)->first + std::prev(after)->second > begin;
  }
};

// Never destroyed: contexts may be closed while the program ends.
Memory& memory() {
  static Memory& memory = *new Memory;
  return memory;
}

cudaError_t allocate(std::map<const std::byte*, size_t>& ranges, void** address, size_t bytes) {
  size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *address = bytes == 0 ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (bytes == 0) return cudaSuccess;
  if (!*address) return cudaErrorMemoryAllocation;
  std::memset(*address, kGarbage, rounded);
  ranges[static_cast<std::byte*>(*address)] = bytes;
  return cudaSuccess;
}

cudaError_t release(std::map<const std::byte*, size_t>& ranges, void* address, size_t* bytes) {
  if (!address) return cudaSuccess;
  auto found = ranges.find(static_cast<std::byte*>(address));
  if (found == ranges.end()) return cudaErrorInvalidValue;
  if (bytes) *bytes = found->second;
  ranges.erase(found);
  std::free(address);
  return cudaSuccess;
}

bool rightPlaces(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  bool toDevice = memory().onDevice(to, bytes), fromDevice = memory().onDevice(from, bytes);
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return toDevice && !fromDevice;
    case cudaMemcpyDeviceToHost:
      return !toDevice && fromDevice;
    case cudaMemcpyDeviceToDevice:
      return toDevice && fromDevice;
    default:
      return true;
  }
}

}  // namespace

static size_t fromEnvironment(const char* name, size_t otherwise) {
  const char* bytes = std::getenv(name);
  return bytes ? std::strtoull(bytes, nullptr, 10) : otherwise;
}

size_t deviceMemory() {
  return fromEnvironment("SHEAF_EMULATED_MEMORY", size_t{16} << 30);
}

// What the host lets be pinned, and what can be registered in one call.
static size_t pinnableMemory() {
  return fromEnvironment("SHEAF_EMULATED_PINNABLE", size_t{64} << 30);
}
static size_t registrableMemory() {
  return fromEnvironment("SHEAF_EMULATED_REGISTRABLE", (size_t{512} << 30) - 1);
}

bool takeDeviceMemory(size_t bytes) {
  std::lock_guard lock(memory().mutex);
  if (bytes > memory().free()) return false;
  memory().used += bytes;
  return true;
}

void giveDeviceMemory(size_t bytes) {
  std::lock_guard lock(memory().mutex);
  memory().used -= bytes;
}

// Device memory of one kind.
static cudaError_t allocateOnDevice(std::map<const std::byte*, size_t>& kind, void** address, size_t bytes) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaMalloc");
  if (!takeDeviceMemory(bytes)) return cudaErrorMemoryAllocation;
  std::lock_guard lock(memory().mutex);
  return allocate(kind, address, bytes);
}

cudaError_t allocateShareable(void** address, size_t bytes) {
  return allocateOnDevice(memory().shareable, address, bytes);
}

cudaError_t releaseShareable(void* address, std::function<bool()> unmapped) {
  std::lock_guard lock(memory().mutex);
  size_t bytes = 0;
  const cudaError_t result = release(memory().shareable, address, &bytes);
  if (result == cudaSuccess) memory().mapped.emplace_back(std::move(unmapped), bytes);
  return result;
}

const std::byte* shareableAllocation(const void* address, size_t bytes) {
  std::lock_guard lock(memory().mutex);
  if (!Memory::has(memory().shareable, address, bytes)) return nullptr;
  return std::prev(memory().shareable.upper_bound(static_cast<const std::byte*>(address)))->first;
}

}  // namespace sheaf::emulation

using namespace sheaf::emulation;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaMemGetInfo");
  std::lock_guard lock(memory().mutex);
  *all = deviceMemory();
  *free = memory().free();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return allocateOnDevice(memory().device, address, bytes);
}

cudaError_t cudaFree(void* address) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaFree");
  std::lock_guard lock(memory().mutex);
  size_t bytes = 0;
  const cudaError_t result = release(memory().device, address, &bytes);
  memory().used -= bytes;
  return result;
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned int flags) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaHostAlloc");
  std::lock_guard lock(memory().mutex);
  if (bytes > pinnableMemory() - std::min(pinnableMemory(), memory().locked)) return cudaErrorMemoryAllocation;
  memory().locked += bytes;
  return allocate(memory().pinned, address, bytes);
}

cudaError_t cudaFreeHost(void* address) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaFreeHost");
  std::lock_guard lock(memory().mutex);
  size_t bytes = 0;
  const cudaError_t result = release(memory().pinned, address, &bytes);
  memory().locked -= bytes;
  return result;
}

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned int flags) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaHostRegister");
  if (!address || bytes == 0 || flags != cudaHostRegisterDefault) return cudaErrorInvalidValue;
  std::lock_guard lock(memory().mutex);
  Memory& known = memory();
  if (Memory::touches(known.registered, address, bytes) || Memory::touches(known.pinned, address, bytes))
    return cudaErrorHostMemoryAlreadyRegistered;
  if (bytes > registrableMemory() || bytes > pinnableMemory() - std::min(pinnableMemory(), known.locked))
    return cudaErrorMemoryAllocation;
  known.locked += bytes;
  known.registered[static_cast<std::byte*>(address)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaHostUnregister");
  std::lock_guard lock(memory().mutex);
  auto found = memory().registered.find(static_cast<std::byte*>(address));
  if (found == memory().registered.end()) return cudaErrorHostMemoryNotRegistered;
  memory().locked -= found->second;
  memory().registered.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaMemcpy");
  if (bytes == 0) return cudaSuccess;
  if (!rightPlaces(to, from, bytes, kind)) return cudaErrorInvalidValue;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (stream && !inHostFunction) useContext("cudaMemcpyAsync", stream->device);
  if (!rightPlaces(to, from, bytes, kind)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyHostToDevice && !memory().isPinned(from, bytes)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToHost && !memory().isPinned(to, bytes)) return cudaErrorInvalidValue;
  return enqueue(stream, [=] { std::memmove(to, from, bytes); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (cudaError_t error = mayWait()) return error;
  useContext("cudaMemset");
  if (bytes == 0) return cudaSuccess;
  if (!memory().onDevice(to, bytes)) return cudaErrorInvalidValue;
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (stream && !inHostFunction) useContext("cudaMemsetAsync", stream->device);
  if (!memory().onDevice(to, bytes)) return cudaErrorInvalidValue;
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}

}  // extern "C"
