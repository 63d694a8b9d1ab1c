// What only the emulated GPU can show: machines of every kind, and processes with a GPU each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "test/runtime/CudaCollectives.h"
#include "test/runtime/CudaProcesses.h"
#include "test/runtime/HostUpdatePlan.h"
#include "test/runtime/TrainingPlan.h"
#include "test/runtime/Transfers.h"

namespace sheaf::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(EmulatedGpu, MachinesThatCannotRunAPlan) {
  PlanBuilder builder;
  builder.buffer(1 << 20);
  {
    Variable none("SHEAF_EMULATED_DEVICES", "0");
    EXPECT_THAT(cudaOpenError(builder.plan), HasSubstr("there is no GPU to run on: no CUDA-capable device"));
  }
  {
    Variable little("SHEAF_EMULATED_MEMORY", "200000000");
    DeviceOptions options;
    options.ranks = 2;
    EXPECT_THAT(
        cudaOpenError(builder.plan, options),
        HasSubstr("the run needs 2 x 1.0 MiB for arenas and about 256 MiB for CUDA's libraries; Emulated GPU has "
                  "191 MiB free of 191 MiB"));
  }
  for (const char* target : {"cuda:sm_100", "cuda:sm_90", "cpu"}) {
    builder.plan.add_images()->set_target(target);
    builder.plan.mutable_images()->rbegin()->add_entries();
    builder.plan.mutable_images()->rbegin()->set_code(std::string(1, '\xc3'));
  }
  builder.plan.add_kernels()->set_symbol("nothing");
  EXPECT_EQ(cudaOpenError(builder.plan), "");
  Variable old("SHEAF_EMULATED_ARCHITECTURE", "86");
  EXPECT_EQ(cudaOpenError(builder.plan),
            "the plan has kernels for cuda:sm_100, cuda:sm_90, cpu, none for Emulated GPU (sm_86); compile it with "
            "--target cuda:sm_86 or an older one");
}

// What a graph does not order runs in any order, step by step: a missing wait shows.
TEST(EmulatedGpu, GraphsOrderOnlyWhatTheirEdgesOrder) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the plan has a race, which ThreadSanitizer finds";
#endif
  PlanBuilder builder;
  const uint32_t step = builder.buffer(8), seen = builder.buffer(8);
  // seen = step; step = the other buffer: the copies are on two streams without an event between them.
  const uint32_t other = builder.buffer(8);
  auto copy = [&](uint32_t from, uint32_t to, uint32_t stream) {
    builder.call(plan::CopyCall{.elementBytes = 1, .dimensions = {{8, 1, 1}}},
                 {builder.operand(from, plan::READ), builder.operand(to, plan::WRITE)}, "copy", stream);
  };
  copy(other, step, 0);
  copy(step, seen, 1);
  Contexts contexts = openCuda(builder.plan);
  ASSERT_EQ(contexts.size(), 1u);
  int old = 0;
  for (double value = 1; value <= 40; ++value) {
    writeBuffer(*contexts[0], builder.plan, other, std::vector<double>{value});
    expectOk(runBodies(builder.plan, contexts));
    old += readBuffer<double>(*contexts[0], builder.plan, seen)[0] != value;
  }
  EXPECT_GT(old, 5) << "the order of the capture is kept";
  EXPECT_LT(old, 35);
}

// A plan that keeps so many bytes in host memory, and takes them there and back.
struct HostPlan {
  explicit HostPlan(uint64_t bytes) : bytes(bytes) {
    from = builder.buffer(bytes), to = builder.buffer(bytes);
    host = bufferIn(builder, plan::Buffer::HOST, bytes);
    transfer(builder, plan::Transfer::TO_HOST, from, host);
    transfer(builder, plan::Transfer::TO_DEVICE, host, to);
  }

  uint64_t bytes;
  PlanBuilder builder;
  uint32_t from, to, host;
};

