// What NCCL's rules demand of the device, with a double that enforces them (docs/cuda-emulation.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>

#include "test/runtime/CudaCollectives.h"
#include "test/runtime/CudaProcesses.h"
#include "test/runtime/Deadline.h"

namespace sheaf::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A gather on one communicator, then a sum on the other, on one stream, as the compiler makes them.
PlanBuilder gatherAndSum(plan::CollectiveOp sum, uint64_t count) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t gathered = builder.buffer(2 * 4 * count), terms = builder.buffer(2 * 4 * count);
  plan::Operand own = builder.operand(gathered, plan::READ_WRITE), part = builder.operand(terms, plan::READ_WRITE);
  for (plan::Operand* each : {&own, &part}) each->set_bytes(4 * count), each->set_shard_stride(4 * count);
  builder.collective(plan::ALL_GATHER, plan::F32, count, own, builder.operand(gathered, plan::READ_WRITE));
  if (sum == plan::REDUCE_SCATTER)
    builder.collective(sum, plan::F32, count, builder.operand(terms, plan::READ_WRITE), part, 1);
  else
    builder.collective(sum, plan::F32, 2 * count, builder.operand(terms, plan::READ_WRITE),
                       builder.operand(terms, plan::READ_WRITE), 1);
  return builder;
}

// Two collectives of different communicators on two streams, without an event between them.
PlanBuilder unorderedCollectives(uint64_t count = 32) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t gathered = builder.buffer(2 * 4 * count), sum = builder.buffer(256);
  plan::Operand own = builder.operand(gathered, plan::READ_WRITE);
  own.set_bytes(4 * count), own.set_shard_stride(4 * count);
  builder.collective(plan::ALL_GATHER, plan::F32, count, own, builder.operand(gathered, plan::READ_WRITE), 0, 1);
  builder.collective(plan::ALL_REDUCE, plan::F32, 64, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE), 1, 2);
  return builder;
}

// A GPU that runs one collective at a time may run two that nothing orders in another order than its peer. NCCL orders
// them from 2.26 on, unless the environment says otherwise; events do before that.
TEST(NcclRules, CollectivesOfTwoCommunicatorsHaveOneOrder) {
  struct Case {
    const char *version, *variable, *order;
  };
  for (const Case& c : {Case{"2.28", nullptr, "nccl"},
                        {"2.28", "1", "nccl"},
                        {"2.28", "0", "events"},
                        {"2.26", nullptr, "nccl"},
                        {"2.25", nullptr, "events"},
                        {"2.25", "1", "events"}})
    for (bool graphs : {false, true}) {
      SCOPED_TRACE(std::string(c.version) + (c.variable ? c.variable : "") + (graphs ? " graphs" : " one by one"));
      Variable version("SHEAF_EMULATED_NCCL", c.version);
      std::optional<Variable> given;
      if (c.variable) given.emplace("NCCL_LAUNCH_ORDER_IMPLICIT", c.variable);
      expectEnds(std::chrono::seconds(60), [&] {
        PlanBuilder builder = unorderedCollectives();
        std::atomic<int> noted = 0;
        DeviceOptions options;
        options.graphs = graphs;
        options.note = [&](const std::string& name, const std::string& value) {
          noted += name == "order_of_collectives" && value == c.order;
        };
        Processes processes(builder.plan, 2, options, std::chrono::seconds(3));
        EXPECT_EQ(noted, 2);
        processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 8)); });
      });
    }
}

// NCCL 2.29 gathers large messages by copy engines on Blackwell, without being asked to, and small ones by kernels.
// Then its order of launches fails in captures, and events make the order.
TEST(NcclRules, EventsOrderWhatCopyEnginesAndKernelsGather) {
  Variable version("SHEAF_EMULATED_NCCL", "2.29"), blackwell("SHEAF_EMULATED_ARCHITECTURE", "100");
  Variable threshold("NCCL_SYM_CE_THRESHOLD", "1048576"), host("NCCL_HOSTID", "one");
  expectEnds(std::chrono::seconds(60), [] {
    PlanBuilder builder = unorderedCollectives(300'000);
    Processes processes(builder.plan, 2);
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 6)); });
  });
}

