// The device: streams, events, kernels, what the host exchanges with a step, and errors that end every wait.
#include "runtime/device/Device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "test/runtime/DeviceTesting.h"

// Flat, position-independent code: eight bytes that are not a kernel, then one that doubles the rows [begin, end) of
// operand 0 into operand 1, a float a row.
__asm__(R"(
  .pushsection .rodata
sheaf_test_image:
  .quad 0
sheaf_test_entry:
  mov (%rdi), %rax
  mov 8(%rdi), %rcx
1:
  cmp %rdx, %rsi
  jge 2f
  movss (%rax,%rsi,4), %xmm0
  addss %xmm0, %xmm0
  movss %xmm0, (%rcx,%rsi,4)
  inc %rsi
  jmp 1b
2:
  ret
sheaf_test_image_end:
  .popsection
)");
extern "C" const char sheaf_test_image[], sheaf_test_image_end[];

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;
using Contexts = std::vector<std::unique_ptr<RankContext>>;

Contexts open(const plan::Plan& plan, DeviceOptions options = {}) {
  auto contexts = testDevice()->open(plan, options);
  if (contexts.ok()) return std::move(*contexts);
  ADD_FAILURE() << contexts.status().message();
  return {};
}

std::string openError(const plan::Plan& plan, DeviceOptions options = {}) {
  auto contexts = testDevice()->open(plan, options);
  return contexts.ok() ? "" : contexts.status().message();
}

