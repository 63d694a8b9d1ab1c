// What a step does, in terms that do not depend on instructions, and what a stated floor must be.
#include "runtime/plan/StepWork.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TrainingPlan;

TEST(StepWork, CountsTheScoresThatAMaskLeaves) {
  for (int64_t queries = 1; queries <= 6; ++queries)
    for (int64_t keys = 1; keys <= 6; ++keys)
      for (int64_t window = 0; window <= 7; ++window) {
        plan::AttentionCall call;
        call.b = 2, call.h = 3, call.s = queries, call.t = keys, call.d = 4, call.e = 5;
        EXPECT_EQ(plan::attentionFlops(call), 2 * 2 * 3 * queries * keys * 9);
        call.causal = true, call.window = window;
        int64_t scores = 0;
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t j = 0; j < keys; ++j)
            scores += j <= i + keys - queries && (window == 0 || j > i + keys - queries - window);
        EXPECT_EQ(plan::attentionFlops(call), 2 * 2 * 3 * scores * 9)
            << queries << " queries, " << keys << " keys, a window of " << window;
        EXPECT_EQ(plan::attentionGradFlops(call), 2 * 2 * 3 * scores * (3 * 4 + 2 * 5));
      }
}

TEST(StepWork, CountsProductsOfCalls) {
  auto flops = [](const plan::AnyCall& call) { return plan::productFlops(call); };
  plan::GemmCall gemm{.m = 2, .n = 3, .k = 5, .batch = 7};
  gemm.type = plan::BF16;
  EXPECT_EQ(flops(gemm)->flops(), 2u * 2 * 3 * 5 * 7);
  EXPECT_EQ(plan::productWord(*flops(gemm)), "bf16");
  plan::ConvGradInputCall conv;
  conv.n = 2, conv.c = 4, conv.kh = 3, conv.kw = 5, conv.oh = 6, conv.ow = 7, conv.o = 8, conv.groups = 2;
  conv.tf32 = true;
  EXPECT_EQ(flops(conv)->flops(), 2u * (2 * 8 * 6 * 7) * (2 * 3 * 5));
  EXPECT_EQ(plan::productWord(*flops(conv)), "tf32");
  EXPECT_FALSE(flops(plan::ZeroCall()));
  EXPECT_FALSE(flops(plan::MaxPoolCall()));
  EXPECT_TRUE(plan::productsOfWord("tf32")->tf32());
  EXPECT_FALSE(plan::productsOfWord("bf17"));
}

TEST(StepWork, KeepsTypesInOrder) {
  plan::StepWork work;
  for (const char* word : {"bf16", "tf32", "f32", "bf16"}) {
    plan::ProductFlops products = *plan::productsOfWord(word);
    products.set_flops(10);
    plan::addProducts(work, products);
  }
  ASSERT_EQ(work.products_size(), 3);
  EXPECT_EQ(plan::productWord(work.products(0)), "f32");
  EXPECT_EQ(plan::productWord(work.products(1)), "tf32");
  EXPECT_EQ(plan::flopsOf(work, plan::BF16, false), 20u);
  EXPECT_EQ(plan::flopsOf(work, plan::F64, false), 0u);
}

// The hand-made plan has 128 elements in its bucket, 58 of which are parameters.
TEST(StepWork, OfInstructionsCountsPadding) {
  const plan::StepWork whole = plan::issuedWork(TrainingPlan(4, 0, 8).plan);
  EXPECT_EQ(plan::flopsOf(whole, plan::F32, false), 2u * 2 * 128);
  EXPECT_EQ(whole.state_bytes(), 128 * 4 * 5 + 4u);  // and the learning rate
  EXPECT_EQ(whole.reduced_bytes(), 512u);
  EXPECT_EQ(whole.gathered_bytes(), 512u);
  const plan::StepWork sharded = plan::issuedWork(TrainingPlan(4, 3, 8).plan);
  EXPECT_EQ(sharded.state_bytes(), 128 * 5 + 4u);
  EXPECT_EQ(sharded.reduced_bytes(), 512u);
  EXPECT_EQ(sharded.gathered_bytes(), 512u);
}

TEST(StepWork, AFloorIsNoMoreThanWhatInstructionsDo) {
  for (int stage = 0; stage <= 3; ++stage) {
    TrainingPlan made(4, stage, 8);
    *made.plan.mutable_floor() = made.floor();
    EXPECT_EQ(plan::verifyPlan(made.plan).message(), "") << stage;
  }
  TrainingPlan made(4, 3, 8);
  auto refused = [&](auto change) {
    plan::Plan plan = made.plan;
    *plan.mutable_floor() = made.floor();
    change(*plan.mutable_floor());
    return plan::verifyPlan(plan).message();
  };
  EXPECT_EQ(refused([](plan::StepWork& floor) { floor.mutable_products(0)->set_flops(512); }), "");
  EXPECT_THAT(refused([](plan::StepWork& floor) { floor.mutable_products(0)->set_flops(513); }),
              AllOf(HasSubstr("the plan is wrong: floor: it states 513 flops of f32 products"),
                    HasSubstr("more than the 512 of the plan's own instructions")));
  EXPECT_THAT(refused([](plan::StepWork& floor) { floor.mutable_products(0)->set_tf32(true); }),
              HasSubstr("of tf32 products"));
  EXPECT_THAT(refused([](plan::StepWork& floor) { floor.mutable_products(0)->set_type(plan::ElementType(77)); }),
              HasSubstr("entry 0 of its products has a type"));
  EXPECT_THAT(refused([](plan::StepWork& floor) { *floor.add_products() = floor.products(0); }),
              HasSubstr("products of f32 are given twice"));
  EXPECT_THAT(refused([](plan::StepWork& floor) { floor.set_state_bytes(645); }),
              AllOf(HasSubstr("645 bytes that updates read and write"), HasSubstr("more than the 644 of")));
  EXPECT_THAT(refused([](plan::StepWork& floor) { floor.set_reduced_bytes(513); }), HasSubstr("513 bytes reduced"));
  EXPECT_THAT(refused([](plan::StepWork& floor) { floor.set_gathered_bytes(513); }), HasSubstr("513 bytes gathered"));
}

TEST(StepWork, IsShownNextToWhatInstructionsDo) {
  TrainingPlan made(4, 3, 8);
  EXPECT_THAT(plan::summaryText(made.plan), HasSubstr("the plan states no floor"));
  EXPECT_TRUE(plan::summaryJson(made.plan).object()->find("floor")->isNull());
  *made.plan.mutable_floor() = made.floor();
  const std::string text = plan::summaryText(made.plan);
  EXPECT_THAT(text, AllOf(HasSubstr("f32 products"), HasSubstr("512 flop"), HasSubstr("1.00 x")));
  EXPECT_THAT(text, AllOf(HasSubstr("state in updates"), HasSubstr("290 B"), HasSubstr("644 B"), HasSubstr("2.22 x")));
  EXPECT_THAT(text, AllOf(HasSubstr("gathered from ranks"), HasSubstr("232 B"), HasSubstr("512 B")));
  const json::Value value = plan::summaryJson(made.plan);
  auto read = [&](const char* which, const char* field) {
    return *value.object()->find(which)->object()->find(field)->integer();
  };
  EXPECT_EQ(read("floor", "state_bytes"), 290);
  EXPECT_EQ(read("issued", "state_bytes"), 644);
  EXPECT_EQ(*value.object()->find("floor")->object()->find("products")->object()->find("f32")->integer(), 512);
}

}  // namespace
}  // namespace sheaf