// On one stream they are in order, and NCCL is not asked to order them.
TEST(NcclRules, CollectivesOfOneStreamAreInOrder) {
  expectEnds(std::chrono::seconds(60), [] {
    PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
    Processes processes(builder.plan, 2);
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 6)); });
    EXPECT_EQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), nullptr);
  });
}

// Processes with a GPU each, on one machine, on machines of three, and on the plan's nodes.
TEST(NcclRules, HopsOfNodes) {
  Deadline deadline(std::chrono::seconds(120));
  Variable memory("SHEAF_EMULATED_MEMORY", "549755813888");  // of six GPUs with five communicators each
  for (int perMachine : {6, 3, 2})
    for (bool graphs : {false, true}) {
      SCOPED_TRACE(std::to_string(perMachine) + (graphs ? " graphs" : " one by one"));
      HopsPlan plan;
      DeviceOptions options;
      options.graphs = graphs;
      options.processesPerNode = perMachine;
      Processes processes(plan.builder.plan, HopsPlan::kRanks, options);
      if (::testing::Test::HasFailure()) return;
      std::vector<RankContext*> all;
      for (auto& contexts : processes.contexts) all.push_back(contexts[0].get());
      expectHops(plan, all, [&] {
        processes.onEach([&](size_t rank) { expectOk(runBodies(plan.builder.plan, processes.contexts[rank], 5)); });
      });
      if (::testing::Test::HasFailure()) return;
    }
}

// A send hangs if one side's buffer is registered and the other's is not. A window is registered; in a graph, all
// memory is that other GPUs can map.
TEST(NcclRules, BothSidesOfASendAreRegisteredOrNeither) {
  Deadline deadline(std::chrono::seconds(60));
  Variable none("NCCL_P2P_LL_THRESHOLD", "0");  // as if all messages were larger than 512 KiB
  for (const char* windows : {"1", "0"})
    for (bool graphs : {false, true})
      for (plan::CollectiveOp sum : {plan::REDUCE_SCATTER, plan::ALL_REDUCE}) {
        SCOPED_TRACE(std::string(windows) + (graphs ? " graphs" : " one by one") + std::to_string(sum));
        Variable wanted("SHEAF_NCCL_WINDOWS", windows);
        PlanBuilder builder = gatherAndSum(sum, 20000);
        DeviceOptions options;
        options.graphs = graphs;
        Processes processes(builder.plan, 2, options, std::chrono::seconds(3));
        if (::testing::Test::HasFailure()) return;
        processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 4)); });
        if (::testing::Test::HasFailure()) return;
      }
}

// Sums of what lies in symmetric windows are the switch's, whatever NCCL_ALGO says: exact here, where the ring's is 0.
// On a communicator that gathers as well, too.
TEST(NcclRules, SumsInRingOrderAreTheRings) {
  for (uint32_t communicator : {0, 1}) {
    SCOPED_TRACE(communicator);
    PlanBuilder builder;
    builder.plan.set_ranks(3);
    const uint32_t gathered = builder.buffer(3 * 128), sum = builder.buffer(4);
    plan::Operand own = builder.operand(gathered, plan::READ_WRITE);
    own.set_bytes(128), own.set_shard_stride(128);
    builder.collective(plan::ALL_GATHER, plan::F32, 32, own, builder.operand(gathered, plan::READ_WRITE));
    builder.collective(plan::ALL_REDUCE, plan::F32, 1, builder.operand(sum, plan::READ_WRITE),
                       builder.operand(sum, plan::READ_WRITE), communicator);
    DeviceOptions options;
    options.reduceOrder = plan::Training::RING;
    Processes processes(builder.plan, 3, options);
    const float terms[3] = {1e8f, 1, -1e8f};
    for (size_t rank = 0; rank < 3; ++rank)
      writeBuffer(processes.rank(rank), builder.plan, sum, std::vector<float>{terms[rank]});
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank])); });
    EXPECT_EQ(readBuffer<float>(processes.rank(1), builder.plan, sum), std::vector<float>{0});
  }
}