// Issues the whole body to every rank, each from a thread of its own, and returns what synchronize() said.
std::vector<Status> runBody(const plan::Plan& plan, Contexts& contexts,
                            std::shared_ptr<const StepValues> step = nullptr) {
  std::vector<Status> results(contexts.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < contexts.size(); ++rank)
    threads.emplace_back([&, rank] {
      for (const plan::Instruction& instruction : plan.body())
        if (!contexts[rank]->issue(instruction, step).ok()) break;
      results[rank] = contexts[rank]->synchronize();
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

template <typename T>
void write(RankContext& context, const plan::Plan& plan, uint32_t buffer, const std::vector<T>& values) {
  Status status = context.write(plan.buffers(buffer).offset(), std::as_bytes(std::span(values)));
  ASSERT_TRUE(status.ok()) << status.message();
}

template <typename T>
std::vector<T> read(RankContext& context, const plan::Plan& plan, uint32_t buffer) {
  std::vector<T> values(plan.buffers(buffer).bytes() / sizeof(T));
  Status status = context.read(plan.buffers(buffer).offset(), std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

uint32_t addDoubleKernel(plan::Plan& plan) {
  plan::KernelImage* image = plan.add_images();
  image->set_target("cpu");
  image->add_features("sse2");
  image->set_code(std::string(sheaf_test_image, sheaf_test_image_end));
  plan::Kernel* kernel = plan.add_kernels();
  kernel->set_symbol("double");
  image->add_entries()->set_offset(8);
  return plan.kernels_size() - 1;
}

plan::Instruction& launch(PlanBuilder& builder, uint32_t kernel, uint32_t from, uint32_t to, int64_t rows,
                          int64_t block, uint32_t stream = 0) {
  plan::Instruction& instruction =
      builder.instruction("launch", stream, {builder.operand(from, plan::READ), builder.operand(to, plan::WRITE)});
  plan::KernelLaunch* launch = instruction.mutable_kernel();
  launch->set_kernel(kernel);
  launch->set_rows(rows);
  launch->set_block(block);
  return instruction;
}

// Copies whole buffers.
void addCopy(PlanBuilder& builder, uint32_t from, uint32_t to) {
  const int64_t elements = static_cast<int64_t>(builder.plan.buffers(static_cast<int>(from)).bytes() / 4);
  builder.call(plan::CopyCall{.elementBytes = 4, .dimensions = {{elements, 1, 1}}},
               {builder.operand(from, plan::READ), builder.operand(to, plan::WRITE)}, "copy");
}

TEST(Device, KernelsCoverAllRowsOnAnyNumberOfThreads) {
  for (int64_t rows : {1, 7, 1000, 100003}) {
    for (int threads : {1, 2, 5}) {
      PlanBuilder builder;
      uint32_t from = builder.buffer(rows * 4), to = builder.buffer(rows * 4);
      launch(builder, addDoubleKernel(builder.plan), from, to, rows, 16);
      DeviceOptions options;
      options.threadsPerRank = threads;
      Contexts contexts = open(builder.plan, options);
      std::vector<float> values = Numbers(1).reals(rows);
      write(*contexts[0], builder.plan, from, values);
      ASSERT_TRUE(runBody(builder.plan, contexts)[0].ok());
      for (float& value : values) value *= 2;
      EXPECT_EQ(read<float>(*contexts[0], builder.plan, to), values);
    }
  }
}

TEST(Device, OperandsAreAddressedByShard) {
  PlanBuilder builder;
  uint32_t from = builder.buffer(64), to = builder.buffer(64);
  plan::Instruction& kernel = launch(builder, addDoubleKernel(builder.plan), from, to, 2, 1);
  for (plan::Operand& operand : *kernel.mutable_operands()) {
    operand.set_offset(4);
    operand.set_bytes(8);
    operand.set_shard_stride(12);
  }
  DeviceOptions options;
  options.ranks = 3;
  Contexts contexts = open(builder.plan, options);
  std::vector<float> values(16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  for (auto& context : contexts) write(*context, builder.plan, from, values);
  for (const Status& status : runBody(builder.plan, contexts)) ASSERT_TRUE(status.ok()) << status.message();
  for (size_t rank = 0; rank < 3; ++rank) {
    std::vector<float> expected(16, 0);
    for (size_t i = 1 + rank * 3; i < 3 + rank * 3; ++i) expected[i] = 2.0f * i;
    EXPECT_EQ(read<float>(*contexts[rank], builder.plan, to), expected);
  }
}

TEST(Device, EventsOrderStreams) {
  // A value passes through three streams, doubled at each visit: one missing edge and it becomes wrong.
  PlanBuilder builder;
  constexpr int64_t kRows = 4096;
  uint32_t buffers[3] = {builder.buffer(kRows * 4), builder.buffer(kRows * 4), builder.buffer(kRows * 4)};
  uint32_t kernel = addDoubleKernel(builder.plan);
  constexpr int kVisits = 90;
  for (int visit = 0; visit < kVisits; ++visit) {
    uint32_t stream = visit % 3;
    if (visit > 0) builder.wait((visit - 1) % 3, stream);
    launch(builder, kernel, buffers[stream], buffers[(stream + 1) % 3], kRows, 8, stream);
    builder.record(visit % 3, stream);
  }
  Contexts contexts = open(builder.plan);
  std::vector<float> values(kRows);
  for (int64_t i = 0; i < kRows; ++i) values[i] = float(i);
  write(*contexts[0], builder.plan, buffers[0], values);
  Status status = runBody(builder.plan, contexts)[0];
  ASSERT_TRUE(status.ok()) << status.message();
  for (float& value : values) value *= 0x1p90f;
  EXPECT_EQ(read<float>(*contexts[0], builder.plan, buffers[0]), values);
}

TEST(Device, WaitsAreForTheLatestRecordBeforeThem) {
  PlanBuilder builder;
  addLatestRecords(builder);
  // An event is recorded before a kernel and after it, in every step: only the last record counts.
  constexpr int64_t kRows = 1 << 20;
  uint32_t from = builder.buffer(kRows * 4), between = builder.buffer(kRows * 4), to = builder.buffer(kRows * 4);
  uint32_t kernel = addDoubleKernel(builder.plan);
  builder.record(2, 1);
  builder.record(2, 0);
  launch(builder, kernel, from, between, kRows, 8, 0);
  builder.record(2, 0);
  builder.wait(2, 1);
  launch(builder, kernel, between, to, kRows, 8, 1);
  Contexts contexts = open(builder.plan);
  for (int round = 1; round <= 20; ++round) {
    write(*contexts[0], builder.plan, from, std::vector<float>(kRows, float(round)));
    Status status = runBody(builder.plan, contexts)[0];
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(read<float>(*contexts[0], builder.plan, to), std::vector<float>(kRows, 4.0f * round)) << round;
  }
}

TEST(Device, RunsTheInstructionsThatAreIssued) {
  // Each of the body's launches doubles into a buffer of its own; they are issued out of order, again, and not at all.
  PlanBuilder builder;
  const uint32_t kernel = addDoubleKernel(builder.plan);
  std::vector<uint32_t> buffers;
  for (int i = 0; i < 6; ++i) buffers.push_back(builder.buffer(4));
  for (size_t i = 0; i + 1 < buffers.size(); ++i) launch(builder, kernel, buffers[i], buffers[i + 1], 1, 1);
  *builder.plan.add_epilogue() = builder.plan.body(0);
  DeviceOptions options;
  options.ranks = 2;
  Contexts contexts = open(builder.plan, options);
  std::vector<float> expected[2] = {{1, 10, 100, 1000, 10000, 100000}, {2, 20, 200, 2000, 20000, 200000}};
  for (size_t rank : {0, 1}) {
    for (size_t i = 0; i < buffers.size(); ++i)
      write(*contexts[rank], builder.plan, buffers[i], std::vector<float>{expected[rank][i]});
    for (const int i : rank == 0 ? std::vector<int>{3, 4, 1, 1, 0} : std::vector<int>{0, 2, 3, 2}) {
      ASSERT_TRUE(contexts[rank]->issue(builder.plan.body(i), nullptr).ok());
      const size_t at = static_cast<size_t>(i);
      expected[rank][at + 1] = 2 * expected[rank][at];
    }
    ASSERT_TRUE(contexts[rank]->synchronize().ok());
    for (size_t i = 0; i < buffers.size(); ++i)
      EXPECT_EQ(read<float>(*contexts[rank], builder.plan, buffers[i])[0], expected[rank][i]) << rank << " " << i;
  }
  ASSERT_TRUE(contexts[1]->issue(builder.plan.epilogue(0), nullptr).ok());
  const plan::Instruction other = builder.plan.body(0);
  EXPECT_EQ(contexts[1]->issue(other, nullptr).message(), "rank 1: the instruction is not in the plan");
  EXPECT_TRUE(contexts[1]->synchronize().ok());
}

TEST(Device, HostExchangesValuesWithTheStep) {
  PlanBuilder builder;
  builder.plan.mutable_scalars()->Add();
  builder.plan.mutable_scalars()->Add();
  uint32_t input = builder.buffer(16), scalars = builder.buffer(8), loss = builder.buffer(4), norm = builder.buffer(8);
  builder.instruction("input", 2, {builder.operand(input, plan::WRITE)}).mutable_input()->set_input(3);
  builder.instruction("scalars", 0, {builder.operand(scalars, plan::WRITE)}).mutable_scalars();
  uint32_t kernel = addDoubleKernel(builder.plan);
  builder.record(0, 2);
  builder.wait(0, 0);
  launch(builder, kernel, scalars, input, 2, 1);
  builder.plan.mutable_body(builder.plan.body_size() - 1)->set_updates_bucket(5);
  for (auto [kind, buffer] : {std::pair{plan::LOSS, loss}, std::pair{plan::GRADIENT_NORM, norm}})
    builder.instruction("output", 0, {builder.operand(buffer, plan::READ)}).mutable_output()->set_output(kind);
  DeviceOptions options;
  options.ranks = 2;
  Contexts contexts = open(builder.plan, options);
  std::mutex mutex;
  std::vector<std::string> seen;
  auto note = [&](const std::string& text) {
    std::lock_guard lock(mutex);
    seen.push_back(text);
  };
  auto step = std::make_shared<StepValues>();
  step->scalars = {1.5f, 2.5f};
  step->readInput = [&](int64_t rank, uint32_t index, std::span<std::byte> destination) {
    EXPECT_EQ(destination.size(), 16u);
    std::memset(destination.data(), 0, 16);
    reinterpret_cast<float*>(destination.data())[0] = float(10 * rank + index);
    return Status();
  };
  step->onGradient = [&](int64_t rank, uint32_t bucket, std::span<const std::byte> gradient) {
    note("gradient " + std::to_string(rank) + " " + std::to_string(bucket) + " " +
         std::to_string(reinterpret_cast<const float*>(gradient.data())[0]));
  };
  step->writeOutput = [&](int64_t rank, plan::OutputKind kind, double value) {
    note("output " + std::to_string(rank) + " " + std::to_string(kind) + " " + std::to_string(value));
  };
  for (auto& context : contexts) {
    write(*context, builder.plan, loss, std::vector<float>{3.25f});
    write(*context, builder.plan, norm, std::vector<double>{1e-3});
  }
  for (const Status& status : runBody(builder.plan, contexts, step)) ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(seen,
              ::testing::UnorderedElementsAre("gradient 0 4 3.000000", "gradient 1 4 13.000000", "output 0 1 3.250000",
                                              "output 1 1 3.250000", "output 0 2 0.001000", "output 1 2 0.001000"));
  EXPECT_EQ(read<float>(*contexts[1], builder.plan, input), (std::vector<float>{3, 5, 0, 0}));
}

TEST(Device, PoisonTellsTheHighestByteTouched) {
  PlanBuilder builder;
  uint32_t low = builder.buffer(1000), high = builder.buffer(20000);
  builder.call(plan::ZeroCall(), {builder.operand(low, plan::WRITE)});
  addCopy(builder, low, high);
  DeviceOptions options;
  options.poison = true;
  Contexts contexts = open(builder.plan, options);
  EXPECT_EQ(contexts[0]->highestTouchedByte(), 0u);
  EXPECT_EQ(read<uint8_t>(*contexts[0], builder.plan, low)[17], 0xA5);
  ASSERT_TRUE(runBody(builder.plan, contexts)[0].ok());
  EXPECT_EQ(contexts[0]->highestTouchedByte(), builder.plan.buffers(high).offset() + 1000);
}

TEST(Device, QueuesAreLongerThanAStepAndBounded) {
  // One thread issues everything to rank 0 before it turns to rank 1.
  PlanBuilder builder;
  uint32_t buffer = builder.buffer(64);
  for (int i = 0; i < 500; ++i) {
    builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(buffer, plan::READ_WRITE),
                       builder.operand(buffer, plan::READ_WRITE));
    builder.record(0, 1);
    builder.wait(0, 0);
  }
  DeviceOptions options;
  options.ranks = 2;
  Contexts contexts = open(builder.plan, options);
  for (auto& context : contexts)
    for (const plan::Instruction& instruction : builder.plan.body())
      ASSERT_TRUE(context->issue(instruction, nullptr).ok());
  for (auto& context : contexts) ASSERT_TRUE(context->synchronize().ok());
}

// A plan in which rank 1's gather fails and rank 0 waits for it in a collective and, after that, on an event.
PlanBuilder failingPlan(uint32_t& indices) {
  PlanBuilder builder;
  uint32_t data = builder.buffer(40), result = builder.buffer(4), sums = builder.buffer(64);
  indices = builder.buffer(8);
  builder.call(
      plan::GatherCall{.outer = 1, .rows = 10, .inner = 1, .count = 1, .elementBytes = 4, .indexBytes = 8},
      {builder.operand(data, plan::READ), builder.operand(indices, plan::READ), builder.operand(result, plan::WRITE)},
      "wte.weight");
  builder.record(0, 0);
  builder.wait(0, 1);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sums, plan::READ_WRITE),
                     builder.operand(sums, plan::READ_WRITE));
  builder.record(1, 1);
  builder.wait(1, 0);
  return builder;
}

TEST(DeviceErrors, AnErrorOfOneRankEndsAll) {
  uint32_t indices = 0;
  PlanBuilder builder = failingPlan(indices);
  DeviceOptions options;
  options.ranks = 3;
  Contexts contexts = open(builder.plan, options);
  write(*contexts[1], builder.plan, indices, std::vector<int64_t>{10});
  for (const Status& status : runBody(builder.plan, contexts)) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.message(),
              "rank 1: body instruction 0 (gather 'wte.weight' on stream compute): index 10 at position 0 is outside "
              "[-10, 10)");
  }
  Status again = contexts[0]->issue(builder.plan.body(0), nullptr);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.message(), HasSubstr("rank 1: body instruction 0 (gather 'wte.weight'"));
}

