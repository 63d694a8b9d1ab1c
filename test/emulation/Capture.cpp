// The emulated CUDA runtime: graphs captured from streams.
#include <cuda_runtime_api.h>

#include <atomic>
#include <random>

#include "test/emulation/Collectives.h"
#include "test/emulation/Devices.h"
#include "test/emulation/Stream.h"

using namespace sheaf::emulation;

namespace sheaf::emulation {

void Capture::findCollectives() {
  // The collectives that come before each node.
  std::vector<std::vector<bool>> before(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::vector<bool> done(collectives.size());
    for (size_t each : nodes[i].after)
      for (size_t k = 0; k < before[each].size(); ++k) done[k] = done[k] || before[each][k];
    if (nodes[i].waits) {
      collectives.push_back({i, done});
      done.push_back(true);
    }
    before[i] = std::move(done);
  }
}

std::vector<size_t> Capture::orderOfCollectives(uint32_t launch) const {
  std::mt19937 random(launch * 1009 + static_cast<uint32_t>(machineDevice(device)));
  std::vector<size_t> order;
  std::vector<bool> drawn(collectives.size());
  while (order.size() < collectives.size()) {
    std::vector<size_t> possible;
    for (size_t i = 0; i < collectives.size(); ++i) {
      bool all = !drawn[i];
      for (size_t k = 0; all && k < collectives[i].after.size(); ++k) all = drawn[k] || !collectives[i].after[k];
      if (all) possible.push_back(i);
    }
    order.push_back(possible[random() % possible.size()]);
    drawn[order.back()] = true;
  }
  return order;
}

// One node after the other, the next one drawn from those whose predecessors are done. Nodes that wait for other GPUs
// run on threads of their own: on a GPU, too, they do not hold up the rest. But it runs one of them at a time, in an
// order that respects the edges and is drawn for each device and launch: "independent branches" may run one after the
// other, in an order that nothing states (CUDA Programming Guide, CUDA Graphs, "Graph Structure").
void Capture::run() const {
  static std::atomic<uint32_t> launches{0};
  const uint32_t launch = launches++;
  std::mt19937 random(launch);
  std::vector<size_t> missing(nodes.size()), ready, turns(nodes.size());
  std::vector<std::vector<size_t>> next(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    missing[i] = nodes[i].after.size();
    for (size_t before : nodes[i].after) next[before].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  const std::vector<size_t> order = orderOfCollectives(launch);
  for (size_t turn = 0; turn < order.size(); ++turn) turns[collectives[order[turn]].node] = turn;
  size_t turn = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> waiting;
  auto perform = [&](size_t i) {
    if (nodes[i].waits) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return turn == turns[i]; });
    }
    nodes[i].task();
    std::lock_guard lock(mutex);
    if (nodes[i].waits) ++turn;
    for (size_t each : next[i])
      if (--missing[each] == 0) ready.push_back(each);
    changed.notify_all();
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
  if (!stream || stream->capture || threadCapture) return cudaErrorIllegalState;
  useContext("cudaStreamBeginCapture", stream->device);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->device = stream->device;
  stream->capture->joined[stream];
  threadCapture = stream->capture.get();
  return cudaSuccess;
}

// Ends an invalidated capture with an error: "This call will take the associated streams out of capture mode, but will
// also return an error value and a NULL graph" (CUDA Programming Guide, CUDA Graphs, "Invalidation"). Only the thread
// that began a capture ends it, in the modes other than cudaStreamCaptureModeRelaxed (CUDA Runtime API,
// cudaStreamBeginCapture).
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (inHostFunction) return cudaErrorNotPermitted;
  std::shared_ptr<Capture> capture = stream->capture;
  if (!capture || capture->origin != stream) return cudaErrorIllegalState;
  if (capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  threadCapture = nullptr;
  const Position known = capture->joined[stream];
  bool unjoined = false;
  for (auto& [other, position] : capture->joined) {
    other->capture = nullptr;
    auto seen = known.find(other);
    auto done = position.find(other);
    if (done != position.end() && (seen == known.end() || seen->second < done->second)) unjoined = true;
  }
  capture->origin = nullptr;
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (unjoined) return cudaErrorStreamCaptureUnjoined;
  capture->findCollectives();
  *graph = new CUgraph_st{capture};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = !stream || !stream->capture ? cudaStreamCaptureStatusNone
            : stream->capture->invalid  ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long flags) {
  useContext("cudaGraphInstantiate");
  if (flags != cudaGraphInstantiateFlagUseNodePriority) return cudaErrorInvalidValue;
  *instance = new CUgraphExec_st{graph->capture};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  if (stream && !inHostFunction) useContext("cudaGraphLaunch", stream->device);
  const std::shared_ptr<Capture>& capture = instance->capture;
  auto run = [capture] { capture->run(); };
  if (capture->collectives.empty() || inHostFunction || !stream || stream->capture) return enqueue(stream, run);
  return enqueueCollectives(stream, run);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  useContext("cudaGraphDestroy");
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  useContext("cudaGraphExecDestroy");
  delete instance;
  return cudaSuccess;
}

}  // extern "C"
