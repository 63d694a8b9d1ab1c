// Operands of instructions: plans of version 3, which have them in fields of each kind, and how many each kind has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Upgrade.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/DurablePlan.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace sheaf {
namespace {

using testing::DurablePlan;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// The fields of version 3, by the kinds that have them.
void addOld(plan::KernelLaunch& kind, const plan::Operand& operand) {
  *kind.add_operands() = operand;
}
void addOld(plan::LibraryCall& kind, const plan::Operand& operand) {
  *kind.add_operands() = operand;
}
void addOld(plan::Persist& kind, const plan::Operand& operand) {
  *kind.add_operands() = operand;
}
void addOld(plan::ReadInput& kind, const plan::Operand& operand) {
  *kind.mutable_destination() = operand;
}
void addOld(plan::ReadScalars& kind, const plan::Operand& operand) {
  *kind.mutable_destination() = operand;
}
void addOld(plan::WriteOutput& kind, const plan::Operand& operand) {
  *kind.mutable_source() = operand;
}
template <typename Pair>  // a collective or a transfer
void addOld(Pair& kind, const plan::Operand& operand) {
  *(kind.has_source() ? kind.mutable_destination() : kind.mutable_source()) = operand;
}

// Calls visit(the kind's message) if the kind has operands.
template <typename Visit>
void visitKind(plan::Instruction& instruction, Visit visit) {
  switch (instruction.kind_case()) {
    case plan::Instruction::kKernel:
      return visit(*instruction.mutable_kernel());
    case plan::Instruction::kCall:
      return visit(*instruction.mutable_call());
    case plan::Instruction::kCollective:
      return visit(*instruction.mutable_collective());
    case plan::Instruction::kInput:
      return visit(*instruction.mutable_input());
    case plan::Instruction::kScalars:
      return visit(*instruction.mutable_scalars());
    case plan::Instruction::kOutput:
      return visit(*instruction.mutable_output());
    case plan::Instruction::kTransfer:
      return visit(*instruction.mutable_transfer());
    case plan::Instruction::kPersist:
      return visit(*instruction.mutable_persist());
    default:
      return;
  }
}

void makeOld(plan::Instruction& instruction) {
  visitKind(instruction, [&](auto& kind) {
    for (const plan::Operand& operand : instruction.operands()) addOld(kind, operand);
  });
  instruction.clear_operands();
}

// The plan as version 3 has it.
plan::Plan old(plan::Plan plan) {
  plan.set_version(3);
  for (auto* list : {plan.mutable_prologue(), plan.mutable_body(), plan.mutable_epilogue(), plan.mutable_evaluation()})
    for (plan::Instruction& instruction : *list) makeOld(instruction);
  for (plan::StepPart& part : *plan.mutable_parts())
    for (plan::Instruction& instruction : *part.mutable_instructions()) makeOld(instruction);
  return plan;
}

// Its file, with version 3 in the header.
std::string oldFile(const plan::Plan& plan) {
  std::string file = *plan::serializePlan(old(plan));
  file[8] = 3;
  return file;
}

Expected<std::unique_ptr<plan::Plan>> parse(const std::string& file) {
  return plan::parsePlan(std::as_bytes(std::span(file)));
}

// A plan whose body has instructions of every kind.
plan::Plan everyKind() {
  return DurablePlan(2, 3, 8).plan;
}

// The first instruction of the kind in the body.
plan::Instruction& first(plan::Plan& plan, plan::Instruction::KindCase kind) {
  for (plan::Instruction& instruction : *plan.mutable_body())
    if (instruction.kind_case() == kind) return instruction;
  ADD_FAILURE() << "no instruction of kind " << kind;
  return *plan.mutable_body(0);
}

// The kinds that have operands.
const std::vector<plan::Instruction::KindCase> kKinds = {plan::Instruction::kKernel,     plan::Instruction::kCall,
                                                         plan::Instruction::kCollective, plan::Instruction::kInput,
                                                         plan::Instruction::kScalars,    plan::Instruction::kOutput,
                                                         plan::Instruction::kTransfer,   plan::Instruction::kPersist};

TEST(Upgrade, APlanOfVersion3BecomesThatOfVersion4) {
  plan::Plan plan = everyKind();
  // All lists have instructions.
  *plan.add_prologue() = first(plan, plan::Instruction::kInput);
  *plan.add_epilogue() = first(plan, plan::Instruction::kTransfer);
  *plan.add_evaluation() = first(plan, plan::Instruction::kOutput);
  *plan.add_parts()->add_instructions() = first(plan, plan::Instruction::kCall);
  const plan::Plan before = old(plan);
  for (const plan::Instruction& instruction : before.body()) EXPECT_EQ(instruction.operands_size(), 0);
  auto read = parse(oldFile(plan));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)->SerializeAsString(), plan.SerializeAsString());
  EXPECT_EQ((*read)->version(), 4u);
}

