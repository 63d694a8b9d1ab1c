// The rules of the emulated CUDA runtime (docs/cuda-emulation.md), without a device of ours above it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "test/emulation/Collectives.h"

namespace sheaf::emulation {
namespace {

class EmulatedCapture : public ::testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t* stream : {&origin_, &joined_, &other_})
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    for (cudaEvent_t* event : {&inside_, &outside_})
      ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, 64), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(outside_, other_), cudaSuccess);
    begin();
  }
  void TearDown() override {
    for (cudaStream_t stream : {origin_, joined_, other_}) cudaStreamDestroy(stream);
    for (cudaEvent_t event : {inside_, outside_}) cudaEventDestroy(event);
    cudaFree(memory_);
  }
  // A capture of two streams.
  void begin() {
    ASSERT_EQ(cudaStreamBeginCapture(origin_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(inside_, origin_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(joined_, inside_, 0), cudaSuccess);
  }
  cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    cudaStreamWaitEvent(origin_, inside_, 0);
    const cudaError_t error = cudaStreamEndCapture(origin_, &graph);
    EXPECT_EQ(graph != nullptr, error == cudaSuccess);
    if (graph) cudaGraphDestroy(graph);
    return error;
  }

  cudaStream_t origin_ = nullptr, joined_ = nullptr, other_ = nullptr;
  cudaEvent_t inside_ = nullptr, outside_ = nullptr;
  void* memory_ = nullptr;
};