TEST(DeviceErrors, AbortEndsARendezvous) {
  uint32_t indices = 0;
  PlanBuilder builder = failingPlan(indices);
  DeviceOptions options;
  options.ranks = 2;
  Contexts contexts = open(builder.plan, options);
  for (const plan::Instruction& instruction : builder.plan.body())
    ASSERT_TRUE(contexts[0]->issue(instruction, nullptr).ok());
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    contexts[1]->abort("the host gave up");
  });
  Status status = contexts[0]->synchronize();
  other.join();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "rank 1: the host gave up");
}

TEST(DeviceErrors, ClosingARankThatWaitsEndsTheOthers) {
  uint32_t indices = 0;
  PlanBuilder builder = failingPlan(indices);
  DeviceOptions options;
  options.ranks = 3;
  Contexts contexts = open(builder.plan, options);
  for (size_t rank : {0, 1})
    for (const plan::Instruction& instruction : builder.plan.body())
      ASSERT_TRUE(contexts[rank]->issue(instruction, nullptr).ok());
  contexts[0].reset();
  EXPECT_FALSE(contexts[1]->synchronize().ok());
}

TEST(DeviceErrors, InputThatCannotBeRead) {
  PlanBuilder builder;
  builder.instruction("tokens", 0, {builder.operand(builder.buffer(8), plan::WRITE)}).mutable_input();
  Contexts contexts = open(builder.plan);
  auto step = std::make_shared<StepValues>();
  step->readInput = [](int64_t, uint32_t, std::span<std::byte>) { return Status::error("the file is gone"); };
  EXPECT_EQ(runBody(builder.plan, contexts, step)[0].message(),
            "rank 0: body instruction 0 (read_input 'tokens' on stream compute): the file is gone");
}