TEST(Upgrade, APlanOfVersion3IsProved) {
  auto read = parse(oldFile(everyKind()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(plan::verifyPlan(**read).message(), "");
  EXPECT_EQ(plan::provePlan(**read).message(), "");  // by the digests, too
}

TEST(Upgrade, SourcesComeBeforeDestinations) {
  plan::Plan plan = old(everyKind());
  const auto& collective = first(plan, plan::Instruction::kCollective).collective();
  const auto& transfer = first(plan, plan::Instruction::kTransfer).transfer();
  const uint32_t gathered = collective.source().buffer(), whole = collective.destination().buffer();
  const uint32_t file = transfer.source().buffer(), image = transfer.destination().buffer();
  ASSERT_TRUE(plan::upgrade(plan).ok());
  const plan::Instruction &gather = first(plan, plan::Instruction::kCollective),
                          &fetch = first(plan, plan::Instruction::kTransfer);
  EXPECT_EQ(plan::sourceOf(gather).buffer(), gathered);
  EXPECT_EQ(plan::destinationOf(gather).buffer(), whole);
  EXPECT_EQ(plan::sourceOf(fetch).buffer(), file);
  EXPECT_EQ(plan::destinationOf(fetch).buffer(), image);
  EXPECT_NE(gathered, whole);
  EXPECT_NE(file, image);
}

TEST(Upgrade, AnOperandThatIsMissingIsRefusedByTheVerifier) {
  plan::Plan collective = old(everyKind()), transfer = collective;
  first(collective, plan::Instruction::kCollective).mutable_collective()->clear_source();
  first(transfer, plan::Instruction::kTransfer).mutable_transfer()->clear_source();
  for (plan::Plan* plan : {&collective, &transfer}) {
    ASSERT_TRUE(plan::upgrade(*plan).ok());
    EXPECT_THAT(plan::verifyPlan(*plan).message(), HasSubstr("its source has no access"));
  }
}

TEST(Upgrade, OldOperandsInAPlanOfVersion4AreRefused) {
  for (plan::Instruction::KindCase kind : kKinds)
    for (bool both : {false, true}) {
      plan::Plan plan = everyKind();
      plan::Instruction& instruction = first(plan, kind);
      const std::string label = instruction.label();
      visitKind(instruction, [&](auto& message) { addOld(message, instruction.operands(0)); });
      if (!both) instruction.clear_operands();
      EXPECT_THAT(parse(*plan::serializePlan(plan)).status().message(),
                  ::testing::AllOf(HasSubstr("the plan is damaged: body instruction "), HasSubstr("'" + label + "'"),
                                   HasSubstr(" has operands of version 3, but the plan is of version 4")))
          << kind;
    }
}

TEST(Upgrade, NewOperandsInAPlanOfVersion3AreRefused) {
  for (plan::Instruction::KindCase kind : kKinds)
    for (bool both : {false, true}) {
      plan::Plan plan = everyKind();
      const plan::Instruction whole = first(plan, kind);
      plan::Plan mixed = old(plan);
      plan::Instruction& instruction = first(mixed, kind);
      if (!both) instruction = whole;
      if (both) *instruction.mutable_operands() = whole.operands();
      EXPECT_THAT(plan::upgrade(mixed).message(), HasSubstr(" has operands of version 4, but the plan is of version 3"))
          << kind;
    }
}

TEST(Upgrade, TheHashOfAPlanIsThatOfItsFile) {
  TemporaryFolder folder;
  const plan::Plan plan = everyKind();
  const std::string file = oldFile(plan);
  testing::writeFile(folder / "old.plan", file);
  uint64_t stored;
  std::memcpy(&stored, file.data() + 24, sizeof stored);
  auto hash = plan::planHash(folder / "old.plan");
  ASSERT_TRUE(hash.ok()) << hash.status().message();
  EXPECT_EQ(*hash, stored);
  ASSERT_TRUE(plan::writePlan(folder / "new.plan", plan).ok());
  EXPECT_NE(*plan::planHash(folder / "new.plan"), stored);
  testing::writeFile(folder / "none.plan", "none");
  EXPECT_THAT(plan::planHash(folder / "none.plan").status().message(), HasSubstr("none.plan: not a plan"));
}

struct Count {
  plan::Instruction::KindCase kind;
  const char* fewer;  // the error with one operand too few; null: the kind has none
  const char* more;   // with one too many
};

class OperandCounts : public ::testing::TestWithParam<Count> {};

TEST_P(OperandCounts, AreChecked) {
  auto refused = [](auto change) {
    plan::Plan plan = everyKind();
    plan::Instruction& instruction = first(plan, GetParam().kind);
    change(instruction);
    const std::string message = plan::verifyPlan(plan).message();
    EXPECT_THAT(message, HasSubstr("the plan is wrong: body instruction "));
    EXPECT_THAT(message, HasSubstr(plan::instructionKind(instruction) + " '" + instruction.label() + "'"));
    return message;
  };
  if (GetParam().fewer) {
    EXPECT_THAT(refused([](auto& i) { i.mutable_operands()->RemoveLast(); }), HasSubstr(GetParam().fewer));
  }
  EXPECT_THAT(refused([](auto& i) {
                const plan::Operand again =
                    i.operands_size() > 0 ? *i.operands().rbegin() : plan::Operand::default_instance();
                *i.add_operands() = again;
              }),
              HasSubstr(GetParam().more));
}

INSTANTIATE_TEST_SUITE_P(
    Verify, OperandCounts,
    ::testing::Values(
        Count{plan::Instruction::kKernel, "kernel 'update' takes 4 operands, not 3", "takes 4 operands, not 5"},
        Count{plan::Instruction::kCall, ") is missing", "it takes 4 operands, not 5"},
        Count{plan::Instruction::kCollective, "it has 1 operands, it needs 2", "it has 3 operands, it needs 2"},
        Count{plan::Instruction::kRecord, nullptr, "it has 1 operands, it needs 0"},
        Count{plan::Instruction::kWait, nullptr, "it has 1 operands, it needs 0"},
        Count{plan::Instruction::kInput, "it has 0 operands, it needs 1", "it has 2 operands, it needs 1"},
        Count{plan::Instruction::kScalars, "it has 0 operands, it needs 1", "it has 2 operands, it needs 1"},
        Count{plan::Instruction::kOutput, "it has 0 operands, it needs 1", "it has 2 operands, it needs 1"},
        Count{plan::Instruction::kTransfer, "it has 1 operands, it needs 2", "it has 3 operands, it needs 2"},
        Count{plan::Instruction::kPersist, "it has 4 operands, it needs 5", "it has 6 operands, it needs 5"}),
    [](const auto& info) { return "Kind" + std::to_string(info.param.kind); });

TEST(Operands, AreEmptyWhereAnInstructionLacksThem) {
  plan::Instruction instruction;
  EXPECT_EQ(&plan::sourceOf(instruction), &plan::Operand::default_instance());
  EXPECT_EQ(&plan::destinationOf(instruction), &plan::Operand::default_instance());
  instruction.mutable_transfer();
  EXPECT_EQ(&plan::sourceOf(instruction), &plan::Operand::default_instance());
  instruction.add_operands();
  EXPECT_EQ(&plan::sourceOf(instruction), &instruction.operands(0));
  EXPECT_EQ(&plan::destinationOf(instruction), &plan::Operand::default_instance());
  instruction.add_operands();
  EXPECT_EQ(&plan::destinationOf(instruction), &instruction.operands(1));
  instruction.mutable_input();
  EXPECT_EQ(&plan::sourceOf(instruction), &plan::Operand::default_instance());
  EXPECT_EQ(&plan::destinationOf(instruction), &instruction.operands(0));
  instruction.mutable_output();
  EXPECT_EQ(&plan::sourceOf(instruction), &instruction.operands(0));
  EXPECT_EQ(&plan::destinationOf(instruction), &plan::Operand::default_instance());
  // A kernel's operands have no such roles.
  instruction.mutable_kernel();
  EXPECT_EQ(&plan::sourceOf(instruction), &plan::Operand::default_instance());
}

// None of these reads an operand that is not there.
TEST(Operands, WhatLacksThemIsFollowedWithoutACrash) {
  for (plan::Instruction::KindCase kind : kKinds) {
    plan::Plan plan = everyKind();
    first(plan, kind).clear_operands();
    plan::redigest(plan);
    plan::summarize(plan);
    EXPECT_NE(plan::verifyPlan(plan).message(), "") << kind;
  }
}

}  // namespace
}  // namespace sheaf
