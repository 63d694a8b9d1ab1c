// Streams, events and memory that go with their owners.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "runtime/device/cuda/Check.h"

namespace sheaf::cuda {

template <auto release>
struct Releaser {
  template <typename T>
  void operator()(T* resource) const {
    (void)release(resource);
  }
};

using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Releaser<cudaStreamDestroy>>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Releaser<cudaEventDestroy>>;
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Releaser<cudaGraphDestroy>>;
using GraphInstance = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Releaser<cudaGraphExecDestroy>>;
using DeviceMemory = std::unique_ptr<std::byte, Releaser<cudaFree>>;
using PinnedMemory = std::unique_ptr<std::byte, Releaser<cudaFreeHost>>;

inline Expected<Event> makeEvent(bool timed = false) {
  cudaEvent_t event = nullptr;
  SHEAF_RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
                              "cannot create an event"));
  return Event(event);
}

// Zeroed; the device reaches it at the same address.
inline Expected<PinnedMemory> makePinned(size_t bytes) {
  void* memory = nullptr;
  SHEAF_RETURN_IF_ERROR(check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                              "cannot allocate pinned host memory"));
  std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0});
  return PinnedMemory(static_cast<std::byte*>(memory));
}

inline Expected<DeviceMemory> makeDeviceMemory(size_t bytes, const char* what) {
  void* memory = nullptr;
  SHEAF_RETURN_IF_ERROR(check(cudaMalloc(&memory, bytes), what));
  return DeviceMemory(static_cast<std::byte*>(memory));
}

// What is done to memory by cudaMemset and the like need not be done when the call returns, and our streams do not
// wait for it.
inline Status fill(std::byte* memory, int value, size_t bytes) {
  SHEAF_RETURN_IF_ERROR(check(cudaMemset(memory, value, bytes), "cannot fill device memory"));
  return check(cudaStreamSynchronize(nullptr), "cannot fill device memory");
}

}  // namespace sheaf::cuda