TEST(EmulatedGpu, MemoryThatCannotBePinned) {
  const HostPlan plan(10 << 20);
  Variable little("SHEAF_EMULATED_PINNABLE", "9000000");
  EXPECT_THAT(cudaOpenError(plan.builder.plan),
              AllOf(HasSubstr("rank 0: cannot pin 10.0 MiB (10485760 bytes) of host memory for what --offload keeps "
                              "there: out of memory (CUDA error 2); this process may lock "),
                    HasSubstr("(ulimit -l"), HasSubstr("move less with --offload or --host-memory")));
  // Of two ranks, the second one finds too little.
  Variable half("SHEAF_EMULATED_PINNABLE", "15000000");
  DeviceOptions two;
  two.ranks = 2;
  EXPECT_THAT(cudaOpenError(plan.builder.plan, two), HasSubstr("rank 1: cannot pin 10.0 MiB"));
  // Nothing of it stays pinned.
  EXPECT_EQ(cudaOpenError(plan.builder.plan), "");
}

// Drivers from 580 on do not register 512 GiB in one call. Copies do not cross from one registration to the next.
TEST(EmulatedGpu, LargeMemoryIsRegisteredInPieces) {
  const HostPlan plan((256 << 20) + (40 << 20));
  Variable pieces("SHEAF_EMULATED_REGISTRABLE", "268435456");
  const std::vector<std::byte> values = numbers(plan.bytes, 1);
  {
    Contexts contexts = openCuda(plan.builder.plan);
    ASSERT_EQ(contexts.size(), 1u);
    writeBuffer(*contexts[0], plan.builder.plan, plan.from, values);
    expectOk(runBodies(plan.builder.plan, contexts, 3));  // the last one as a graph
    EXPECT_TRUE(readBuffer<std::byte>(*contexts[0], plan.builder.plan, plan.to) == values);
    std::vector<std::byte> found(1 << 20);
    const uint64_t middle = (256 << 20) - (1 << 19);
    ASSERT_TRUE(contexts[0]->readSpace(plan::Buffer::HOST, middle, found).ok());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), values.begin() + static_cast<std::ptrdiff_t>(middle)));
  }
  // One piece is too large for the driver all the same.
  Variable none("SHEAF_EMULATED_REGISTRABLE", "268435455");
  EXPECT_THAT(cudaOpenError(plan.builder.plan), HasSubstr("rank 0: cannot pin 296 MiB"));
}

TEST(EmulatedGpu, MemoryLiesOnTheNodeOfTheGpu) {
  const HostPlan plan(1 << 20);
  for (const char* node : {"-1", "0", "700", "100000"}) {  // unknown, there, and two that the machine lacks
    Variable nearest("SHEAF_EMULATED_NODE", node);
    std::string found;
    DeviceOptions options;
    options.note = [&](const std::string& name, const std::string& value) {
      if (name == "pinned_on_node") found = value;
    };
    ASSERT_EQ(openCuda(plan.builder.plan, options).size(), 1u);
    EXPECT_THAT(found, ::testing::AnyOf("unknown", ::testing::MatchesRegex("[0-9]+"))) << node;
  }
}

// One of the ranks cannot read its file: the others, which wait for it in a collective, end with its error.
TEST(EmulatedNccl, AnErrorOfAFileEndsAllProcesses) {
  TemporaryFolder folder;
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t sum = builder.buffer(8192), file = bufferIn(builder, plan::Buffer::FILE, 8192);
  transfer(builder, plan::Transfer::READ_FILE, file, sum);
  builder.record(0, 2);
  builder.wait(0, 1);
  builder.collective(plan::ALL_REDUCE, plan::F32, 2048, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  builder.record(1, 1);
  builder.wait(1, 2);
  DeviceOptions options;
  options.offloadFolders = {folder.path()};
  for (const int damaged : {0, 5}) {  // one by one, and in a graph
    Processes processes(builder.plan, 2, options, std::chrono::seconds(60));
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], damaged)); });
    std::filesystem::resize_file(folder / "rank-1.arena", 0);
    std::string errors[2];
    processes.onEach([&](size_t rank) {
      // The other one may have what this one sent before it ended, and finds out a step later.
      for (int step = 0; step < 1000 && errors[rank].empty(); ++step)
        errors[rank] = runBodies(builder.plan, processes.contexts[rank])[0].message();
      // What a launcher does: the process ends, and the others get to know it.
      if (rank == 1) processes.rank(0).abort("process 1 has ended");
    });
    EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1: body instruction 0 (read_file 'move'"),
                                 HasSubstr("rank-1.arena: it ends at byte 0")));
    EXPECT_THAT(errors[0], HasSubstr("rank 0: process 1 has ended"));
  }
}

