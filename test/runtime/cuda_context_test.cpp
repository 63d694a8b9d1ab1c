// A rank on a GPU: streams, events, graphs, and what the host exchanges with a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "test/runtime/CudaTesting.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

// Enough for two steps before graphs, the capture of both, and launches of both.
constexpr int kRounds = 7;

class CudaContextTest : public CudaTest {};

// result[i] = data[indices[i]], `count` floats by i64 indices.
void addGather(PlanBuilder& builder, uint32_t data, uint32_t indices, uint32_t result, int64_t count,
               uint32_t stream = 0) {
  builder.call(
      plan::GatherCall{.outer = 1, .rows = count, .inner = 1, .count = count, .elementBytes = 4, .indexBytes = 8},
      {builder.operand(data, plan::READ), builder.operand(indices, plan::READ), builder.operand(result, plan::WRITE)},
      "wte.weight", stream);
}

void addOutput(PlanBuilder& builder, plan::OutputKind kind, uint32_t buffer, uint32_t stream = 0) {
  builder.instruction("output", stream, {builder.operand(buffer, plan::READ)}).mutable_output()->set_output(kind);
}

TEST_F(CudaContextTest, EventsOrderStreams) {
  // Values pass through three streams, permuted at each visit: one missing edge and they become wrong. The
  // first wait is for the end of the body before.
  PlanBuilder builder;
  constexpr int64_t kCount = 2000;
  constexpr int kVisits = 30;
  uint32_t indices = builder.buffer(kCount * 8);
  uint32_t buffers[3] = {builder.buffer(kCount * 4), builder.buffer(kCount * 4), builder.buffer(kCount * 4)};
  for (int visit = 0; visit < kVisits; ++visit) {
    const uint32_t stream = static_cast<uint32_t>(visit % 3);
    builder.wait((stream + 2) % 3, stream);
    addGather(builder, buffers[stream], indices, buffers[(stream + 1) % 3], kCount, stream);
    builder.record(stream, stream);
  }
  for (bool graphs : {true, false}) {
    DeviceOptions options;
    options.graphs = graphs;
    Contexts contexts = openCuda(builder.plan, options);
    std::vector<int64_t> permutation(kCount);
    for (int64_t i = 0; i < kCount; ++i) permutation[static_cast<size_t>(i)] = (i * 7 + 3) % kCount;
    std::vector<float> values(kCount), expected;
    std::iota(values.begin(), values.end(), 0.0f);
    writeBuffer(*contexts[0], builder.plan, indices, permutation);
    writeBuffer(*contexts[0], builder.plan, buffers[0], values);
    expectOk(runBodies(builder.plan, contexts, kRounds));
    for (int visit = 0; visit < kVisits * kRounds; ++visit) {
      expected.clear();
      for (int64_t from : permutation) expected.push_back(values[static_cast<size_t>(from)]);
      values = expected;
    }
    EXPECT_EQ(readBuffer<float>(*contexts[0], builder.plan, buffers[0]), expected);
  }
}

TEST_F(CudaContextTest, WaitsAreForTheLatestRecordBeforeThem) {
  PlanBuilder builder;
  addLatestRecords(builder);
  // Values are reversed from one buffer into the other and back. What orders the streams is recorded twice before: only
  // the last record counts.
  constexpr int64_t kCount = 1 << 18;
  uint32_t indices = builder.buffer(kCount * 8), there = builder.buffer(kCount * 4), here = builder.buffer(kCount * 4);
  builder.wait(3, 0);  // for the body before
  builder.record(2, 1);
  builder.record(2, 0);
  addGather(builder, here, indices, there, kCount, 0);
  builder.record(2, 0);
  builder.wait(2, 1);
  addGather(builder, there, indices, here, kCount, 1);
  builder.record(3, 1);
  std::vector<int64_t> reversed(kCount);
  for (int64_t i = 0; i < kCount; ++i) reversed[static_cast<size_t>(i)] = kCount - 1 - i;
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 0.0f);
  for (bool graphs : {true, false}) {
    DeviceOptions options;
    options.graphs = graphs;
    Contexts contexts = openCuda(builder.plan, options);
    writeBuffer(*contexts[0], builder.plan, indices, reversed);
    writeBuffer(*contexts[0], builder.plan, here, values);
    expectOk(runBodies(builder.plan, contexts, kRounds));
    EXPECT_EQ(readBuffer<float>(*contexts[0], builder.plan, here), values);
  }
}

