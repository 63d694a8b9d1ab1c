// Steps of several micro-batches: what is proved of turns and the parts that they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/plan/Dataflow.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/SmallPlan.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using plan::READ, plan::WRITE;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallPlan, testing::TrainingPlan;
using List = SmallPlan::List;

// Two micro-batches: `part` runs for the first one, and the body for the second.
struct MicroPlan : SmallPlan {
  MicroPlan() { add("accumulate", {0}); }
  MicroPlan(const MicroPlan& other) : SmallPlan(other), part(plan.mutable_parts(0)->mutable_instructions()) {}
  // A part more, with its turns.
  List* add(const char* name, std::initializer_list<uint32_t> microBatches) {
    plan::StepPart& made = *plan.add_parts();
    made.set_name(name);
    for (uint32_t microBatch : microBatches) {
      plan::Turn& turn = *plan.add_turns();
      turn.set_part(static_cast<uint32_t>(plan.parts_size() - 1));
      turn.set_micro_batch(microBatch);
    }
    plan.set_micro_batches(2);
    return part = made.mutable_instructions();
  }
  std::vector<uint64_t> digests() const { return plan::followDataflow(plan::Places(plan)).digests; }
  List* part = nullptr;
};

TEST(ProofOfMicroBatches, ATurnRacesWithTheOneBefore) {
  MicroPlan p;
  p.call(p.part, "write", 0, {{0, WRITE}});
  p.record(p.part, 0, 0);
  p.wait(p.part, 1, 0);
  p.call(p.part, "read", 1, {{0, READ}});
  p.record(p.part, 1, 1);
  p.wait(p.body, 0, 1);
  p.call(p.body, "last", 0, {{0, WRITE}});
  EXPECT_EQ(p.proof(), "");
  // Twice in a row nothing keeps the second turn from writing what the first one reads.
  *p.plan.add_turns() = p.plan.turns(0);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("may race"), HasSubstr("accumulate instruction 3 (copy 'read' on stream b)"),
                               HasSubstr("accumulate instruction 0 (copy 'write' on stream a)")));
  MicroPlan waits(p);
  waits.wait(waits.part, 0, 1);
  for (int i = waits.part->size() - 1; i > 0; --i) waits.part->SwapElements(i, i - 1);
  EXPECT_EQ(waits.proof(), "");
}