// An update on the host of a gradient that is summed over the ranks before.
HostUpdatePlan summedHostUpdate(uint64_t elements) {
  HostUpdatePlan plan(elements, false, [](HostUpdatePlan& made) {
    PlanBuilder& builder = made.builder;
    builder.wait(HostUpdatePlan::kMoved, 1);
    const plan::Operand gradient = builder.operand(made.gradient, plan::READ_WRITE);
    builder.collective(plan::ALL_REDUCE, plan::F32, made.bytes / sizeof(float), gradient, gradient);
    builder.record(HostUpdatePlan::kFree, 1);
    builder.wait(HostUpdatePlan::kFree, HostUpdatePlan::kToHost);
  });
  plan.builder.plan.set_ranks(2);
  return plan;
}

TEST(EmulatedNccl, ProcessesUpdateOnTheHost) {
  const HostUpdatePlan plan = summedHostUpdate(50000);
  DeviceOptions options;
  options.threadsPerRank = 2;
  Processes processes(plan.builder.plan, 2, options);
  Momentum expected(plan.bytes);
  for (int round = 0; round < 6; ++round) {
    std::vector<float> sum(plan.bytes / sizeof(float));
    for (size_t rank = 0; rank < 2; ++rank) {
      const std::vector<float> gradient = gradientOf(plan.bytes, round, rank);
      writeBuffer(processes.rank(rank), plan.builder.plan, plan.gradient, gradient);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    expected.update(sum, round);
    processes.onEach([&](size_t rank) {
      expectOk(runBodies(plan.builder.plan, processes.contexts[rank], 1, [&](int) { return valuesOf(round); }));
      EXPECT_TRUE(readBuffer<float>(processes.rank(rank), plan.builder.plan, plan.result) == expected.p)
          << "rank " << rank << ", round " << round;
    });
  }
}

// The thread waits for its stream, which waits for another process.
TEST(EmulatedNccl, AnAbortEndsAThreadsWaitForItsStream) {
  const HostUpdatePlan plan = summedHostUpdate(64);
  for (const int before : {0, 5}) {  // one by one, and in a graph
    Processes processes(plan.builder.plan, 2);
    processes.onEach(
        [&](size_t rank) { expectOk(runBodies(plan.builder.plan, processes.contexts[rank], before, valuesOf)); });
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      processes.rank(0).abort("process 1 has ended");
    });
    const Status status = runBodies(plan.builder.plan, processes.contexts[0], 1, valuesOf)[0];
    other.join();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 0: process 1 has ended; it was at "),
                                        HasSubstr("body instruction 1 (all_reduce 'collective' on stream")));
  }
}

