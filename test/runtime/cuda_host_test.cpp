// Updates on the host of a rank on a GPU: one by one and in graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "test/runtime/HostUpdatePlan.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Enough for two steps before graphs, the capture of both, and launches of both.
constexpr int kRounds = 6;
// Of so many elements a launch is shared among threads; the last block of rows is not a whole one.
constexpr uint64_t kMany = 50003;

class CudaHostTest : public CudaTest {};

DeviceOptions optionsOf(bool graphs, int threads = 2, int64_t ranks = 1) {
  DeviceOptions options;
  options.graphs = graphs;
  options.threadsPerRank = threads;
  options.ranks = ranks;
  return options;
}

// Each step has another gradient and another learning rate. An update that does not wait for them, or is not waited
// for, leaves an old value in the parameters that come back.
TEST_F(CudaHostTest, BetweenTransfers) {
  for (const bool oneStream : {false, true}) {
    const HostUpdatePlan plan(kMany, oneStream);
    for (const int threads : {1, 2, 5})
      for (const bool graphs : {true, false}) {
        Contexts contexts = openCuda(plan.builder.plan, optionsOf(graphs, threads));
        ASSERT_EQ(contexts.size(), 1u);
        Momentum expected(plan.bytes);
        for (int round = 0; round < kRounds; ++round) {
          const std::vector<float> gradient = gradientOf(plan.bytes, round, 0);
          writeBuffer(*contexts[0], plan.builder.plan, plan.gradient, gradient);
          expectOk(runBodies(plan.builder.plan, contexts, 1, [&](int) { return valuesOf(round); }));
          expected.update(gradient, round);
          EXPECT_TRUE(readBuffer<float>(*contexts[0], plan.builder.plan, plan.result) == expected.p)
              << threads << " threads, round " << round << (graphs ? " with graphs" : "")
              << (oneStream ? " on one stream" : "");
        }
      }
  }
}

// The next step is issued while this one runs.
TEST_F(CudaHostTest, StepsFollowEachOther) {
  const HostUpdatePlan plan(kMany);
  for (const bool graphs : {true, false}) {
    Contexts contexts = openCuda(plan.builder.plan, optionsOf(graphs));
    ASSERT_EQ(contexts.size(), 1u);
    const std::vector<float> gradient = gradientOf(plan.bytes, 0, 0);
    writeBuffer(*contexts[0], plan.builder.plan, plan.gradient, gradient);
    expectOk(runBodies(plan.builder.plan, contexts, 3 * kRounds, valuesOf));
    Momentum expected(plan.bytes);
    for (int round = 0; round < 3 * kRounds; ++round) expected.update(gradient, round);
    EXPECT_TRUE(readBuffer<float>(*contexts[0], plan.builder.plan, plan.result) == expected.p)
        << (graphs ? "with graphs" : "without");
  }
}

// Two streams have an update each, from the same gradient. The plan is one for CPUs, too: its image is taken.
TEST_F(CudaHostTest, SeveralStreamsAndTheImageForTheCpu) {
  constexpr uint32_t kOther = 2;
  HostUpdatePlan plan(kMany, false, [](HostUpdatePlan& made) {
    made.builder.wait(HostUpdatePlan::kFree, HostUpdatePlan::kToHost);  // the gradient is read no more
  });
  PlanBuilder& builder = plan.builder;
  builder.plan.mutable_images(1)->set_target("cpu");
  const uint64_t end = plan::arenaTop(builder.plan, plan::Buffer::HOST);
  const uint32_t parameters = bufferIn(builder, plan::Buffer::HOST, plan.bytes, plan::aligned(end));
  const uint32_t momentum =
      bufferIn(builder, plan::Buffer::HOST, plan.bytes, plan::aligned(end) + plan::aligned(plan.bytes));
  builder.wait(HostUpdatePlan::kMoved, kOther);
  plan::Instruction& update = builder.instruction("other", kOther);
  update = builder.plan.body(plan.update);
  update.set_stream(kOther);
  update.mutable_operands(0)->set_buffer(parameters);
  update.mutable_operands(2)->set_buffer(momentum);
  builder.record(HostUpdatePlan::kFree, kOther);
  for (const bool graphs : {true, false}) {
    Contexts contexts = openCuda(builder.plan, optionsOf(graphs));
    ASSERT_EQ(contexts.size(), 1u);
    Momentum expected(plan.bytes);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<float> gradient = gradientOf(plan.bytes, round, 0);
      writeBuffer(*contexts[0], builder.plan, plan.gradient, gradient);
      expectOk(runBodies(builder.plan, contexts, 1, [&](int) { return valuesOf(round); }));
      expected.update(gradient, round);
      EXPECT_TRUE(readBuffer<float>(*contexts[0], builder.plan, plan.result) == expected.p) << "round " << round;
      std::vector<float> other(expected.p.size());
      const uint64_t at = builder.plan.buffers(static_cast<int>(parameters)).offset();
      ASSERT_TRUE(contexts[0]->readSpace(plan::Buffer::HOST, at, std::as_writable_bytes(std::span(other))).ok());
      EXPECT_TRUE(other == expected.p) << "round " << round << (graphs ? " with graphs" : "");
    }
  }
}

