// The emulated CUDA runtime: streams, events and host functions.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "test/emulation/Devices.h"
#include "test/emulation/Kernels.h"
#include "test/emulation/Memory.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {
namespace {

std::mutex& orderMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

void addTo(Position& into, const Position& from) {
  for (auto [stream, done] : from) into[stream] = std::max(into[stream], done);
}

}  // namespace

thread_local constinit bool inHostFunction = false;
thread_local constinit Capture* threadCapture = nullptr;
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

cudaError_t invalidate(const std::shared_ptr<Capture>& capture, cudaError_t error) {
  capture->invalid = true;
  return error;
}

cudaError_t mayWait() {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!threadCapture) return cudaSuccess;
  threadCapture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t mayAsk(cudaStream_t stream) {
  if (cudaError_t error = mayWait()) return error;
  return stream && stream->capture ? invalidate(stream->capture, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, Task task, bool waits) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream) return cudaErrorInvalidResourceHandle;  // the default stream is not for work that overlaps
  if (std::shared_ptr<Capture>& capture = stream->capture) {
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    Position& known = capture->joined[stream];
    Capture::Node node{std::move(task), {}, waits};
    for (auto [other, done] : known) node.after.push_back(done - 1);
    capture->nodes.push_back(std::move(node));
    known[stream] = capture->nodes.size();
    return cudaSuccess;
  }
  stream->push(std::move(task));
  return cudaSuccess;
}

cudaError_t record(cudaStream_t stream, std::shared_ptr<Record>& result) {
  auto record = std::make_shared<Record>();
  record->stream = stream;
  if (stream->capture) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    record->captured = true;
    record->capture = stream->capture;
    record->position = stream->capture->joined[stream];
  } else {
    {
      std::lock_guard lock(orderMutex());
      ++stream->seen[stream];
      record->position = stream->seen;
    }
    stream->push([record] { record->reach(); });
  }
  result = std::move(record);
  return cudaSuccess;
}

cudaError_t await(cudaStream_t stream, const std::shared_ptr<Record>& record) {
  if (stream->capture && stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!record->captured) {
    if (stream->capture) return invalidate(stream->capture, cudaErrorStreamCaptureIsolation);
    {
      std::lock_guard lock(orderMutex());
      addTo(stream->seen, record->position);
    }
    stream->push([record] { record->wait(); });
    return cudaSuccess;
  }
  // A record of a graph that has been captured already says nothing to a stream.
  const std::shared_ptr<Capture> capture = record->capture.lock();
  if (!capture || !capture->origin) return cudaErrorCapturedEvent;
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!stream->capture) stream->capture = capture;
  if (stream->capture != capture) {
    invalidate(capture, cudaErrorStreamCaptureMerge);
    return invalidate(stream->capture, cudaErrorStreamCaptureMerge);
  }
  addTo(stream->capture->joined[stream], record->position);
  return cudaSuccess;
}

bool comesAfter(cudaStream_t stream, const std::shared_ptr<Record>& record) {
  auto known = [&](const Position& position) {
    const Position& before = record->position;
    const auto wanted = before.find(record->stream), found = position.find(record->stream);
    return wanted == before.end() || (found != position.end() && found->second >= wanted->second);
  };
  if (stream->capture) return known(stream->capture->joined[stream]);
  {
    std::lock_guard lock(record->mutex);
    if (record->reached) return true;
  }
  std::lock_guard lock(orderMutex());
  return known(stream->seen);
}

cudaError_t launchKernel(cudaStream_t stream, dim3 blocks, dim3 threads, size_t sharedBytes,
                         std::function<void()> kernel) {
  uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > 1024 || threads.z > 64 || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
      blocks.x > INT32_MAX || blocks.y > 65535 || blocks.z > 65535 || sharedBytes > (227 << 10))
    return cudaErrorInvalidConfiguration;
  if (stream && !inHostFunction) useContext("cudaLaunchKernel", stream->device);
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

// Returns an error if the thread must not ask for the event or wait for it now.
static cudaError_t mayAskEvent(cudaEvent_t event, const char* function) {
  if (cudaError_t error = mayWait()) return error;
  useContext(function, event->device);
  std::shared_ptr<Record> record = event->last();
  if (!record || !record->captured) return cudaSuccess;
  if (std::shared_ptr<Capture> capture = record->capture.lock()) capture->invalid = true;
  return cudaErrorCapturedEvent;
}

}  // namespace sheaf::emulation

using namespace sheaf::emulation;

CUstream_st::CUstream_st(int device)
    : device(device), thread([this] {
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

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driverVersion();
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
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "an emulated error";
  }
}

// Errors are returned only, never kept for later.
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  useContext("cudaDeviceGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  useContext("cudaStreamCreateWithPriority");
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) return cudaErrorInvalidValue;
  *stream = new CUstream_st(currentDevice());
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  useContext("cudaStreamDestroy", stream->device);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (cudaError_t error = mayAsk(stream)) return error;
  if (!stream) return useContext("cudaStreamSynchronize"), cudaSuccess;
  useContext("cudaStreamSynchronize", stream->device);
  stream->drain();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (cudaError_t error = mayAsk(stream)) return error;
  if (!stream) return useContext("cudaStreamQuery"), cudaSuccess;
  useContext("cudaStreamQuery", stream->device);
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  useContext("cudaEventCreateWithFlags");
  *event = new CUevent_st(currentDevice());
  (*event)->timed = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  useContext("cudaEventDestroy", event->device);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream) return cudaErrorInvalidResourceHandle;
  useContext("cudaEventRecord", stream->device);
  // CUDA Programming Guide, "Stream and Event Behavior": they belong to one device.
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  std::shared_ptr<Record> made;
  if (cudaError_t error = record(stream, made)) return error;
  std::lock_guard lock(event->mutex);
  event->latest = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream) return cudaErrorInvalidResourceHandle;
  useContext("cudaStreamWaitEvent", stream->device);
  std::shared_ptr<Record> record = event->last();
  return record ? await(stream, record) : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (cudaError_t error = mayAskEvent(event, "cudaEventQuery")) return error;
  std::shared_ptr<Record> record = event->last();
  if (!record) return cudaSuccess;
  std::lock_guard lock(record->mutex);
  return record->reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (cudaError_t error = mayAskEvent(event, "cudaEventSynchronize")) return error;
  if (std::shared_ptr<Record> record = event->last()) record->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->timed || !end->timed || cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess)
    return cudaErrorInvalidResourceHandle;
  *milliseconds = std::chrono::duration<float, std::milli>(end->last()->time - begin->last()->time).count();
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (stream && !inHostFunction) useContext("cudaLaunchHostFunc", stream->device);
  return enqueue(stream, [function, data] {
    inHostFunction = true;
    function(data);
    inHostFunction = false;
  });
}

}  // extern "C"