// What a step of the plan below reads, and its outputs to the host.
struct Exchanged {
  std::mutex mutex;
  std::vector<std::string> outputs;

  std::shared_ptr<const StepValues> values(int round) {
    auto values = std::make_shared<StepValues>();
    values->step = 10 + round;
    values->scalars = {1.5f * static_cast<float>(round), 2.5f};
    values->readInput = [round](int64_t rank, uint32_t input, std::span<std::byte> destination) {
      float value = static_cast<float>(100 * round + 10 * rank + input);
      EXPECT_EQ(destination.size(), sizeof value);
      std::memcpy(destination.data(), &value, sizeof value);
      return Status();
    };
    values->writeOutput = [this, round](int64_t rank, plan::OutputKind kind, double value) {
      std::lock_guard lock(mutex);
      outputs.push_back(std::to_string(round) + " " + std::to_string(rank) + " " + std::to_string(kind) + " " +
                        std::to_string(value));
    };
    return values;
  }
};

TEST_F(CudaContextTest, HostExchangesValuesWithEveryStep) {
  PlanBuilder builder;
  builder.plan.mutable_scalars()->Add();
  builder.plan.mutable_scalars()->Add();
  uint32_t input = builder.buffer(4), scalars = builder.buffer(8), norm = builder.buffer(8);
  builder.wait(1, 2);  // the step before must be done with its input
  builder.instruction("input", 2, {builder.operand(input, plan::WRITE)}).mutable_input()->set_input(3);
  builder.instruction("scalars", 0, {builder.operand(scalars, plan::WRITE)}).mutable_scalars();
  builder.record(0, 2);
  builder.wait(0, 0);
  addOutput(builder, plan::LOSS, input);
  addOutput(builder, plan::LOSS, scalars);
  addOutput(builder, plan::GRADIENT_NORM, norm);
  builder.record(1, 0);
  for (int64_t ranks : {1, 2}) {  // with graphs and without
    DeviceOptions options;
    options.ranks = ranks;
    Contexts contexts = openCuda(builder.plan, options);
    for (auto& context : contexts) writeBuffer(*context, builder.plan, norm, std::vector<double>{1e-3});
    Exchanged exchanged;
    expectOk(runBodies(builder.plan, contexts, kRounds, [&](int round) { return exchanged.values(round); }));
    std::vector<std::string> expected;
    for (int round = 0; round < kRounds; ++round)
      for (int64_t rank = 0; rank < ranks; ++rank) {
        std::string who = std::to_string(round) + " " + std::to_string(rank);
        expected.push_back(who + " 1 " + std::to_string(100.0 * round + 10.0 * static_cast<double>(rank) + 3));
        expected.push_back(who + " 1 " + std::to_string(1.5 * round));
        expected.push_back(who + " 2 0.001000");
      }
    EXPECT_THAT(exchanged.outputs, ::testing::UnorderedElementsAreArray(expected));
    EXPECT_EQ(readBuffer<float>(*contexts[0], builder.plan, scalars), (std::vector<float>{1.5f * (kRounds - 1), 2.5f}));
  }
}