// The stream waits for its thread, which does something long.
TEST(EmulatedNccl, AnAbortEndsAStreamsWaitForItsThread) {
  HostUpdatePlan plan = summedHostUpdate(64);
  // nanosleep of four seconds: mov eax, 35; lea rdi, [the seconds]; xor esi, esi; syscall; ret
  constexpr std::string_view kSleep(
      "\xb8\x23\0\0\0\x48\x8d\x3d\x05\0\0\0\x31\xf6\x0f\x05\xc3\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 33);
  plan.builder.plan.mutable_images(1)->set_code(std::string(kSleep));
  // What follows would copy parameters while they are written, once the wait for that has ended.
  auto& body = *plan.builder.plan.mutable_body();
  body.DeleteSubrange(plan.update + 1, body.size() - plan.update - 1);
  Processes processes(plan.builder.plan, 2);
  const auto begin = std::chrono::steady_clock::now();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    processes.rank(0).abort("process 1 has ended");
  });
  std::string error;
  processes.onEach([&](size_t rank) {
    const Status status = runBodies(plan.builder.plan, processes.contexts[rank], 1, valuesOf)[0];
    if (rank == 0) error = status.message();
    EXPECT_TRUE(rank == 1 || std::chrono::steady_clock::now() - begin < std::chrono::seconds(4));
  });
  other.join();
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0: process 1 has ended; it was at "),
                           HasSubstr(cat("body instruction ", plan.update, " (kernel 'all' on stream host_compute)"))));
}

TEST(EmulatedNccl, EveryOperationInTheTreesOrder) {
  for (plan::ElementType type : {plan::F32, plan::BF16, plan::F64})
    for (int64_t ranks : {2, 3, 4})
      for (uint64_t count : {1, 19, 40000}) {  // exchanged whole, and in parts
        CollectivePlan plan(type, ranks, count);
        Processes processes(plan.builder.plan, ranks);
        std::vector<RankContext*> all;
        for (int64_t rank = 0; rank < ranks; ++rank) all.push_back(&processes.rank(static_cast<size_t>(rank)));
        expectCollectives(plan, all, [&] {
          processes.onEach([&](size_t rank) {
            expectOk(runBodies(plan.builder.plan, processes.contexts[rank], 4));  // the last ones as graphs
          });
        });
      }
}

TEST(EmulatedNccl, ItsOwnOrderIfAsked) {
  PlanBuilder builder;
  builder.plan.set_ranks(3);
  uint32_t sum = builder.buffer(12), terms = builder.buffer(12), on = builder.buffer(12);
  builder.collective(plan::ALL_REDUCE, plan::F32, 3, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  // One that goes on from what there is has no order of NCCL's.
  builder.collective(plan::ALL_REDUCE, plan::F32, 3, builder.operand(terms, plan::READ),
                     builder.operand(on, plan::READ_WRITE), 0, 1, true);
  for (bool ring : {false, true}) {
    DeviceOptions options;
    options.reduceOrder = ring ? plan::Training::RING : plan::Training::TREE;
    Processes processes(builder.plan, 3, options);
    const std::vector<float> values[3] = {{1e8f, 1, 2}, {1, 2, 3}, {-1e8f, 3, 4}};
    for (size_t rank = 0; rank < 3; ++rank) {
      writeBuffer(processes.rank(rank), builder.plan, sum, values[rank]);
      writeBuffer(processes.rank(rank), builder.plan, terms, values[rank]);
      writeBuffer(processes.rank(rank), builder.plan, on, std::vector<float>{-1e8f, 4, 5});
    }
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank])); });
    // (1e8 + 1) - 1e8 is 0 in f32, and (1 - 1e8) + 1e8 is, too; the tree begins with ranks 0 and 1, the ring with
    // rank 1.
    EXPECT_EQ(readBuffer<float>(processes.rank(1), builder.plan, sum), (std::vector<float>{0, 6, 9}));
    // ((-1e8 + 1e8) + 1) - 1e8.
    EXPECT_EQ(readBuffer<float>(processes.rank(1), builder.plan, on), (std::vector<float>{-1e8f + 1, 10, 14}));
  }
}

// A plan of one product.
PlanBuilder productOf(int64_t size) {
  PlanBuilder builder;
  std::vector<plan::Operand> operands;
  for (plan::Access access : {plan::READ, plan::READ, plan::WRITE})
    operands.push_back(builder.operand(builder.buffer(static_cast<uint64_t>(4 * size * size)), access));
  builder.call(plan::GemmCall{.m = size, .n = size, .k = size, .lda = size, .ldb = size, .ldc = size}, operands,
               "product");
  return builder;
}