TEST(DeviceErrors, OpeningNamesWhatIsMissing) {
  PlanBuilder builder;
  builder.buffer(64);
  DeviceOptions options;
  options.threadsPerRank = 9;
  EXPECT_THAT(openError(builder.plan, options), HasSubstr("scratch for 8 threads a rank, not 9"));
  options.threadsPerRank = 0;
  EXPECT_THAT(openError(builder.plan, options), HasSubstr("at least one thread"));
  addDoubleKernel(builder.plan);
  plan::Plan wrong = builder.plan;
  wrong.mutable_images(0)->add_features("tbm");  // of AMD's Bulldozer alone
  EXPECT_THAT(openError(wrong), HasSubstr("the plan's kernels need the processor feature 'tbm'"));
  wrong.mutable_images(0)->set_features(1, "warp-drive");
  EXPECT_THAT(openError(wrong), HasSubstr("'warp-drive', which this runtime does not know"));
  wrong = builder.plan;
  wrong.mutable_images(0)->set_target("cuda:sm_90");
  EXPECT_THAT(openError(wrong), HasSubstr("has kernels for cuda:sm_90, none for the CPU"));
  wrong = builder.plan;
  wrong.mutable_images(0)->mutable_entries(0)->set_offset(1000);
  EXPECT_THAT(openError(wrong), HasSubstr("outside its image"));
  wrong = builder.plan;
  wrong.mutable_memory()->set_peak_bytes(uint64_t(1) << 60);
  EXPECT_THAT(openError(wrong), HasSubstr("rank 0: cannot map an arena of 1152921504606846976 bytes"));
  builder.instruction("mystery").mutable_call()->set_function("levitate");
  EXPECT_EQ(openError(builder.plan),
            "rank 0: body instruction 0 (levitate 'mystery' on stream compute): unknown library function 'levitate'");
}