TEST_F(CudaContextTest, StepsWithoutAGraphMayComeBetween) {
  // A trace asks for times of each instruction: such a step is issued one by one, between two that are graphs. The
  // number of the step reaches dropout in each: its mask changes from step to step.
  PlanBuilder builder;
  constexpr int64_t kCount = 512;
  uint32_t ones = builder.buffer(kCount * 4), dropped = builder.buffer(kCount * 4);
  builder.call(plan::DropoutCall{{.count = kCount, .node = 1}, 0.5},
               {builder.operand(ones, plan::READ), builder.operand(dropped, plan::WRITE)}, "dropout", 1);
  builder.record(0, 1);
  builder.wait(0, 0);
  addOutput(builder, plan::LOSS, dropped);
  std::vector<std::vector<float>> results[2];
  std::vector<std::string> times;
  std::mutex mutex;
  for (bool graphs : {false, true}) {
    DeviceOptions options;
    options.graphs = graphs;
    Contexts contexts = openCuda(builder.plan, options);
    writeBuffer(*contexts[0], builder.plan, ones, std::vector<float>(kCount, 1));
    auto begun = std::chrono::steady_clock::now() - std::chrono::seconds(1);
    for (int round = 0; round < 12; ++round) {
      expectOk(runBodies(builder.plan, contexts, 1, [&](int) {
        auto values = std::make_shared<StepValues>();
        values->step = round;
        if (round % 4 == 3)
          values->onInstruction = [&](int64_t rank, const plan::Instruction& instruction,
                                      std::chrono::steady_clock::time_point begin,
                                      std::chrono::steady_clock::time_point end) {
            std::lock_guard lock(mutex);
            EXPECT_LE(begun, begin);
            EXPECT_LE(begin, end);
            EXPECT_LE(end, std::chrono::steady_clock::now() + std::chrono::seconds(1));
            times.push_back(instruction.label());
          };
        return values;
      }));
      results[graphs].push_back(readBuffer<float>(*contexts[0], builder.plan, dropped));
      EXPECT_TRUE(round == 0 || results[graphs][static_cast<size_t>(round)] != results[graphs][0]);
    }
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(times.size(), 2 * 3 * 4u);
}

TEST_F(CudaContextTest, PoisonTellsTheHighestByteTouched) {
  PlanBuilder builder;
  uint32_t low = builder.buffer(1000), high = builder.buffer(20000);
  builder.call(plan::ZeroCall(), {builder.operand(low, plan::WRITE)});
  DeviceOptions options;
  options.poison = true;
  Contexts contexts = openCuda(builder.plan, options);
  EXPECT_EQ(contexts[0]->highestTouchedByte(), 0u);
  EXPECT_EQ(readBuffer<uint8_t>(*contexts[0], builder.plan, low)[17], 0xA5);
  expectOk(runBodies(builder.plan, contexts));
  EXPECT_EQ(contexts[0]->highestTouchedByte(), 1000u);
  writeBuffer(*contexts[0], builder.plan, high, std::vector<uint8_t>(20000, 1));
  EXPECT_EQ(contexts[0]->highestTouchedByte(), builder.plan.buffers(static_cast<int>(high)).offset() + 20000);
}

TEST_F(CudaContextTest, AnIndexOutOfRangeEndsAllRanks) {
  PlanBuilder builder;
  uint32_t data = builder.buffer(40), indices = builder.buffer(80), result = builder.buffer(40);
  addGather(builder, data, indices, result, 10);
  uint32_t sum = builder.buffer(64);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  builder.record(0, 1);
  builder.wait(0, 0);
  addOutput(builder, plan::LOSS, result);
  DeviceOptions options;
  options.ranks = 3;
  Contexts contexts = openCuda(builder.plan, options);
  for (auto& context : contexts) writeBuffer(*context, builder.plan, indices, std::vector<int64_t>(10, 0));
  writeBuffer(*contexts[1], builder.plan, indices, std::vector<int64_t>{0, 1, 2, 10, 0, 0, 0, 0, 0, 0});
  for (const Status& status : runBodies(builder.plan, contexts)) {
    if (status.ok()) continue;  // it was done before
    EXPECT_EQ(status.message(),
              "rank 1: body instruction 0 (gather 'wte.weight' on stream compute): an index is out of range");
  }
  Status again = contexts[0]->issue(builder.plan.body(0), nullptr);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.message(), HasSubstr("rank 1: body instruction 0 (gather 'wte.weight'"));
}

