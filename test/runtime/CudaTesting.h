// Running small plans on a CUDA device: libsheaf_cuda.so's, or its double's on machines without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {

using Contexts = std::vector<std::unique_ptr<RankContext>>;

inline Contexts openCuda(const plan::Plan& plan, const DeviceOptions& options = {}) {
  auto contexts = testDevice()->open(plan, options);
  if (contexts.ok()) return std::move(*contexts);
  ADD_FAILURE() << contexts.status().message();
  return {};
}

inline std::string cudaOpenError(const plan::Plan& plan, const DeviceOptions& options = {}) {
  auto contexts = testDevice()->open(plan, options);
  return contexts.ok() ? "" : contexts.status().message();
}

// Issues the body `times` times to every rank, each from a thread of its own, and returns what synchronize() said.
// valuesOf(round) are a step's values.
template <typename ValuesOf>
std::vector<Status> runBodies(const plan::Plan& plan, Contexts& contexts, int times, ValuesOf valuesOf) {
  std::vector<std::shared_ptr<const StepValues>> values;
  for (int round = 0; round < times; ++round) values.push_back(valuesOf(round));
  std::vector<Status> results(contexts.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < contexts.size(); ++rank)
    threads.emplace_back([&, rank] {
      bool failed = false;
      for (int round = 0; round < times && !failed; ++round)
        for (const plan::Instruction& instruction : plan.body())
          if ((failed = !contexts[rank]->issue(instruction, values[static_cast<size_t>(round)]).ok())) break;
      results[rank] = contexts[rank]->synchronize();
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline std::vector<Status> runBodies(const plan::Plan& plan, Contexts& contexts, int times = 1) {
  return runBodies(plan, contexts, times, [](int round) {
    auto values = std::make_shared<StepValues>();
    values->step = round;
    return values;
  });
}

inline void expectOk(const std::vector<Status>& results) {
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
}

template <typename T>
void writeBuffer(RankContext& context, const plan::Plan& plan, uint32_t buffer, const std::vector<T>& values) {
  Status status = context.write(plan.buffers(static_cast<int>(buffer)).offset(), std::as_bytes(std::span(values)));
  ASSERT_TRUE(status.ok()) << status.message();
}

template <typename T>
std::vector<T> readBuffer(RankContext& context, const plan::Plan& plan, uint32_t buffer) {
  const plan::Buffer& info = plan.buffers(static_cast<int>(buffer));
  std::vector<T> values(info.bytes() / sizeof(T));
  Status status = context.read(info.offset(), std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

// A plan that reads an input, and copies it on another stream.
inline PlanBuilder inputAndCopy() {
  PlanBuilder builder;
  const uint32_t input = builder.buffer(8), copied = builder.buffer(8);
  builder.instruction("tokens", 0, {builder.operand(input, plan::WRITE)}).mutable_input();
  builder.record(0, 0);
  builder.wait(0, 1);
  builder.call(plan::CopyCall{.elementBytes = 1, .dimensions = {{8, 1, 1}}},
               {builder.operand(input, plan::READ), builder.operand(copied, plan::WRITE)}, "copy", 1);
  return builder;
}

// Tests of a real GPU are skipped where there is none, with the reason.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(testDevice(), nullptr);
    PlanBuilder builder;
    if (std::string error = cudaOpenError(builder.plan); !error.empty()) GTEST_SKIP() << error;
  }
};

}  // namespace sheaf::testing
