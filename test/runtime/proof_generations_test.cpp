// What the verifier and the proof say of state in files that outlives a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Generations.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/DurablePlan.h"

namespace sheaf {
namespace {

using testing::DurablePlan;
using ::testing::HasSubstr;
using testing::TrainingPlan;

std::string proof(const plan::Plan& plan) {
  Status status = plan::verifyPlan(plan);
  if (status.ok()) status = plan::provePlan(plan);
  return status.message();
}

TEST(ProofOfGenerations, StateInTwoPlacesIsTheState) {
  for (int64_t ranks : {1, 2})
    for (int stage = 0; stage < (ranks > 1 ? 4 : 1); ++stage) {
      DurablePlan durable(ranks, stage, 8);
      EXPECT_EQ(proof(durable.plan), "") << ranks << " ranks, stage " << stage;
      TrainingPlan plain(ranks, stage, 8);
      plan::redigest(plain.plan);
      EXPECT_EQ(durable.plan.digests().SerializeAsString(), plain.plan.digests().SerializeAsString()) << stage;
    }
}

TEST(ProofOfGenerations, WhatIsMissingInFiles) {
  EXPECT_EQ(plan::whyNotRestartable(DurablePlan(2, 1, 8).plan), "");
  EXPECT_THAT(plan::whyNotRestartable(TrainingPlan(2, 1, 8).plan), HasSubstr("nothing in files"));
  DurablePlan part(2, 1, 8);
  part.plan.clear_generations();
  EXPECT_THAT(plan::whyNotRestartable(part.plan), HasSubstr("one generation of its state"));
  part.plan.mutable_buffers(static_cast<int>(part.homes[1]))->set_space(plan::Buffer::HOST);
  EXPECT_THAT(plan::whyNotRestartable(part.plan), HasSubstr("the state 'momentum' of bucket 'all' (in host memory)"));
}

struct Wrong {
  const char* name;
  void (*change)(DurablePlan&);
  const char* error;
};

plan::Operand& source(DurablePlan& p, int at) {
  return *p.plan.mutable_body(at)->mutable_operands(0);
}
plan::Operand& destination(DurablePlan& p, int at) {
  return *p.plan.mutable_body(at)->mutable_operands(1);
}
plan::Instruction& persist(DurablePlan& p) {
  return *p.plan.mutable_body(p.persistAt());
}

class WrongGenerations : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongGenerations, AreRefused) {
  DurablePlan plan(2, 1, 8);
  GetParam().change(plan);
  EXPECT_THAT(proof(plan.plan), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Verify, WrongGenerations,
    ::testing::Values(
        Wrong{"NotPersisted", [](DurablePlan& p) { p.plan.mutable_body()->DeleteSubrange(p.persistAt(), 1); },
              "and its body does not persist them"},
        Wrong{"PersistedTwice",
              [](DurablePlan& p) { *p.plan.add_body() = plan::Instruction(p.plan.body(p.persistAt())); },
              "persisted twice"},
        Wrong{"PersistedInTheEpilogue",
              [](DurablePlan& p) { *p.plan.add_epilogue() = plan::Instruction(p.plan.body(p.persistAt())); },
              "outside the body"},
        Wrong{"NothingToPersist", [](DurablePlan& p) { p.plan.clear_generations(); }, "no generations in files"},
        Wrong{"OneIsNotPersisted", [](DurablePlan& p) { persist(p).mutable_operands()->RemoveLast(); },
              "it has 4 operands, it needs 5"},
        Wrong{"APartIsPersisted", [](DurablePlan& p) { persist(p).mutable_operands(4)->set_bytes(128); },
              "operands 3 and 4 are not all of generation 1"},
        Wrong{"OnlyTheNextIsGuarded", [](DurablePlan& p) { persist(p).mutable_operands(1)->set_buffer(p.next[0]); },
              "operands 1 and 2 are not all of generation 0"},
        Wrong{"NoVote", [](DurablePlan& p) { persist(p).mutable_operands()->DeleteSubrange(0, 1); },
              "it has 4 operands, it needs 5"},
        Wrong{"OtherCommunicator", [](DurablePlan& p) { persist(p).mutable_persist()->set_communicator(7); },
              "its communicator is not one of all ranks"},
        // Collectives of one communicator on two streams that nothing orders.
        Wrong{"SharedCommunicator", [](DurablePlan& p) { persist(p).mutable_persist()->set_communicator(0); },
              "may deadlock"},
        Wrong{"WrittenInPlace", [](DurablePlan& p) { destination(p, p.storeAt()).set_buffer(p.homes[0]); },
              "which is written: it is what a run goes on from after a crash"},
        Wrong{"NextBeforeItIsWritten", [](DurablePlan& p) { source(p, p.fetchAt()).set_buffer(p.next[0]); },
              "which nothing has written"},
        Wrong{"NextAfterItIsPersisted",
              [](DurablePlan& p) {
                const plan::Instruction fetch = p.plan.body(p.fetchAt());
                *p.plan.add_body() = fetch;
                source(p, p.plan.body_size() - 1).set_buffer(p.next[0]);
              },
              "a next generation: there is one in the body only, until it is persisted"},
        Wrong{"NextInTheEpilogue",
              [](DurablePlan& p) {
                *p.plan.add_epilogue() = plan::Instruction(p.plan.body(p.fetchAt()));
                p.plan.mutable_epilogue(p.plan.epilogue_size() - 1)->mutable_operands(0)->set_buffer(p.next[0]);
              },
              "a next generation"},
        // The next step writes over what other ranks may still have to go on from.
        Wrong{"WrittenBeforeTheVote",
              [](DurablePlan& p) { p.plan.mutable_body(p.persistAt())->set_stream(DurablePlan::kFileIn); },
              "the plan may race"},
        Wrong{"PersistedBeforeTheStore",
              [](DurablePlan& p) { p.plan.mutable_body()->SwapElements(p.persistAt(), p.storeAt()); },
              "a next generation: there is one in the body only, until it is persisted"},
        Wrong{"Exchanged",
              [](DurablePlan& p) {
                plan::Generation& g = *p.plan.mutable_generations(0);
                g.set_current(p.next[0]), g.set_next(p.homes[0]);
              },
              "its current buffer is that of no state, or its next one is"},
        Wrong{"OtherSize", [](DurablePlan& p) { p.plan.mutable_buffers(static_cast<int>(p.next[0]))->set_bytes(128); },
              "are not persistent buffers in files of one kind and size"},
        Wrong{"Twice", [](DurablePlan& p) { *p.plan.add_generations() = plan::Generation(p.plan.generations(0)); },
              "is another generation as well"},
        Wrong{"StateElsewhere",
              [](DurablePlan& p) {
                p.plan.mutable_generations()->RemoveLast();
                p.plan.mutable_buffers(static_cast<int>(p.homes[1]))->set_space(plan::Buffer::HOST);
                plan::SpaceMemory host;
                host.set_space(plan::Buffer::HOST);
                host.set_peak_bytes(plan::arenaTop(p.plan, plan::Buffer::HOST));
                host.add_by_kind()->set_kind(plan::OPTIMIZER);
                *p.plan.mutable_memory()->add_spaces() = host;
                p.plan.mutable_memory()->mutable_spaces()->SwapElements(0, 1);
              },
              "files are to hold all state"},
        Wrong{"OneOfThemOnly",
              [](DurablePlan& p) {
                p.plan.mutable_generations()->RemoveLast();
                persist(p).mutable_operands()->DeleteSubrange(3, 2);
                destination(p, p.storeAt() + 1).set_buffer(p.homes[1]);
              },
              "which is written: it is what a run goes on from"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sheaf