TEST_F(CudaContextTest, AbortEndsARendezvous) {
  PlanBuilder builder;
  uint32_t sum = builder.buffer(64);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  DeviceOptions options;
  options.ranks = 2;
  Contexts contexts = openCuda(builder.plan, options);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    contexts[1]->abort("the host gave up");
  });
  EXPECT_EQ(contexts[0]->issue(builder.plan.body(0), nullptr).message(), "rank 1: the host gave up");
  other.join();
  EXPECT_EQ(contexts[0]->synchronize().message(), "rank 1: the host gave up");
  EXPECT_EQ(contexts[0]->poll().message(), "rank 1: the host gave up");
}

TEST_F(CudaContextTest, InputThatCannotBeRead) {
  PlanBuilder builder;
  builder.instruction("tokens", 0, {builder.operand(builder.buffer(8), plan::WRITE)}).mutable_input();
  const char* expected = "rank 0: body instruction 0 (read_input 'tokens' on stream compute): the file is gone";
  for (int failing : {0, 2, 4}) {  // before graphs, during a capture, before a launch
    Contexts contexts = openCuda(builder.plan);
    auto results = runBodies(builder.plan, contexts, kRounds, [&](int round) {
      auto values = std::make_shared<StepValues>();
      values->readInput = [=](int64_t, uint32_t, std::span<std::byte>) {
        return round == failing ? Status::error("the file is gone") : Status();
      };
      return values;
    });
    EXPECT_EQ(results[0].message(), expected);
  }
}

// A run that is aborted during a capture ends the capture: the thread could not use CUDA otherwise.
TEST_F(CudaContextTest, AnAbortEndsACapture) {
  const PlanBuilder builder = inputAndCopy();
  Contexts contexts = openCuda(builder.plan);
  ASSERT_EQ(contexts.size(), 1u);
  for (int round = 0; round < 3; ++round) {
    auto values = std::make_shared<StepValues>();
    values->readInput = [&, round](int64_t, uint32_t, std::span<std::byte>) {
      if (round == 2) contexts[0]->abort("the host gave up");
      return Status();
    };
    for (const plan::Instruction& instruction : builder.plan.body()) (void)contexts[0]->issue(instruction, values);
  }
  EXPECT_EQ(contexts[0]->synchronize().message(), "rank 0: the host gave up");
  std::vector<std::byte> some(8);
  const Status status = contexts[0]->read(0, some);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(CudaContextTest, HostAccessOutsideTheArena) {
  PlanBuilder builder;
  builder.buffer(128);
  Contexts contexts = openCuda(builder.plan);
  std::vector<std::byte> bytes(64);
  EXPECT_TRUE(contexts[0]->read(64, bytes).ok());
  EXPECT_FALSE(contexts[0]->read(65, bytes).ok());
  EXPECT_FALSE(contexts[0]->write(UINT64_MAX, bytes).ok());
}

TEST_F(CudaContextTest, OpeningNamesWhatIsMissing) {
  PlanBuilder builder;
  builder.buffer(64);
  plan::Plan wrong = builder.plan;
  wrong.mutable_memory()->set_peak_bytes(uint64_t(1) << 60);
  EXPECT_THAT(cudaOpenError(wrong), HasSubstr("the run needs 1024 PiB for arenas"));
  DeviceOptions options;
  options.ranks = 4;
  options.localRanks = 2;
  EXPECT_THAT(cudaOpenError(builder.plan, options), HasSubstr("one process a rank, not 2 ranks in each"));
  options.localRanks = 1;
  EXPECT_THAT(cudaOpenError(builder.plan, options), HasSubstr("need a launcher's variables"));
  options.ranks = options.localRanks = 1000;
  EXPECT_THAT(cudaOpenError(builder.plan, options), HasSubstr("at most 128 ranks share a GPU, not 1000"));
  builder.instruction("mystery").mutable_call()->set_function("levitate");
  EXPECT_THAT(cudaOpenError(builder.plan), HasSubstr("levitate"));
}

}  // namespace
}  // namespace sheaf::testing
