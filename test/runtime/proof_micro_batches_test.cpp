// Steps of several micro-batches: what is proved of turns and the parts that they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Dataflow.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Summary.h"
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
    plan::Operand& to = *list->Add()->mutable_input()->mutable_destination();
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
