// The emulated CUDA runtime: devices, streams, events and host functions.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "test/emulation/Kernels.h"
#include "test/emulation/Memory.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {
namespace {

int fromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

// The machine's devices that this process sees, as CUDA_VISIBLE_DEVICES lists them: an index that is not one ends the
// list (CUDA Programming Guide, "CUDA Environment Variables"). A variable of its own, because the host's own GPUs have
// nothing to do with these.
std::vector<int> visibleDevices() {
  const int count = fromEnvironment("SHEAF_EMULATED_DEVICES", 1);
  const char* listed = std::getenv("SHEAF_EMULATED_VISIBLE_DEVICES");
  std::vector<int> devices;
  if (!listed) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::istringstream text(listed);
  for (std::string one; std::getline(text, one, ',');) {
    char* end = nullptr;
    const long index = std::strtol(one.c_str(), &end, 10);
    if (one.empty() || *end || index < 0 || index >= count) break;
    devices.push_back(static_cast<int>(index));
  }
  return devices;
}

int devices() {
  return static_cast<int>(visibleDevices().size());
}

thread_local int currentDevice = 0;

}  // namespace

int deviceArchitecture() {
  return fromEnvironment("SHEAF_EMULATED_ARCHITECTURE", 90);  // an H100's
}

thread_local constinit bool inHostFunction = false;
thread_local constinit bool inCapture = false;
thread_local constinit KernelPosition position;

void Record::reach() {
  std::lock_guard lock(mutex);
  reached = true;
  time = std::chrono::steady_clock::now();
  changed.notify_all();
}

void Record::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return reached; });
}

cudaError_t enqueue(cudaStream_t stream, Task task, bool waits) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream) return cudaErrorInvalidResourceHandle;  // the default stream is not for work that overlaps
  if (std::shared_ptr<Capture>& capture = stream->capture) {
    Capture::Position& known = capture->joined[stream];
    Capture::Node node{std::move(task), {}, waits};
    for (auto [other, done] : known) node.after.push_back(done - 1);
    capture->nodes.push_back(std::move(node));
    known[stream] = capture->nodes.size();
    return cudaSuccess;
  }
  stream->push(std::move(task));
  return cudaSuccess;
}

cudaError_t launchKernel(cudaStream_t stream, dim3 blocks, dim3 threads, size_t sharedBytes,
                         std::function<void()> kernel) {
  uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > 1024 || threads.z > 64 || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
      blocks.x > INT32_MAX || blocks.y > 65535 || blocks.z > 65535 || sharedBytes > (227 << 10))
    return cudaErrorInvalidConfiguration;
  return enqueue(stream, [=, kernel = std::move(kernel)] {
    position.grid = blocks;
    position.threads = threads;
    for (uint32_t z = 0; z < blocks.z; ++z)
      for (uint32_t y = 0; y < blocks.y; ++y)
        for (uint32_t x = 0; x < blocks.x; ++x) {
          position.block = {x, y, z};
          runBlock(static_cast<int>(count), sharedBytes, [&](int) { kernel(); });
        }
  });
}

}  // namespace sheaf::emulation

using namespace sheaf::emulation;

CUstream_st::CUstream_st()
    : thread([this] {
        std::unique_lock lock(mutex);
        for (;;) {
          filled.wait(lock, [this] { return !queue.empty() || stop; });
          if (queue.empty()) return;
          Task task = std::move(queue.front());
          queue.pop_front();
          lock.unlock();
          task();
          task = nullptr;
          lock.lock();
          ++done;
          emptied.notify_all();
        }
      }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(mutex);
    stop = true;
  }
  filled.notify_one();
  thread.join();
}

void CUstream_st::push(Task task) {
  std::lock_guard lock(mutex);
  queue.push_back(std::move(task));
  ++pushed;
  filled.notify_one();
}

void CUstream_st::drain() {
  std::unique_lock lock(mutex);
  emptied.wait(lock, [this] { return done == pushed; });
}

bool CUstream_st::idle() {
  std::lock_guard lock(mutex);
  return done == pushed;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  currentDevice = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = currentDevice;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->uuid.bytes[0] = static_cast<char>(visibleDevices()[static_cast<size_t>(device)]);
  properties->major = deviceArchitecture() / 10;
  properties->minor = deviceArchitecture() % 10;
  properties->multiProcessorCount = 4;
  properties->warpSize = 32;
  properties->sharedMemPerBlockOptin = 227 << 10;
  size_t free = 0;
  return cudaMemGetInfo(&free, &properties->totalGlobalMem);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrHostNumaId:
      *value = fromEnvironment("SHEAF_EMULATED_NODE", -1);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "an emulated error";
  }
}

// Errors are returned only, never kept for later.
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) return cudaErrorInvalidValue;
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (restricted()) return cudaErrorNotPermitted;
  if (!stream) return cudaSuccess;
  if (stream->capture) return cudaErrorStreamCaptureUnsupported;
  stream->drain();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (restricted()) return cudaErrorNotPermitted;
  if (stream && stream->capture) return cudaErrorStreamCaptureUnsupported;
  return !stream || stream->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  *event = new CUevent_st;
  (*event)->timed = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream) return cudaErrorInvalidResourceHandle;
  auto record = std::make_shared<Record>();
  if (stream->capture) {
    record->capture = stream->capture;
    record->position = stream->capture->joined[stream];
  } else {
    stream->push([record] { record->reach(); });
  }
  std::lock_guard lock(event->mutex);
  event->latest = std::move(record);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream) return cudaErrorInvalidResourceHandle;
  std::shared_ptr<Record> record = event->last();
  if (!record) return cudaSuccess;
  if (!record->capture) {
    if (stream->capture) return cudaErrorStreamCaptureIsolation;
    stream->push([record] { record->wait(); });
    return cudaSuccess;
  }
  // A record of a graph that has been captured already says nothing to a stream.
  if (!record->capture->origin) return cudaErrorCapturedEvent;
  if (!stream->capture) stream->capture = record->capture;
  if (stream->capture != record->capture) return cudaErrorStreamCaptureIsolation;
  Capture::Position& position = stream->capture->joined[stream];
  for (auto [other, done] : record->position) position[other] = std::max(position[other], done);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (restricted()) return cudaErrorNotPermitted;
  std::shared_ptr<Record> record = event->last();
  if (!record) return cudaSuccess;
  if (record->capture) return cudaErrorCapturedEvent;
  std::lock_guard lock(record->mutex);
  return record->reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (restricted()) return cudaErrorNotPermitted;
  std::shared_ptr<Record> record = event->last();
  if (!record) return cudaSuccess;
  if (record->capture) return cudaErrorCapturedEvent;
  record->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->timed || !end->timed || cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess)
    return cudaErrorInvalidResourceHandle;
  *milliseconds = std::chrono::duration<float, std::milli>(end->last()->time - begin->last()->time).count();
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, [function, data] {
    inHostFunction = true;
    function(data);
    inHostFunction = false;
  });
}

}  // extern "C"
