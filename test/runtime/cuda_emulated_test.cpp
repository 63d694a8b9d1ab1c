// What only the emulated GPU can show: machines of every kind, and processes with a GPU each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "test/runtime/CudaCollectives.h"
#include "test/runtime/ThreadGroup.h"

namespace sheaf::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A variable of the environment, while the object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

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
    EXPECT_THAT(cudaOpenError(builder.plan, options),
                HasSubstr("the run needs 2 x 1.0 MiB for arenas, 0 B to exchange sums and about 256 MiB for CUDA's "
                          "libraries; Emulated GPU has 191 MiB free of 191 MiB"));
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

// The ranks of a plan, each with a device, a GPU and a thread of its own, as in processes.
class Processes {
 public:
  Processes(const plan::Plan& plan, int64_t ranks, DeviceOptions options = {},
            std::chrono::milliseconds limit = std::chrono::seconds(300))
      : group(ranks, limit), contexts(static_cast<size_t>(ranks)) {
    for (int64_t rank = 0; rank < ranks; ++rank) members.push_back(group.member(rank));
    onEach([&](size_t rank) {
      DeviceOptions mine = options;
      mine.ranks = ranks;
      mine.firstRank = static_cast<int64_t>(rank);
      mine.localRanks = 1;
      mine.processes = members[rank].get();
      contexts[rank] = openCuda(plan, mine);
    });
  }
  ~Processes() {
    // Closing is something they do together.
    onEach([&](size_t rank) { contexts[rank].clear(); });
  }

  template <typename Body>
  void onEach(Body body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < contexts.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  RankContext& rank(size_t rank) { return *contexts[rank][0]; }

  ThreadGroup group;
  std::vector<std::unique_ptr<comm::ProcessGroup>> members;
  std::vector<Contexts> contexts;
};

TEST(EmulatedNccl, EveryOperationInRankOrder) {
  for (plan::ElementType type : {plan::F32, plan::BF16, plan::F64})
    for (int64_t ranks : {2, 3})
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
  uint32_t sum = builder.buffer(12);
  builder.collective(plan::ALL_REDUCE, plan::F32, 3, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  for (bool ring : {false, true}) {
    DeviceOptions options;
    options.reduceOrder = ring ? plan::Training::RING : plan::Training::RANK;
    Processes processes(builder.plan, 3, options);
    const std::vector<float> terms[3] = {{1e8f, 1, 2}, {1, 2, 3}, {-1e8f, 3, 4}};
    for (size_t rank = 0; rank < 3; ++rank) writeBuffer(processes.rank(rank), builder.plan, sum, terms[rank]);
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank])); });
    // (1e8 + 1) - 1e8 is 0 in f32, and (1 - 1e8) + 1e8 is, too; rank order begins with rank 0, the ring with rank 1.
    EXPECT_EQ(readBuffer<float>(processes.rank(1), builder.plan, sum), (std::vector<float>{0, 6, 9}));
  }
}

// Products whose algorithms differ would give bits that no other run gives.
TEST(EmulatedNccl, ProcessesChooseTheSameAlgorithms) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  plan::LibraryCall product = libraryCall("gemm", {{"m", 8},
                                                   {"n", 8},
                                                   {"k", 8},
                                                   {"batch", 1},
                                                   {"transpose_a", 0},
                                                   {"transpose_b", 0},
                                                   {"lda", 8},
                                                   {"ldb", 8},
                                                   {"ldc", 8},
                                                   {"stride_a", 64},
                                                   {"stride_b", 64},
                                                   {"stride_c", 64}});
  for (plan::Access access : {plan::READ, plan::READ, plan::WRITE})
    *product.add_operands() = builder.operand(builder.buffer(256), access);
  builder.call(product, "product");

  // A table of what one process chooses alone, and one with another algorithm.
  const std::string folder = ::testing::TempDir(), tables[] = {folder + "products-a.txt", folder + "products-b.txt"};
  {
    DeviceOptions alone;
    alone.tuneProducts = tables[0];
    builder.plan.set_ranks(1);
    openCuda(builder.plan, alone);
    builder.plan.set_ranks(2);
  }
  std::stringstream table;
  table << std::ifstream(tables[0]).rdbuf();
  std::string text = table.str();
  const size_t algorithm = text.rfind(' ') + 1, number = algorithm + 16;  // the second word of its 128 digits
  ASSERT_EQ(text.size(), algorithm + 128 + 1);
  text.replace(number, 16, text.substr(number, 16) == std::string(16, '0') ? "0100000000000000" : std::string(16, '0'));
  std::ofstream(tables[1]) << text;

  auto errors = [&](std::initializer_list<std::string> tuned, const std::string& tune) {
    ThreadGroup group(2);
    std::vector<std::unique_ptr<comm::ProcessGroup>> members;
    for (int64_t rank = 0; rank < 2; ++rank) members.push_back(group.member(rank));
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        DeviceOptions options;
        options.ranks = 2;
        options.firstRank = static_cast<int64_t>(rank);
        options.localRanks = 1;
        options.processes = members[rank].get();
        options.tunedProducts = tuned.begin()[rank];
        options.tuneProducts = tune;
        errors[rank] = cudaOpenError(builder.plan, options);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  EXPECT_EQ(errors({"", ""}, ""), "");
  EXPECT_EQ(errors({tables[1], tables[1]}, ""), "");
  EXPECT_THAT(
      errors({tables[0], tables[1]}, ""),
      AllOf(HasSubstr("cuBLASLt chose other algorithms for the matrix products of process 0 (hash "),
            HasSubstr(") than for those of process 1 (hash "),
            HasSubstr("give all processes one table of them, made by a run with --tune FILE, as --tuned FILE")));
  // Process 0 measures for all, whatever tables they have, and writes what it has chosen.
  const std::string made = folder + "products-c.txt";
  EXPECT_EQ(errors({"", ""}, made), "");
  EXPECT_EQ(errors({made, made}, ""), "");
  EXPECT_EQ(errors({tables[0], tables[1]}, made), "");
  EXPECT_EQ(errors({made, tables[0]}, ""), "");
}

TEST(EmulatedNccl, ARankThatDoesNotComeIsToldWithItsPlace) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  uint32_t sum = builder.buffer(64);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  Processes processes(builder.plan, 2, {}, std::chrono::milliseconds(600));
  Status status = runBodies(builder.plan, processes.contexts[0])[0];
  EXPECT_EQ(
      status.message(),
      "rank 0 has been for 600 ms at body instruction 0 (all_reduce 'collective' on stream communication): another "
      "rank does not come, or the network does not deliver (SHEAF_TIMEOUT)");
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