// Each prohibited call returns its error and spoils the capture: operations after it fail, and so does its end. Then
// the streams can be used again.
TEST_F(EmulatedCapture, AProhibitedCallInvalidatesIt) {
  size_t bytes = 0;
  void* more = nullptr;
  char host[8] = {};
  const std::pair<const char*, std::function<cudaError_t()>> calls[] = {
      {"cudaMalloc", [&] { return cudaMalloc(&more, 8); }},
      {"cudaFree", [&] { return cudaFree(memory_); }},
      {"cudaHostAlloc", [&] { return cudaHostAlloc(&more, 8, cudaHostAllocDefault); }},
      {"cudaFreeHost", [&] { return cudaFreeHost(nullptr); }},
      {"cudaHostRegister", [&] { return cudaHostRegister(host, 8, cudaHostRegisterDefault); }},
      {"cudaHostUnregister", [&] { return cudaHostUnregister(host); }},
      {"cudaMemGetInfo", [&] { return cudaMemGetInfo(&bytes, &bytes); }},
      {"cudaMemcpy", [&] { return cudaMemcpy(host, memory_, 8, cudaMemcpyDeviceToHost); }},
      {"cudaMemset", [&] { return cudaMemset(memory_, 0, 8); }},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(origin_); }},
      {"cudaStreamQuery of a joined stream", [&] { return cudaStreamQuery(joined_); }},
      {"cudaStreamQuery of another stream", [&] { return cudaStreamQuery(other_); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(joined_); }},
      {"cudaEventQuery", [&] { return cudaEventQuery(inside_); }},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(outside_); }},
      {"a wait for an event from outside", [&] { return cudaStreamWaitEvent(joined_, outside_, 0); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    EXPECT_EQ(status(joined_), cudaStreamCaptureStatusActive);
    EXPECT_NE(call(), cudaSuccess);
    EXPECT_EQ(status(joined_), cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(cudaMemsetAsync(memory_, 0, 8, joined_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaEventRecord(inside_, origin_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(status(joined_), cudaStreamCaptureStatusNone);
    for (cudaStream_t stream : {origin_, joined_}) {
      EXPECT_EQ(cudaMemsetAsync(memory_, 0, 8, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    }
    begin();
  }
  EXPECT_EQ(end(), cudaSuccess);
}

// Other threads are not held to what a capture of this one allows, and cannot end it.
TEST_F(EmulatedCapture, OnlyItsThreadEndsIt) {
  std::thread([&] {
    void* more = nullptr;
    EXPECT_EQ(cudaMalloc(&more, 8), cudaSuccess);
    EXPECT_EQ(cudaFree(more), cudaSuccess);
    EXPECT_EQ(end(), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_EQ(status(origin_), cudaStreamCaptureStatusActive);
  EXPECT_EQ(end(), cudaSuccess);
}

class EmulatedDevicesDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    setenv("SHEAF_EMULATED_DEVICES", "2", 1);
  }
  void TearDown() override {
    unsetenv("SHEAF_EMULATED_DEVICES");
    unsetenv("SHEAF_EMULATED_CONTEXTS");
    cudaSetDevice(0);  // other tests run on this thread, too
  }
};

// A call that needs a context, on a thread that has chosen none of several devices.
TEST_F(EmulatedDevicesDeathTest, AThreadWithoutADeviceOpensAContext) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  // Without a context: what is asked about devices, drivers and captures.
  std::thread([&] {
    int number = 0;
    cudaDeviceProp properties;
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaGetDeviceCount(&number), cudaSuccess);
    EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
    EXPECT_EQ(cudaDriverGetVersion(&number), cudaSuccess);
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  }).join();
  auto onThread = [](const std::function<void()>& call) { std::thread(call).join(); };
  EXPECT_DEATH(
      onThread([&] { (void)cudaStreamQuery(stream); }),
      "cudaStreamQuery is called by a thread that has chosen none of 2 devices: it makes a context on device 0");
  EXPECT_DEATH(onThread([] {
                 void* memory = nullptr;
                 (void)cudaMalloc(&memory, 8);
               }),
               "cudaMalloc is called by a thread that has chosen none of 2 devices");
  EXPECT_DEATH(onThread([&] {
                 (void)cudaSetDevice(0);
                 (void)cudaStreamSynchronize(stream);
               }),
               "cudaStreamSynchronize is given what belongs to device 1 by a thread of device 0");
  cudaStreamDestroy(stream);
}

// cudaSetDevice makes the context of the device that it chooses.
TEST_F(EmulatedDevicesDeathTest, AProcessOfOneRankHasOneContext) {
  setenv("SHEAF_EMULATED_CONTEXTS", "1", 1);
  EXPECT_DEATH(
      {
        (void)cudaSetDevice(1);
        (void)cudaSetDevice(1);
        std::fprintf(stderr, "one ");
        (void)cudaSetDevice(0);
      },
      "one emulated CUDA: a context is made on device 0, and the process has one on another");
}

// Two collectives of a graph run in both orders, by device and by launch, unless an edge orders them.
TEST(NarrowGpu, DrawsAnOrderOfUnorderedCollectives) {
  for (bool edge : {false, true}) {
    std::set<std::vector<size_t>> byDevice, byLaunch;
    for (int device = 0; device < 8; ++device)
      for (uint32_t launch = 0; launch < 8; ++launch) {
        Capture graph;
        graph.device = device;
        graph.nodes.push_back({[] {}, {}, true});
        graph.nodes.push_back({[] {}, {}, false});
        if (edge) graph.nodes[1].after.push_back(0);
        graph.nodes.push_back({[] {}, {1}, true});
        graph.findCollectives();
        const std::vector<size_t> order = graph.orderOfCollectives(launch);
        if (launch == 0) byDevice.insert(order);
        if (device == 0) byLaunch.insert(order);
      }
    EXPECT_EQ(byDevice.size(), edge ? 1u : 2u);
    EXPECT_EQ(byLaunch.size(), edge ? 1u : 2u);
  }
}

// A collective on another stream than the one before begins if an event, NCCL or their communicator orders them.
TEST(NarrowGpu, ACollectiveWithoutAnOrderNeverBegins) {
  enum class By { kNothing, kEvent, kNccl, kCommunicator };
  for (By by : {By::kNothing, By::kEvent, By::kNccl, By::kCommunicator}) {
    cudaStream_t streams[2] = {};
    cudaEvent_t event = nullptr;
    for (cudaStream_t& stream : streams)
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    std::atomic<bool> arrived = false, began = false, stuck = false;
    Launches first, second;
    const Collective before{&first, by == By::kNccl, [] {}, "the first"};
    const Collective after{by == By::kCommunicator ? &first : &second, by == By::kNccl, [&] { stuck = true; },
                           "the second"};
    ASSERT_EQ(enqueueCollective(streams[0], before,
                                [&] {
                                  while (!arrived) std::this_thread::yield();
                                }),
              cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, streams[0]), cudaSuccess);
    if (by == By::kEvent) {
      ASSERT_EQ(cudaStreamWaitEvent(streams[1], event, 0), cudaSuccess);
    }
    ASSERT_EQ(enqueueCollective(streams[1], after, [&] { began = true; }), cudaSuccess);
    arrived = true;
    for (cudaStream_t stream : streams) EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(began, by != By::kNothing) << static_cast<int>(by);
    EXPECT_EQ(stuck, by == By::kNothing) << static_cast<int>(by);
    for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
    cudaEventDestroy(event);
  }
}

}  // namespace
}  // namespace sheaf::emulation
