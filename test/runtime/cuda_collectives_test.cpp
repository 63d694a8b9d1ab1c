// Collectives between ranks of one process on one GPU.
#include <gtest/gtest.h>

#include "test/runtime/CudaCollectives.h"

namespace sheaf::testing {
namespace {

class CudaCollectivesTest : public CudaTest {};

TEST_F(CudaCollectivesTest, EveryOperationInTheTreesOrder) {
  for (plan::ElementType type : {plan::F32, plan::F64, plan::BF16, plan::F16, plan::I32, plan::I64})
    for (int64_t ranks : {1, 2, 3, 5})
      for (uint64_t count : {1, 19, 4096}) {
        CollectivePlan plan(type, ranks, count);
        DeviceOptions options;
        options.ranks = ranks;
        Contexts contexts = openCuda(plan.builder.plan, options);
        std::vector<RankContext*> all;
        for (auto& context : contexts) all.push_back(context.get());
        expectCollectives(plan, all, [&] { expectOk(runBodies(plan.builder.plan, contexts, 4)); });
      }
}

TEST_F(CudaCollectivesTest, HopsOfNodes) {
  HopsPlan plan;
  DeviceOptions options;
  options.ranks = HopsPlan::kRanks;
  Contexts contexts = openCuda(plan.builder.plan, options);
  std::vector<RankContext*> all;
  for (auto& context : contexts) all.push_back(context.get());
  expectHops(plan, all, [&] { expectOk(runBodies(plan.builder.plan, contexts, 4)); });
}

TEST_F(CudaCollectivesTest, RanksThatDisagreeAreNamed) {
  PlanBuilder builder;
  uint32_t sum = builder.buffer(64);
  for (uint64_t count : {16, 8})
    builder.collective(plan::ALL_REDUCE, plan::F32, count, builder.operand(sum, plan::READ_WRITE),
                       builder.operand(sum, plan::READ_WRITE));
  DeviceOptions options;
  options.ranks = 2;
  Contexts contexts = openCuda(builder.plan, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::string message = contexts[static_cast<size_t>(rank)]->issue(builder.plan.body(rank), nullptr).message();
      EXPECT_NE(message.find("different collectives"), std::string::npos) << message;
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sheaf::testing