// A gather by copy engines waits for flags of its peers. In a graph it does not if the gather before it was the first
// one of all. NCCL chooses copy engines where they are asked for, and on Blackwell also for messages above a threshold,
// which those of the warm-up are not.
TEST(NcclRules, GraphsFollowTwoGathersByCopyEngines) {
  Variable version("SHEAF_EMULATED_NCCL", "2.29"), blackwell("SHEAF_EMULATED_ARCHITECTURE", "100");
  Variable threshold("NCCL_SYM_CE_THRESHOLD", "1048576");
  for (bool asked : {true, false})
    expectEnds(std::chrono::seconds(60), [&] {
      std::optional<Variable> host;  // not one node: copy engines are not asked for
      if (!asked) host.emplace("NCCL_HOSTID", "one");
      PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 300'000);
      Processes processes(builder.plan, 2);
      processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 6)); });
    });
}

// The call returns long before the window exists, from 2.28 on with success, and only one thread may ask whether it
// does.
TEST(NcclRules, RegistrationsAreWaitedForByOneThread) {
  Variable slow("SHEAF_EMULATED_NCCL_REGISTRATION", "300");
  for (const char* version : {"2.28", "2.27"}) {
    SCOPED_TRACE(version);
    Variable emulated("SHEAF_EMULATED_NCCL", version);
    expectEnds(std::chrono::seconds(60), [] {
      CollectivePlan plan(plan::F32, 2, 4096);
      Processes processes(plan.builder.plan, 2);
      if (::testing::Test::HasFailure()) return;
      std::vector<RankContext*> all{&processes.rank(0), &processes.rank(1)};
      expectCollectives(plan, all, [&] {
        processes.onEach([&](size_t rank) { expectOk(runBodies(plan.builder.plan, processes.contexts[rank], 4)); });
      });
    });
  }
}

// An abort returns when the graphs are gone that captured the communicator, and they wait for all communicators.
TEST(NcclRules, AllCommunicatorsAreAbortedAtOnce) {
  Variable noCopyEngines("SHEAF_NCCL_WINDOWS", "0");
  expectEnds(std::chrono::seconds(30), [] {
    PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
    Processes processes(builder.plan, 2, {}, std::chrono::milliseconds(600));
    if (::testing::Test::HasFailure()) return;
    processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 4)); });
    EXPECT_THAT(runBodies(builder.plan, processes.contexts[0])[0].message(),
                HasSubstr("has made no progress for 600 ms"));
  });
}

// When a process is lost the others say where they were.
TEST(NcclRules, ALostProcessIsReportedWithThePlace) {
  Deadline deadline(std::chrono::seconds(30));
  Variable noCopyEngines("SHEAF_NCCL_WINDOWS", "0");
  PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
  Processes processes(builder.plan, 2);
  if (::testing::Test::HasFailure()) return;
  processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 4)); });
  std::thread lost([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    processes.group.lose("process 1 is gone");
  });
  const Status status = runBodies(builder.plan, processes.contexts[0])[0];
  lost.join();
  EXPECT_THAT(status.message(), HasSubstr("rank 0: process 1 is gone; it was at "));
}

// Copy engines that gather wait for the other GPUs, aborted or not: the process is given up, after a bounded time.
TEST(NcclRulesDeathTest, AGatherThatCannotBeAbortedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (bool graphs : {false, true})
    EXPECT_EXIT(
        {
          Deadline deadline(std::chrono::seconds(30));
          PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
          DeviceOptions options;
          options.graphs = graphs;
          options.abandon = [](const std::string& why) {
            std::fprintf(stderr, "abandoned: %s\n", why.c_str());
            _exit(7);
          };
          Processes processes(builder.plan, 2, options, std::chrono::milliseconds(600));
          processes.onEach([&](size_t rank) { expectOk(runBodies(builder.plan, processes.contexts[rank], 4)); });
          (void)runBodies(builder.plan, processes.contexts[0]);
          _exit(2);
        },
        ::testing::ExitedWithCode(7), "abandoned: rank 0 has made no progress for 600 ms.*has not let go of the GPU");
}