TEST_F(CudaHostTest, RanksThatShareAGpuUpdateTheirOwn) {
  HostUpdatePlan plan(kMany);
  plan.builder.plan.set_ranks(2);
  Contexts contexts = openCuda(plan.builder.plan, optionsOf(true, 2, 2));
  ASSERT_EQ(contexts.size(), 2u);
  std::vector<Momentum> expected(2, Momentum(plan.bytes));
  for (int round = 0; round < kRounds; ++round) {
    for (size_t rank = 0; rank < 2; ++rank) {
      const std::vector<float> gradient = gradientOf(plan.bytes, round, rank);
      writeBuffer(*contexts[rank], plan.builder.plan, plan.gradient, gradient);
      expected[rank].update(gradient, round);
    }
    expectOk(runBodies(plan.builder.plan, contexts, 1, [&](int) { return valuesOf(round); }));
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(readBuffer<float>(*contexts[rank], plan.builder.plan, plan.result) == expected[rank].p)
          << "rank " << rank << ", round " << round;
  }
}

// Steps with a trace or a dump of gradients are issued one by one, between two that are graphs.
TEST_F(CudaHostTest, GradientsAndTimesOfUpdates) {
  const HostUpdatePlan plan(kMany);
  Contexts contexts = openCuda(plan.builder.plan, optionsOf(true));
  ASSERT_EQ(contexts.size(), 1u);
  Momentum expected(plan.bytes);
  for (int round = 0; round < 2 * kRounds; ++round) {
    const std::vector<float> gradient = gradientOf(plan.bytes, round, 0);
    std::vector<float> seen;
    std::map<const plan::Instruction*, int> timed;
    std::mutex mutex;
    const bool hooks = round % 3 == 1;
    auto values = valuesOf(round);
    if (hooks) {
      values->onGradient = [&](int64_t rank, uint32_t bucket, std::span<const std::byte> bytes) {
        EXPECT_EQ(rank, 0);
        EXPECT_EQ(bucket, 0u);
        seen.resize(bytes.size() / sizeof(float));
        std::memcpy(seen.data(), bytes.data(), bytes.size());
      };
      values->onInstruction = [&](int64_t, const plan::Instruction& instruction,
                                  std::chrono::steady_clock::time_point begin,
                                  std::chrono::steady_clock::time_point end) {
        std::lock_guard lock(mutex);
        EXPECT_LE(begin, end);
        ++timed[&instruction];
      };
    }
    writeBuffer(*contexts[0], plan.builder.plan, plan.gradient, gradient);
    expectOk(runBodies(plan.builder.plan, contexts, 1, [&](int) { return values; }));
    expected.update(gradient, round);
    EXPECT_TRUE(readBuffer<float>(*contexts[0], plan.builder.plan, plan.result) == expected.p) << "round " << round;
    EXPECT_TRUE(seen == (hooks ? gradient : std::vector<float>())) << "round " << round;
    EXPECT_EQ(timed[&plan.builder.plan.body(plan.update)], hooks ? 1 : 0) << "round " << round;
  }
}