TEST(ProofOfMicroBatches, TheBodyReadsWhatATurnHasLeft) {
  MicroPlan p;
  p.call(p.part, "keep", 0, {{0, WRITE}});
  p.call(p.body, "add", 0, {{0, READ}, {1, WRITE}});
  EXPECT_EQ(p.proof(), "");
  MicroPlan none(p);
  none.plan.clear_turns();
  EXPECT_THAT(none.proof(), AllOf(HasSubstr("body instruction 0 (copy 'add'"), HasSubstr("nothing has written")));
  // One that lies where the sum does, in another part.
  plan::Buffer& other = *p.plan.add_buffers();
  other = p.plan.buffers(0);
  other.set_name("other");
  p.call(p.add("between", {1}), "overwrite", 0, {{3, WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("body instruction 0 (copy 'add'"),
                               HasSubstr("between instruction 0 (copy 'overwrite' on stream a) has overwritten")));
}

TEST(ProofOfMicroBatches, DigestsFollowTurns) {
  MicroPlan p;
  p.plan.mutable_buffers(0)->set_persistent(true);
  plan::Bucket& bucket = *p.plan.add_buckets();
  bucket.set_name("weights");
  p.plan.add_inputs()->set_name("x");
  auto read = [&](List* list, uint32_t buffer) {
    list->Add()->mutable_input();
    plan::Operand& to = *list->rbegin()->add_operands();
    to.set_buffer(buffer), to.set_bytes(256), to.set_access(WRITE);
  };
  read(p.part, 1);
  read(p.body, 2);
  p.call(p.body, "update", 0, {{1, READ}, {2, READ}, {0, WRITE}});
  const auto original = p.digests();
  EXPECT_EQ(p.proof(), "");
  auto changed = [&](auto change) {
    MicroPlan other(p);
    change(other.plan);
    return other.digests() != original;
  };
  EXPECT_FALSE(changed([](plan::Plan& q) { q.mutable_parts(0)->set_name("renamed"); }));
  EXPECT_TRUE(changed([](plan::Plan& q) { q.mutable_turns(0)->set_micro_batch(1); }));
  EXPECT_TRUE(changed([](plan::Plan& q) { q.set_dealing(plan::BY_RANK); }));
  EXPECT_TRUE(changed([](plan::Plan& q) { q.set_micro_batches(4); }));
  EXPECT_TRUE(changed([](plan::Plan& q) { q.mutable_parts(0)->mutable_instructions()->RemoveLast(); }));
}

TEST(ProofOfMicroBatches, MemoryIsThatOfOneTurn) {
  MicroPlan p;
  p.call(p.part, "write", 0, {{0, WRITE}});
  p.call(p.part, "read", 0, {{0, READ}});
  p.call(p.body, "write", 0, {{1, WRITE}});
  p.call(p.body, "read", 0, {{1, READ}});
  EXPECT_EQ(plan::memoryByKind(p.plan)[plan::ACTIVATIONS], 256u);
  // A sum is alive from its turn to the body.
  p.call(p.part, "keep", 0, {{2, WRITE}});
  p.call(p.body, "add", 0, {{2, READ}});
  EXPECT_EQ(plan::memoryByKind(p.plan)[plan::ACTIVATIONS], 512u);
}

// A plan that trains in two micro-batches, the first of which does nothing.
plan::Plan trained() {
  plan::Plan plan = TrainingPlan(2, 1, 8).plan;
  plan.set_micro_batches(2);
  plan.set_batch(2 * plan.batch());
  plan.add_parts()->set_name("accumulate");
  plan.add_turns();
  return plan;
}

// Each piece is dealt once, and a group has consecutive ones; by rank, so does a rank within a group.
TEST(MicroBatches, GroupsHaveConsecutivePieces) {
  for (int64_t ranks : {1, 2, 3, 4, 6})
    for (int64_t count : {1, 2, 3, 4, 5, 6, 8, 9, 12, 20, 24})
      for (plan::Dealing dealing : {plan::BY_MICRO_BATCH, plan::BY_RANK}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << count << " micro-batches, dealing " << dealing);
        plan::Plan plan;
        plan.set_ranks(ranks), plan.set_micro_batches(count), plan.set_dealing(dealing);
        const plan::MicroBatchGroups groups(count);
        EXPECT_EQ(groups.count % 2, 1);
        EXPECT_EQ(groups.count * groups.size(), count);
        std::vector<int64_t> dealt;
        for (int64_t group = 0; group < groups.count; ++group) {
          for (int64_t rank = 0; rank < ranks; ++rank)
            for (int64_t place = 0; place < groups.size(); ++place) {
              const plan::PiecesOfRanks pieces = plan::piecesOfRanks(plan, group * groups.size() + place);
              dealt.push_back(pieces.first + rank * pieces.stride);
            }
          auto ofGroup = dealt.end() - ranks * groups.size();
          if (dealing == plan::BY_MICRO_BATCH) std::sort(ofGroup, dealt.end());
        }
        for (size_t i = 0; i < dealt.size(); ++i) EXPECT_EQ(dealt[i], static_cast<int64_t>(i));
      }
}

// The part after each micro-batch, and how many parts there are.
TEST(MicroBatches, PartsFollowTheCounterOfEachGroup) {
  const std::pair<int64_t, std::vector<int64_t>> expected[] = {
      {2, {0, 1}},          {8, {0, 1, 0, 2, 0, 1, 0, 3}}, {3, {0, 1, 2}},
      {5, {0, 1, 1, 1, 2}}, {6, {0, 1, 0, 2, 0, 3}},       {12, {0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 4}},
  };
  for (const auto& [count, parts] : expected) {
    const plan::MicroBatchGroups groups(count);
    std::vector<int64_t> found;
    for (int64_t m = 0; m < count; ++m) found.push_back(groups.partOf(m));
    EXPECT_EQ(found, parts);
    EXPECT_EQ(groups.parts(), parts.back() + 1);
  }
}