// The errors with which two processes end.
std::vector<std::string> openErrors(std::array<const plan::Plan*, 2> plans, DeviceOptions options = {},
                                    std::chrono::seconds patience = std::chrono::seconds(20)) {
  ThreadGroup group(2, patience);
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank, options]() mutable {
      std::unique_ptr<comm::ProcessGroup> member = group.member(rank);
      options.ranks = 2;
      options.firstRank = rank;
      options.localRanks = 1;
      options.processesPerNode = 2;
      options.processes = member.get();
      errors[static_cast<size_t>(rank)] = cudaOpenError(*plans[static_cast<size_t>(rank)], options);
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(NcclRules, ProcessesUseNcclInTheSameWay) {
  Deadline deadline(std::chrono::seconds(60));
  PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64), sums;
  sums.plan.set_ranks(2);  // no gathers, so no windows
  std::atomic<int> aborted = 0;
  DeviceOptions options;
  options.aborted = [&] { ++aborted; };
  for (const std::string& error : openErrors({&builder.plan, &sums.plan}, options))
    EXPECT_THAT(error,
                AllOf(HasSubstr("process 0 has NCCL"), ContainsRegex("with windows, one node.*process 1 has NCCL"),
                      ContainsRegex("without windows, one node.*SHEAF_NCCL_WINDOWS")));
  EXPECT_EQ(aborted, 2);  // communicators are not closed in order: that would wait for each other
}

// The bits of NCCL's ring are promised; the environment may not choose otherwise.
TEST(NcclRules, RingOrderIsNotTakenBackByTheEnvironment) {
  Deadline deadline(std::chrono::seconds(60));
  PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
  DeviceOptions options;
  options.reduceOrder = plan::Training::RING;
  for (const auto& [name, value] : {std::pair("NCCL_ALGO", "Tree"), std::pair("NCCL_PROTO", "LL")}) {
    Variable other(name, value);
    for (const std::string& error : openErrors({&builder.plan, &builder.plan}, options))
      EXPECT_THAT(error, AllOf(HasSubstr(std::string("--reduce-order ring sets ") + name),
                               HasSubstr(std::string("the environment has ") + value)));
  }
  Variable algorithm("NCCL_ALGO", "ring"), protocol("NCCL_PROTO", "SIMPLE");
  EXPECT_THAT(openErrors({&builder.plan, &builder.plan}, options), Each(""));
}

// The copy engines' flags are placed after the first window. What the warm-up registers must leave room for an arena
// that is almost as large as the symmetric address space, before the flags or after them.
TEST(NcclRules, AnArenaMayFillTheSymmetricSpace) {
  Deadline deadline(std::chrono::seconds(60));
  Variable space("SHEAF_EMULATED_NCCL_SPACE", "41943040");        // 40 MiB
  PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 2 << 20);  // 32 MiB, in messages of 16 MiB
  for (const char* version : {"2.28", "2.27"}) {
    SCOPED_TRACE(version);
    Variable emulated("SHEAF_EMULATED_NCCL", version);
    EXPECT_THAT(openErrors({&builder.plan, &builder.plan}), Each(""));
  }
}

// What the warm-up registered is free when no process has it mapped any more. Without sums there is nothing after it
// that the processes do together. The GPU has 257 MiB for the arenas, of a few KiB, and CUDA's libraries, and the two
// processes' warm-up took 2 MiB each.
TEST(NcclRules, TheWarmUpsMemoryIsFreeBeforeArenasAreAllocated) {
  Deadline deadline(std::chrono::seconds(60));
  Variable late("SHEAF_EMULATED_NCCL_RELEASE", "500");
  Variable memory("SHEAF_EMULATED_MEMORY", std::to_string((2 * 2 * 16 + 257) << 20).c_str());
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t gathered = builder.buffer(2 * 128);
  plan::Operand own = builder.operand(gathered, plan::READ_WRITE);
  own.set_bytes(128), own.set_shard_stride(128);
  builder.collective(plan::ALL_GATHER, plan::F32, 32, own, builder.operand(gathered, plan::READ_WRITE));
  EXPECT_THAT(openErrors({&builder.plan, &builder.plan}), Each(""));
}