// The update waits for a file. The error is that of the file, and nothing waits for ever.
TEST_F(CudaHostTest, AnErrorOfAFileEndsTheWaitForTheStream) {
  TemporaryFolder folder;
  uint32_t file = 0;
  const HostUpdatePlan plan(kMany, false, [&](HostUpdatePlan& made) {
    PlanBuilder& builder = made.builder;
    const uint32_t read = builder.buffer(8192);
    file = bufferIn(builder, plan::Buffer::FILE, 8192);
    transfer(builder, plan::Transfer::READ_FILE, file, read);
    builder.record(HostUpdatePlan::kFree, 2);
    builder.wait(HostUpdatePlan::kFree, HostUpdatePlan::kHostCompute);
  });
  for (const int damaged : {0, 2, kRounds - 1}) {  // before graphs, when they are captured, when they are launched
    DeviceOptions options = optionsOf(true);
    options.offloadFolders = {folder.path()};
    Contexts contexts = openCuda(plan.builder.plan, options);
    ASSERT_EQ(contexts.size(), 1u);
    expectOk(runBodies(plan.builder.plan, contexts, damaged, valuesOf));
    std::filesystem::resize_file(folder / "rank-0.arena", 4096);
    const Status status = runBodies(plan.builder.plan, contexts, 2, valuesOf)[0];
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 0: body instruction 0 (read_file 'move'"),
                                        HasSubstr("rank-0.arena: it ends at byte 4096")));
  }
}

// Measurements time graphs of their own, which cannot ask the host for its part.
TEST_F(CudaHostTest, BurstsHaveNoUpdatesOnTheHost) {
  const HostUpdatePlan plan(16);
  Contexts contexts = openCuda(plan.builder.plan, optionsOf(true));
  ASSERT_EQ(contexts.size(), 1u);
  const plan::Instruction* update = &plan.builder.plan.body(plan.update);
  auto burst = contexts[0]->prepare({&update, 1});
  ASSERT_TRUE(burst.ok()) << burst.status().message();
  EXPECT_EQ(burst->get(), nullptr);
}

TEST_F(CudaHostTest, TheLogHasTheNumberOfThreads) {
  const HostUpdatePlan plan(16);
  std::map<std::string, std::string> notes;
  DeviceOptions options = optionsOf(true, 3);
  options.note = [&](const std::string& name, const std::string& value) { notes[name] = value; };
  ASSERT_EQ(openCuda(plan.builder.plan, options).size(), 1u);
  EXPECT_EQ(notes["host_update_threads"], "3");
  notes.clear();
  PlanBuilder without;
  ASSERT_EQ(openCuda(without.plan, options).size(), 1u);
  EXPECT_EQ(notes.count("host_update_threads"), 0u);
}

TEST_F(CudaHostTest, KernelsThatTheHostLacks) {
  const std::string why = "it is on the host, and the plan has no kernel 'update' for that; compile the model again";
  HostUpdatePlan lacking(16);
  plan::KernelImage& image = *lacking.builder.plan.mutable_images(1);
  image.mutable_entries(0)->set_offset(image.code().size());
  EXPECT_THAT(cudaOpenError(lacking.builder.plan), AllOf(HasSubstr("rank 0: body instruction "),
                                                         HasSubstr("(kernel 'all' on stream host_compute): " + why)));
  HostUpdatePlan unknown(16);
  unknown.builder.plan.mutable_body(unknown.update)->mutable_kernel()->set_kernel(1);
  EXPECT_THAT(cudaOpenError(unknown.builder.plan), HasSubstr("the plan has no kernel '' for that"));
}

TEST_F(CudaHostTest, FeaturesThatTheProcessorLacks) {
  for (const auto& [feature, why] :
       {std::pair{"xop", "which this machine lacks"}, {"teleportation", "which this runtime does not know"}}) {
    HostUpdatePlan plan(16);
    plan.builder.plan.mutable_images(1)->add_features(feature);
    EXPECT_THAT(cudaOpenError(plan.builder.plan),
                AllOf(HasSubstr(cat("launches on the host: the plan's kernels need the processor feature '", feature,
                                    "', ", why, "; compile the plan again")),
                      HasSubstr(", or with --cpu x86-64-v"), HasSubstr(", or with --update-on device")));
  }
}

TEST_F(CudaHostTest, OperandsThatAreNotInHostMemory) {
  HostUpdatePlan plan(16);
  plan.builder.plan.mutable_body(plan.update)->mutable_operands(1)->set_buffer(plan.gradient);
  EXPECT_THAT(
      cudaOpenError(plan.builder.plan),
      HasSubstr("(kernel 'all' on stream host_compute): it is on the host, and its operand 1 is not in host memory"));
}

}  // namespace
}  // namespace sheaf::testing
