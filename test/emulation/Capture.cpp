// The emulated CUDA runtime: graphs captured from streams.
#include <cuda_runtime_api.h>

#include <atomic>
#include <random>

#include "test/emulation/Stream.h"

using sheaf::emulation::Capture;
using sheaf::emulation::inCapture;
using sheaf::emulation::inHostFunction;

namespace sheaf::emulation {

// One node after the other, the next one drawn from those whose predecessors are done. Nodes that wait for other GPUs
// run on threads of their own: on a GPU, too, they do not hold up the rest.
void Capture::run() const {
  static std::atomic<uint32_t> launches{0};
  std::mt19937 random(launches++);
  std::vector<size_t> missing(nodes.size()), ready;
  std::vector<std::vector<size_t>> next(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    missing[i] = nodes[i].after.size();
    for (size_t before : nodes[i].after) next[before].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> waiting;
  auto perform = [&](size_t i) {
    nodes[i].task();
    std::lock_guard lock(mutex);
    for (size_t each : next[i])
      if (--missing[each] == 0) ready.push_back(each);
    changed.notify_one();
  };
  for (size_t begun = 0; begun < nodes.size(); ++begun) {
    size_t chosen;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !ready.empty(); });
      std::swap(ready[random() % ready.size()], ready.back());
      chosen = ready.back();
      ready.pop_back();
    }
    if (nodes[chosen].waits)
      waiting.emplace_back(perform, chosen);
    else
      perform(chosen);
  }
  for (std::thread& thread : waiting) thread.join();
}

}  // namespace sheaf::emulation

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
  return sheaf::emulation::enqueue(stream, [capture = instance->capture] { capture->run(); });
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
