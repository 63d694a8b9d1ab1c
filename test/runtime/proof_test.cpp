// What the proof refuses, and what it says about it, on plans of a few instructions.
#include "runtime/plan/Proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Dataflow.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/SmallPlan.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using plan::Instruction, plan::READ, plan::WRITE;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallPlan, testing::TrainingPlan;
using List = SmallPlan::List;

TEST(Proof, ARaceNamesBothInstructionsTheBytesAndTheOrder) {
  SmallPlan p;
  p.wait(p.body, 0, 1);  // the step before has read x
  p.call(p.body, "producer", 0, {{0, WRITE}});
  p.record(p.body, 0, 0);
  p.wait(p.body, 1, 0);
  p.call(p.body, "consumer", 1, {{0, READ}});
  p.record(p.body, 1, 1);
  EXPECT_EQ(p.proof(), "");
  SmallPlan forward(p), backward(p);
  forward.plan.mutable_body()->DeleteSubrange(3, 1);
  EXPECT_THAT(forward.proof(),
              AllOf(HasSubstr("may race"), HasSubstr("body instruction 1 (copy 'producer' on stream a)"),
                    HasSubstr("body instruction 3 (copy 'consumer' on stream b)"), HasSubstr("reads bytes [0, 256)"),
                    HasSubstr("buffer 'x'"),
                    HasSubstr("stream b must wait before the second for an event that stream a records")));
  backward.plan.mutable_body()->DeleteSubrange(0, 1);
  EXPECT_THAT(backward.proof(), AllOf(HasSubstr("'consumer' on stream b) of the step before"), HasSubstr("'producer'"),
                                      HasSubstr("writes bytes [0, 256)")));
}