std::string textOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The error with which both of two processes end, or do not: each with a plan and a table of products. `numbered`:
// they know their number on their host.
std::string errorOfTwo(const PlanBuilder* const (&builders)[2], const std::string (&tables)[2], bool numbered = true) {
  ThreadGroup group(2, std::chrono::seconds(20));
  group.numbered = numbered;
  std::vector<std::unique_ptr<comm::ProcessGroup>> members;
  for (int64_t rank = 0; rank < 2; ++rank) members.push_back(group.member(rank));
  std::string errors[2];
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      DeviceOptions options;
      options.ranks = 2;
      options.firstRank = static_cast<int64_t>(rank);
      options.localRanks = 1;
      options.processes = members[rank].get();
      options.products = tables[rank];
      errors[rank] = cudaOpenError(builders[rank]->plan, options);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

// A process takes the GPU of its number on its host, or the only one that it sees.
TEST(EmulatedNccl, EveryProcessHasAGpuOfItsOwn) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  auto error = [&](bool numbered) { return errorOfTwo({&builder, &builder}, {"", ""}, numbered); };
  EXPECT_EQ(error(true), "");
  EXPECT_THAT(error(false), HasSubstr("2 GPUs are visible, and nothing says which is this process's: nothing numbers "
                                      "the processes"));
  Variable one("SHEAF_EMULATED_VISIBLE_DEVICES", "1");
  for (bool numbered : {true, false})
    EXPECT_THAT(error(numbered), HasSubstr("process 0 and process 1 have the same GPU (Emulated GPU)"));
  {
    Variable shared("NCCL_MULTI_RANK_GPU_ENABLE", "0");
    EXPECT_THAT(error(true), HasSubstr("have the same GPU"));
  }
  Variable shared("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  EXPECT_EQ(error(false), "");
}

// Products whose algorithms differ would give bits that no other run gives.
TEST(EmulatedNccl, ProcessesChooseTheSameAlgorithms) {
  PlanBuilder builder = productOf(8), other = productOf(4);
  builder.plan.set_ranks(2);
  other.plan.set_ranks(2);
  EXPECT_EQ(errorOfTwo({&builder, &builder}, {"", ""}), "");
  EXPECT_THAT(errorOfTwo({&builder, &other}, {"", ""}),
              AllOf(HasSubstr("cuBLASLt chose other algorithms for the matrix products of process 0 (hash "),
                    HasSubstr(") than for those of process 1 (hash "),
                    HasSubstr("with --tuned FILE all take those of process 0")));
}

TEST(EmulatedNccl, ATableOfProductsIsMadeOnceAndChoosesForAllProcesses) {
  PlanBuilder builder = productOf(8);
  const TemporaryFolder folder;
  const std::string measured = folder / "measured.txt";
  DeviceOptions alone;
  alone.products = measured;
  EXPECT_EQ(cudaOpenError(builder.plan, alone), "");
  const std::string text = textOf(measured);
  const size_t algorithm = text.rfind(' ') + 1, number = algorithm + 16;  // the second word of its 128 digits
  ASSERT_EQ(text.size(), algorithm + 128 + 1);
  EXPECT_THAT(text, ::testing::Not(HasSubstr(" 0 "))) << "nothing was measured";
  EXPECT_EQ(cudaOpenError(builder.plan, alone), "");
  EXPECT_EQ(textOf(measured), text) << "a table that is there is not made again";

  // One with another algorithm: only process 0 has it, and process 1 would choose otherwise by itself.
  std::string changed = text;
  changed.replace(number, 16,
                  text.substr(number, 16) == std::string(16, '0') ? "0100000000000000" : std::string(16, '0'));
  std::ofstream(folder / "changed.txt") << changed;
  builder.plan.set_ranks(2);
  for (const char* name : {"measured.txt", "changed.txt", "made.txt"})
    EXPECT_EQ(errorOfTwo({&builder, &builder}, {folder / name, folder / "none.txt"}), "") << name;
  EXPECT_THAT(textOf(folder / "made.txt"), ::testing::StartsWith("sheaf-products 1\n"));
  EXPECT_EQ(textOf(folder / "changed.txt"), changed);
  EXPECT_FALSE(std::filesystem::exists(folder / "none.txt")) << "process 1 wrote a table";

  builder.plan.set_ranks(1);
  std::ofstream(folder / "empty.txt").flush();
  alone.products = folder / "empty.txt";
  EXPECT_THAT(cudaOpenError(builder.plan, alone), HasSubstr("empty.txt is empty"));
  alone.products = folder / "nowhere/table.txt";
  EXPECT_THAT(cudaOpenError(builder.plan, alone), HasSubstr("the table of products: "));
}

// The arena of a large model leaves no room for a second copy of its largest product.
TEST(EmulatedGpu, ProductsAreMeasuredInTheArena) {
  constexpr int64_t kApart = 70 << 20;  // elements between the two rows of a: more than what CUDA's libraries are left
  PlanBuilder builder;
  std::vector<plan::Operand> operands;
  for (auto [count, access] : {std::pair{kApart + 1, plan::READ}, {int64_t{1}, plan::READ}, {int64_t{2}, plan::WRITE}})
    operands.push_back(builder.operand(builder.buffer(static_cast<uint64_t>(4 * count)), access));
  builder.call(plan::GemmCall{.m = 2, .n = 1, .k = 1, .lda = kApart, .ldb = 1, .ldc = 1}, operands, "product");
  const uint64_t arena = builder.plan.memory().peak_bytes();
  Variable memory("SHEAF_EMULATED_MEMORY", std::to_string(arena + (258 << 20)).c_str());
  for (bool poison : {false, true}) {
    const TemporaryFolder folder;
    const std::string table = folder / "measured.txt";
    std::vector<std::string> warnings;
    DeviceOptions options;
    options.products = table;
    options.poison = poison;
    options.warn = [&](const std::string& what) { warnings.push_back(what); };
    Contexts contexts = openCuda(builder.plan, options);
    ASSERT_EQ(contexts.size(), 1u);
    EXPECT_THAT(warnings, ::testing::IsEmpty());
    EXPECT_THAT(textOf(table), AllOf(HasSubstr("f32,nn,m2,n1,k1,"), ::testing::Not(HasSubstr(" 0 "))));
    // Nothing of it is left.
    for (uint64_t at : {uint64_t{0}, uint64_t{4 * kApart}, arena - 4}) {
      std::byte left[4];
      ASSERT_TRUE(contexts[0]->read(at, left).ok());
      EXPECT_EQ(left[0], poison ? std::byte{0xA5} : std::byte{0}) << "byte " << at;
    }
    EXPECT_EQ(contexts[0]->highestTouchedByte(), 0u);
  }
}

TEST(EmulatedNccl, ARankThatDoesNotComeIsReportedWithItsPlace) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  uint32_t sum = builder.buffer(64);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  Processes processes(builder.plan, 2, {}, std::chrono::milliseconds(600));
  Status status = runBodies(builder.plan, processes.contexts[0])[0];
  EXPECT_EQ(status.message(),
            "rank 0 has made no progress for 600 ms at body instruction 0 (all_reduce 'collective' on stream "
            "communication): another rank did not reach it, or the network does not deliver (SHEAF_TIMEOUT)");
  EXPECT_EQ(processes.group.failures(), std::vector<std::string>{status.message()});
}

TEST(EmulatedNccl, AnAbortEndsWhatWaits) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  uint32_t sum = builder.buffer(64);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  Processes processes(builder.plan, 2);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    processes.rank(0).abort("process 1 has ended");
  });
  Status status = runBodies(builder.plan, processes.contexts[0])[0];
  other.join();
  EXPECT_EQ(status.message(),
            "rank 0: process 1 has ended; it was at body instruction 0 (all_reduce 'collective' on stream "
            "communication)");
}

}  // namespace
}  // namespace sheaf::testing
