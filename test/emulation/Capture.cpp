// The emulated CUDA runtime: graphs captured from streams. A graph's tasks run one after the other.
#include <cuda_runtime_api.h>

#include "test/emulation/Stream.h"

using sheaf::emulation::Capture;
using sheaf::emulation::inCapture;
using sheaf::emulation::inHostFunction;
using sheaf::emulation::Task;

struct CUgraph_st {
  std::shared_ptr<Capture> capture;
};
struct CUgraphExec_st {
  std::shared_ptr<Capture> capture;
};

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (inHostFunction) return cudaErrorNotPermitted;
  if (!stream || stream->capture) return cudaErrorIllegalState;
  inCapture = true;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->joined[stream];
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (inHostFunction) return cudaErrorNotPermitted;
  std::shared_ptr<Capture> capture = stream->capture;
  if (!capture || capture->origin != stream) return cudaErrorIllegalState;
  inCapture = false;
  const Capture::Position known = capture->joined[stream];
  bool unjoined = false;
  for (auto& [other, position] : capture->joined) {
    other->capture = nullptr;
    auto seen = known.find(other);
    auto done = position.find(other);
    if (done != position.end() && (seen == known.end() || seen->second < done->second)) unjoined = true;
  }
  capture->origin = nullptr;
  if (unjoined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{capture};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream && stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long flags) {
  if (flags != cudaGraphInstantiateFlagUseNodePriority) return cudaErrorInvalidValue;
  *instance = new CUgraphExec_st{graph->capture};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  return sheaf::emulation::enqueue(stream, [capture = instance->capture] {
    for (const Task& task : capture->tasks) task();
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  delete instance;
  return cudaSuccess;
}

}  // extern "C"