TEST(DeviceErrors, HostAccessOutsideTheArena) {
  PlanBuilder builder;
  builder.buffer(128);
  Contexts contexts = open(builder.plan);
  std::vector<std::byte> bytes(64);
  EXPECT_TRUE(contexts[0]->read(64, bytes).ok());
  EXPECT_FALSE(contexts[0]->read(65, bytes).ok());
  EXPECT_FALSE(contexts[0]->write(UINT64_MAX, bytes).ok());
}

#ifdef __SANITIZE_THREAD__
// Kernels are not instrumented, but what they access is declared: two streams that no event orders are a race.
//
// Whether it is seen must not depend on which thread runs when, so host functions lead both streams through one order,
// by flags that order nothing for ThreadSanitizer: the first kernel runs when all is issued and the second one after
// it, while the first stream stands still, because what a thread does later makes its past be forgotten.
TEST(DeviceRaces, AreReportedBetweenInstructions) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto run = [](bool ordered) {
    std::atomic<bool> issued = false, firstRan = false, secondRan = false;
    auto await = [](const std::atomic<bool>& flag) {
      while (!flag.load(std::memory_order_relaxed)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    auto set = [](std::atomic<bool>& flag) { flag.store(true, std::memory_order_relaxed); };

    PlanBuilder builder;
    uint32_t first = builder.buffer(4096), second = builder.buffer(4096), third = builder.buffer(4096);
    uint32_t nothing[] = {builder.buffer(4), builder.buffer(4)};
    uint32_t kernel = addDoubleKernel(builder.plan);
    std::vector<std::shared_ptr<StepValues>> steps;  // of each instruction: counting the owners of one orders them
    auto callback = [&](uint32_t stream, std::function<void()> function) {
      builder.instruction("callback", stream, {builder.operand(nothing[stream], plan::READ)}).mutable_output();
      steps.resize(static_cast<size_t>(builder.plan.body_size()));
      steps.back() = std::make_shared<StepValues>();
      steps.back()->writeOutput = [function](int64_t, plan::OutputKind, double) { function(); };
    };
    callback(0, [&] { await(issued); });
    launch(builder, kernel, first, second, 1024, 8, 0);
    if (ordered) builder.record(0, 0);
    callback(0, [&] { set(firstRan), await(secondRan); });
    callback(1, [&] { await(firstRan); });
    if (ordered) builder.wait(0, 1);
    launch(builder, kernel, second, third, 1024, 8, 1);
    callback(1, [&] { set(secondRan); });
    Contexts contexts = open(builder.plan);
    for (size_t i = 0; i < steps.size(); ++i)
      if (!contexts[0]->issue(builder.plan.body(static_cast<int>(i)), steps[i]).ok()) std::exit(1);
    set(issued);
    std::exit(contexts[0]->synchronize().ok() ? 0 : 1);
  };
  EXPECT_EXIT(run(true), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      run(false), [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) > 1; }, "data race");
}
#endif

}  // namespace
}  // namespace sheaf::testing