// A sum over ranks goes on from its destination, of which the source has no byte.
TEST(ProofOfMicroBatches, SumsThatGoOn) {
  auto reduces = [](plan::Plan& p, plan::CollectiveOp op) -> plan::Operand& {
    for (plan::Instruction& instruction : *p.mutable_body())
      if (instruction.has_collective() && instruction.collective().op() == op) return *instruction.mutable_operands(1);
    ADD_FAILURE() << "no such collective";
    return *p.mutable_body(0)->add_operands();
  };
  plan::Plan inPlace = TrainingPlan(2, 1, 8).plan, apart = TrainingPlan(2, 2, 8).plan;
  EXPECT_TRUE(plan::verifyPlan(inPlace).ok());
  reduces(inPlace, plan::ALL_REDUCE).set_access(plan::READ_WRITE);
  EXPECT_THAT(plan::verifyPlan(inPlace).message(), HasSubstr("it adds to its destination, which its source overlaps"));
  // Nothing has been written there before.
  EXPECT_TRUE(plan::verifyPlan(apart).ok());
  reduces(apart, plan::REDUCE_SCATTER).set_access(plan::READ_WRITE);
  EXPECT_TRUE(plan::verifyPlan(apart).ok()) << plan::verifyPlan(apart).message();
  EXPECT_THAT(plan::provePlan(apart).message(), HasSubstr("nothing has written"));
}

TEST(ProofOfMicroBatches, TablesAreChecked) {
  EXPECT_EQ(plan::verifyPlan(trained()).message(), "");
  auto refused = [](auto change) {
    plan::Plan plan = trained();
    change(plan);
    return plan::verifyPlan(plan).message();
  };
  EXPECT_THAT(refused([](plan::Plan& p) { p.set_micro_batches(1); }), HasSubstr("rows on a rank"));
  EXPECT_THAT(refused([](plan::Plan& p) { p.set_micro_batches(-1); }), HasSubstr("micro_batches: -1 is not between"));
  EXPECT_THAT(refused([](plan::Plan& p) { p.set_batch(p.batch() + 2); }), HasSubstr("2 ranks times 2 micro-batches"));
  EXPECT_THAT(refused([](plan::Plan& p) { p.set_dealing(plan::Dealing(2)); }), HasSubstr("dealing: 2 is not one of"));
  EXPECT_THAT(refused([](plan::Plan& p) { p.mutable_turns(0)->set_part(1); }),
              HasSubstr("turn 0: its part index 1 is out of range: the plan has 1"));
  EXPECT_THAT(refused([](plan::Plan& p) { p.mutable_turns(0)->set_micro_batch(2); }),
              HasSubstr("turn 0: its micro-batch 2 is not one of the step's 2"));
  EXPECT_THAT(refused([](plan::Plan& p) { p.clear_turns(); }), HasSubstr("no turn of the step runs it"));
  for (const char* name : {"", "body", "evaluation"})
    EXPECT_THAT(refused([&](plan::Plan& p) { p.mutable_parts(0)->set_name(name); }), HasSubstr("empty or taken"));
}

// A part runs several times in a step: it may neither update nor write outputs.
TEST(ProofOfMicroBatches, APartNeitherUpdatesNorWritesOutputs) {
  const plan::Plan original = trained();
  for (const plan::Instruction& instruction : original.body()) {
    if (instruction.updates_bucket() == 0 && !instruction.has_output()) continue;
    plan::Plan plan = original;
    *plan.mutable_parts(0)->add_instructions() = instruction;
    EXPECT_THAT(plan::verifyPlan(plan).message(),
                AllOf(HasSubstr("accumulate instruction 0"),
                      HasSubstr(instruction.has_output() ? "outputs are written in the body" : "outside the body")));
  }
}

}  // namespace
}  // namespace sheaf