// A process of its own on each node: gathers are the processors', which an abort ends.
TEST(NcclRules, CopyEnginesGatherWithinANodeOnly) {
  Deadline deadline(std::chrono::seconds(60));
  PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
  for (bool hosts : {false, true}) {
    std::optional<Variable> host;
    if (hosts) host.emplace("NCCL_HOSTID", "other");
    std::mutex mutex;
    std::vector<std::string> notes;
    DeviceOptions options;
    options.note = [&](const std::string& name, const std::string& value) {
      std::lock_guard lock(mutex);
      if (name == "copy_engine_gathers") notes.push_back(value);
    };
    EXPECT_THAT(openErrors({&builder.plan, &builder.plan}, options), Each(""));
    EXPECT_THAT(notes, ElementsAre(hosts ? "off" : "where NCCL can", hosts ? "off" : "where NCCL can"));
  }
}

// A window that cannot be released would be freed while it is registered: the communicator is aborted instead.
TEST(NcclRules, AFailedReleaseAborts) {
  expectEnds(std::chrono::seconds(60), [] {
    PlanBuilder builder = gatherAndSum(plan::ALL_REDUCE, 64);
    std::atomic<int> aborted = 0;
    DeviceOptions options;
    options.aborted = [&] { ++aborted; };
    auto processes = std::make_unique<Processes>(builder.plan, 2, options);
    EXPECT_EQ(aborted, 0);
    Variable fails("SHEAF_EMULATED_NCCL_RELEASE_FAILS", "1");
    processes.reset();
    EXPECT_EQ(aborted, 2);
  });
}

// A profile of several nodes counts the connections that NCCL makes there: fewer channels between two GPUs.
TEST(NcclRules, FactsCountTheConnectionsOfTheJob) {
  ThreadGroup group(8);
  std::unique_ptr<comm::ProcessGroup> first = group.member(0);
  auto one = testDevice()->facts(first.get(), false), several = testDevice()->facts(first.get(), true);
  ASSERT_TRUE(one.ok() && several.ok());
  const uint64_t connections = 7 * (32 - 2) * (uint64_t{12} << 20);
  EXPECT_EQ(several->memoryBytes - one->memoryBytes, connections);
}

// NCCL allocates buffers for a connection at its first use: 384 MiB here for the one of each of the two ranks, which
// share an emulated GPU's memory.
TEST(NcclRules, MemoryThatNcclTakesLaterIsCounted) {
  Deadline deadline(std::chrono::seconds(60));
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  builder.plan.set_communicators(1);
  const uint32_t sum = builder.buffer(100 << 20);
  builder.collective(plan::ALL_REDUCE, plan::F32, 16, builder.operand(sum, plan::READ_WRITE),
                     builder.operand(sum, plan::READ_WRITE));
  {
    Variable memory("SHEAF_EMULATED_MEMORY", "734003200");  // 700 MiB
    // One rank finds no memory, the other one waits for it.
    const std::vector<std::string> errors = openErrors({&builder.plan, &builder.plan}, {}, std::chrono::seconds(2));
    EXPECT_THAT(errors, Contains(HasSubstr("NCCL could not be prepared: NCCL cannot exchange the terms of a sum")));
    EXPECT_THAT(errors, Not(Contains("")));
  }
  Variable memory("SHEAF_EMULATED_MEMORY", "1153433600");  // 1,100 MiB
  for (const std::string& error : openErrors({&builder.plan, &builder.plan}))
    EXPECT_THAT(error,
                HasSubstr("the run needs 100 MiB for arenas and about 256 MiB for CUDA's libraries; Emulated GPU "
                          "has 300 MiB free of 1.1 GiB, after NCCL's communicators took 800 MiB"));
}

}  // namespace
}  // namespace sheaf::testing