TEST(Proof, ARaceThroughAnotherBufferNamesIt) {
  SmallPlan p;
  p.plan.mutable_buffers(1)->set_offset(128);
  p.call(p.body, "one", 0, {{0, WRITE}});
  p.call(p.body, "other", 1, {{1, WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("bytes [128, 256)"), HasSubstr("'x'"), HasSubstr("'y'")));
}

// The wait of the second step learns from the first one's record what a run of one step does not know.
TEST(Proof, ARunOfOneStepCounts) {
  SmallPlan p;
  p.call(p.prologue, "early", 1, {{0, WRITE}});
  p.wait(p.body, 0, 0);
  p.record(p.body, 1, 0);
  p.call(p.epilogue, "late", 0, {{0, READ}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'early'"), HasSubstr("'late'")));
  p.epilogue->Clear();
  p.wait(p.epilogue, 0, 0);
  p.call(p.epilogue, "late", 0, {{0, READ}});
  EXPECT_EQ(p.proof(), "");
}

TEST(Proof, TheHostComesAfterWhatTouchesState) {
  SmallPlan p;
  p.plan.mutable_buffers(0)->set_persistent(true);
  p.plan.add_buckets()->set_parameter_buffer(0);
  p.call(p.body, "update", 1, {{0, WRITE}});
  EXPECT_THAT(p.proof(),
              AllOf(HasSubstr("'update' on stream b"), HasSubstr("the host after the epilogue (on stream a)")));
  p.record(p.body, 1, 0);
  p.wait(p.epilogue, 0, 0);
  EXPECT_EQ(p.proof(), "");
}

TEST(Proof, ReadsOfWhatWasNotWritten) {
  SmallPlan p;
  p.call(p.body, "reader", 0, {{0, READ}, {2, WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'reader'"), HasSubstr("nothing has written"), HasSubstr("buffer 'x'")));
  SmallPlan q;
  q.plan.mutable_buffers(1)->set_offset(0);
  q.call(q.body, "writer", 0, {{0, WRITE}});
  q.call(q.body, "thief", 0, {{1, WRITE}});
  q.call(q.body, "reader", 0, {{0, READ}, {2, WRITE}});
  EXPECT_THAT(q.proof(), AllOf(HasSubstr("'reader'"), HasSubstr("(copy 'thief' on stream a) has overwritten")));
}

TEST(Proof, NoResultLiesOnAnOperandOfItsInstruction) {
  SmallPlan p;
  p.call(p.body, "writer", 0, {{0, WRITE}});
  p.call(p.body, "both", 0, {{0, READ}, {1, WRITE}});
  EXPECT_EQ(p.proof(), "");
  SmallPlan shared(p), twice(p);
  shared.plan.mutable_buffers(1)->set_offset(128);
  EXPECT_THAT(shared.proof(), AllOf(HasSubstr("body instruction 1 (copy 'both' on stream a)"),
                                    HasSubstr("writes operand 1 in buffer 'y' on bytes [128, 256) of the arena"),
                                    HasSubstr("its operand 0 in buffer 'x'")));
  twice.call(twice.body, "twice", 0, {{0, READ}, {2, WRITE}, {1, WRITE}});
  twice.plan.mutable_buffers(2)->set_offset(256);
  EXPECT_THAT(twice.proof(), AllOf(HasSubstr("'twice'"), HasSubstr("operand 2"), HasSubstr("operand 1")));
}

// A kernel may write in place, which its digest says; at other bytes of the same buffer it may not, and a call neither.
TEST(Proof, InPlaceIsTheSamePlaceOfAKernel) {
  SmallPlan p;
  p.kernel(p.body, "writer", {{0, WRITE}});
  p.kernel(p.body, "in place", {{0, READ}, {0, WRITE}});
  EXPECT_EQ(p.proof(), "");
  SmallPlan shifted(p), call(p);
  shifted.body->Mutable(1)->mutable_operands(0)->set_bytes(128);
  EXPECT_THAT(shifted.proof(), AllOf(HasSubstr("'in place'"), HasSubstr("writes operand 1 in buffer 'x'")));
  call.call(call.body, "call", 0, {{0, READ}, {0, WRITE}});
  EXPECT_THAT(call.proof(), AllOf(HasSubstr("'call'"), HasSubstr("writes operand 1 in buffer 'x'")));
  SmallPlan apart;
  apart.plan.add_buckets()->set_parameter_buffer(2);
  apart.kernel(apart.body, "writer", {{0, WRITE}});
  apart.kernel(apart.body, "result", {{0, READ}, {1, WRITE}});
  apart.kernel(apart.body, "state", {{1, READ}, {2, WRITE}});
  plan::redigest(apart.plan);
  EXPECT_EQ(apart.proof(), "");
  apart.body->Mutable(1)->mutable_operands(1)->set_buffer(0);
  apart.body->Mutable(2)->mutable_operands(0)->set_buffer(0);
  EXPECT_THAT(apart.proof(), HasSubstr("table dataflow"));
}

TEST(Proof, CollectivesOfACommunicatorNeedOneOrder) {
  SmallPlan p;
  auto collective = [&](const char* label, uint32_t stream, uint32_t buffer) {
    Instruction& instruction = *p.body->Add();
    instruction.set_label(label);
    instruction.set_stream(stream);
    instruction.mutable_collective();
    for (int i = 0; i < 2; ++i) {
      plan::Operand* operand = instruction.add_operands();
      operand->set_buffer(buffer);
      operand->set_bytes(256);
      operand->set_access(WRITE);
    }
  };
  collective("first", 0, 0);
  collective("second", 1, 1);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("may deadlock"), HasSubstr("'first' on stream a"),
                               HasSubstr("'second' on stream b"), HasSubstr("communicator 0"), HasSubstr("must wait")));
  p.plan.set_communicators(2);
  p.body->Mutable(1)->mutable_collective()->set_communicator(1);
  EXPECT_EQ(p.proof(), "");
}

TEST(Proof, AWaitNeedsARecord) {
  SmallPlan p;
  p.wait(p.body, 0, 3);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("waits for event 3"), HasSubstr("nothing records")));
}

TEST(Proof, TakesEveryStageAndNoOther) {
  for (int64_t ranks : {2, 4})
    for (int stage = 0; stage <= 3; ++stage)
      for (int declared = 0; declared <= 3; ++declared) {
        plan::Plan plan = TrainingPlan(ranks, stage, 8).plan;
        plan.set_zero_stage(declared);
        EXPECT_EQ(plan::verifyPlan(plan).ok() && plan::provePlan(plan).ok(), declared == stage)
            << "stage " << stage << " declared as " << declared;
      }
}

// Both write state that the host sees; the second reads what the first has written.
TEST(Dataflow, ChangesWithWhatIsComputedOnly) {
  SmallPlan p;
  p.plan.add_buckets()->set_parameter_buffer(2);
  p.call(p.body, "x", 0, {{0, WRITE}});
  p.call(p.body, "y", 0, {{1, WRITE}});
  p.call(p.body, "z", 0, {{0, READ}, {1, READ}, {2, WRITE}});
  p.plan.mutable_body(1)->mutable_call()->set_function("zero");
  plan::redigest(p.plan);
  EXPECT_EQ(p.proof(), "");
  SmallPlan independent = p;
  independent.plan.mutable_body()->SwapElements(0, 1);
  independent.plan.mutable_body(0)->set_label("renamed");
  independent.plan.mutable_buffers(0)->set_offset(1024);
  EXPECT_EQ(independent.proof(), "");
  SmallPlan other = p;
  other.plan.mutable_body(2)->mutable_operands(1)->set_buffer(0);
  EXPECT_THAT(other.proof(), HasSubstr("(table dataflow, entry 3) is computed by other operations"));
  SmallPlan inPlace;
  inPlace.plan.add_buckets()->set_parameter_buffer(2);
  inPlace.kernel(inPlace.body, "double", {{2, READ}, {2, WRITE}});
  inPlace.call(inPlace.body, "use", 0, {{2, READ}, {0, WRITE}});
  inPlace.kernel(inPlace.body, "add", {{2, READ}, {0, READ}, {2, WRITE}});
  plan::redigest(inPlace.plan);
  EXPECT_EQ(inPlace.proof(), "");
  inPlace.plan.mutable_body()->SwapElements(0, 1);
  EXPECT_THAT(inPlace.proof(), HasSubstr("table dataflow"));
}

// Scratch is left with what the call happened to write there.
TEST(Proof, ScratchHoldsNothingAfterwards) {
  SmallPlan p;
  p.call(p.body, "writer", 0, {{0, WRITE}});
  p.call(p.body, "scratch user", 0, {{1, WRITE}, {0, plan::READ_WRITE}});
  p.body->Mutable(1)->mutable_call()->set_scratch_per_thread(256);
  EXPECT_EQ(p.proof(), "");
  p.call(p.body, "reader", 0, {{0, READ}, {2, WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'reader'"), HasSubstr("(copy 'scratch user' on stream a) has overwritten")));
}

// State s, constants c and d, and t and a, which a body leaves for the next.
struct CarryingPlan : SmallPlan {
  enum : uint32_t { s, c, d, t, a };
  CarryingPlan() {
    plan.clear_buffers();
    for (const char* name : {"s", "c", "d", "t", "a"}) {
      plan::Buffer& buffer = *plan.add_buffers();
      buffer.set_name(name);
      buffer.set_offset(static_cast<uint64_t>(plan.buffers_size() - 1) * 256);
      buffer.set_bytes(256);
      buffer.set_persistent(plan.buffers_size() <= 3);
    }
    plan.add_buckets()->set_parameter_buffer(s);
    plan.add_constants()->set_buffer(c);
    plan.add_constants()->set_buffer(d);
  }
  void copy(List* list, const char* label, uint32_t to, uint32_t from) {
    kernel(list, label, {{from, READ}, {to, WRITE}});
  }
};

TEST(Induction, AChangeOfTheThirdStepOnIsRefused) {
  CarryingPlan p;
  p.copy(p.prologue, "t=c", p.t, p.c);
  p.copy(p.prologue, "a=t", p.a, p.t);
  p.copy(p.body, "s=a", p.s, p.a);
  p.copy(p.body, "a=t", p.a, p.t);
  plan::redigest(p.plan);
  EXPECT_EQ(p.proof(), "");
  p.copy(p.body, "t=d", p.t, p.d);
  EXPECT_EQ(plan::checkDataflow(p.plan, plan::followDataflow(plan::Places(p.plan)).digests).message(), "");
  EXPECT_THAT(p.proof(),
              AllOf(HasSubstr("a later step computes something else than the first"),
                    HasSubstr("body instruction 1 (kernel 'a=t' on stream a) reads bytes [0, 256) of buffer 't'"),
                    HasSubstr("in later steps from body instruction 2 (kernel 't=d' on stream a)"),
                    HasSubstr("in the first step of a run from prologue instruction 0 (kernel 't=c' on stream a)")));
}

TEST(Induction, WhatThePrologueMakesOfTheNewStateMayBeCarried) {
  CarryingPlan p;
  p.copy(p.prologue, "prefetch", p.t, p.s);
  p.copy(p.body, "use", p.a, p.t);
  p.copy(p.body, "update", p.s, p.a);
  p.copy(p.body, "prefetch", p.t, p.s);
  EXPECT_EQ(p.proof(), "");
  // Before the update it holds values that the first step of a run does not find.
  p.plan.mutable_body()->SwapElements(1, 2);
  EXPECT_THAT(p.proof(),
              AllOf(HasSubstr("'use'"), HasSubstr("buffer 't'"), HasSubstr("a later step computes something else")));
  // What a prefetch at the end of every body leaves is unused if every body begins with one.
  p.plan.mutable_body()->Add()->CopyFrom(p.plan.prologue(0));
  for (int i = p.body->size() - 1; i > 0; --i) p.body->SwapElements(i, i - 1);
  EXPECT_EQ(p.proof(), "");
}

TEST(Induction, CoversTheEpilogueTheHostAndPartsOfBuffers) {
  CarryingPlan p;
  p.copy(p.prologue, "t=c", p.t, p.c);
  p.copy(p.epilogue, "s=t", p.s, p.t);
  EXPECT_EQ(p.proof(), "");
  p.copy(p.body, "t=d", p.t, p.d);
  EXPECT_EQ(p.proof(), "");  // every body writes t before the epilogue reads it
  p.copy(p.epilogue, "t=c", p.t, p.c);
  EXPECT_EQ(p.proof(), "");
  // The second half of t is what the epilogue reads, and what a body writes only after another has begun.
  CarryingPlan half;
  half.copy(half.prologue, "t=c", half.t, half.c);
  half.copy(half.body, "a=t", half.a, half.t);
  half.copy(half.body, "t=d", half.t, half.d);
  half.body->Mutable(1)->mutable_operands(1)->set_offset(128);
  for (plan::Operand& operand : *half.body->Mutable(1)->mutable_operands()) operand.set_bytes(128);
  EXPECT_THAT(half.proof(), AllOf(HasSubstr("'a=t'"), HasSubstr("bytes [128, 256) of buffer 't'")));
  // A prologue that changes the state does so at the start of a run, not at every step.
  CarryingPlan changing;
  changing.copy(changing.prologue, "s=c", changing.s, changing.c);
  changing.copy(changing.body, "a=s", changing.a, changing.s);
  changing.copy(changing.body, "s=d", changing.s, changing.d);
  EXPECT_THAT(changing.proof(), AllOf(HasSubstr("'a=s'"), HasSubstr("buffer 's'")));
}

// What is left in the gaps of a strided write, an earlier step has written.
TEST(Induction, CoversTheGapsOfStridedWrites) {
  CarryingPlan p;
  p.copy(p.prologue, "t=c", p.t, p.c);
  p.alternate(p.body, "even", p.c, p.t, false);
  p.copy(p.body, "s=t", p.s, p.t);
  EXPECT_EQ(p.proof(), "");
  p.alternate(p.body, "odd", p.d, p.t, true);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'s=t'"), HasSubstr("reads bytes [8, 16) of buffer 't'"),
                               HasSubstr("body instruction 2 (copy 'odd' on stream a)"),
                               HasSubstr("a later step computes something else")));
}

TEST(Induction, HoldsForEveryRank) {
  CarryingPlan p;
  p.call(p.prologue, "own part", 0, {{p.c, READ}, {p.t, WRITE}}, 128);
  p.call(p.body, "use", 0, {{p.t, READ}, {p.a, WRITE}}, 128);
  p.call(p.body, "own part", 0, {{p.c, READ}, {p.t, WRITE}}, 128);
  EXPECT_EQ(p.proof(), "");
  // Rank 0 reads the same; rank 1 does not.
  p.body->Mutable(1)->mutable_operands(0)->set_shard_stride(0);
  EXPECT_THAT(p.proof(),
              AllOf(HasSubstr("'use'"), HasSubstr("of buffer 't'"), HasSubstr("a later step computes something else")));
}

// A prologue gets the rows of the step that follows it, a body those of its own: it cannot fetch the next step's.
TEST(Induction, InputsOfAnotherStepAreOtherValues) {
  CarryingPlan p;
  p.plan.add_inputs()->set_name("rows");
  auto readInput = [&](List* list) {
    list->Add()->mutable_input();
    plan::Operand& operand = *list->rbegin()->add_operands();
    operand.set_buffer(p.t);
    operand.set_bytes(256);
    operand.set_access(WRITE);
  };
  readInput(p.prologue);
  p.copy(p.body, "use", p.s, p.t);
  readInput(p.body);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'use'"), HasSubstr("body instruction 1 (read_input")));
  p.body->SwapElements(0, 1);
  EXPECT_EQ(p.proof(), "");
}

}  // namespace
}  // namespace sheaf
