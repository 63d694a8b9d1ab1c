// Insertions into lists and tables of a plan: order, and the numbers that refer to buffers.
#include "passes/plan/Edits.h"

#include <gtest/gtest.h>

#include <string>

namespace sheaf::plan_ir {
namespace {

plan::Instruction named(const std::string& label) {
  plan::Instruction instruction;
  instruction.set_label(label);
  return instruction;
}

std::string labels(const plan::InstructionList& list) {
  std::string text;
  for (const plan::Instruction& instruction : list) text += instruction.label();
  return text;
}

TEST(OpenList, InsertsErasesAndMoves) {
  plan::Plan plan;
  for (const char* label : {"a", "b", "c"}) *plan.add_body() = named(label);
  const plan::Instruction* b = &plan.body(1);
  {
    OpenList list(*plan.mutable_body());
    auto at = std::next(list.begin());
    list.insert(at, named("1"));
    list.insert(at, named("2"));
    list.insert(std::next(at), named("3"));
    list.insert(std::next(at), named("4"));
    list.erase(list.begin());
    list.move(at, list.end());
  }
  EXPECT_EQ(labels(plan.body()), "1243cb");
  EXPECT_EQ(&plan.body(5), b) << "pointers stay valid";
}

TEST(Edits, ListsAreThoseOfThePlanInOrder) {
  plan::Plan plan;
  plan.add_parts(), plan.add_parts();
  const std::vector<plan::Section> sections = plan::sectionsOf(plan);
  const std::vector<plan::InstructionList*> lists = listsOf(plan);
  ASSERT_EQ(lists.size(), sections.size());
  for (size_t i = 0; i < lists.size(); ++i) EXPECT_EQ(lists[i], sections[i].list) << sections[i].name;
  EXPECT_EQ(roundsOf(plan), (std::vector<plan::InstructionList*>{lists[1], lists[2], lists[3], lists[5]}));
}

// A plan that refers to its buffers, which are named by their numbers, from every table.
plan::Plan planOf(int buffers) {
  plan::Plan plan;
  for (int i = 0; i < buffers; ++i) plan.add_buffers()->set_name(std::to_string(i));
  for (plan::InstructionList* list : {plan.mutable_prologue(), plan.add_parts()->mutable_instructions(),
                                      plan.mutable_body(), plan.mutable_epilogue(), plan.mutable_evaluation()})
    for (int i = 0; i < buffers; ++i) list->Add()->add_operands()->set_buffer(static_cast<uint32_t>(i));
  plan::Bucket& bucket = *plan.add_buckets();
  bucket.set_parameter_buffer(1);
  bucket.add_states()->set_buffer(2);
  plan.add_constants()->set_buffer(1);
  plan.set_loss_scale_buffer(2);
  plan::Generation& generation = *plan.add_generations();
  generation.set_current(1);
  generation.set_next(2);
  return plan;
}

TEST(NewBuffers, StandAfterTheirOwnAndEverythingStillRefersToTheSameBuffer) {
  plan::Plan plan = planOf(3);
  plan.mutable_buffers(0)->set_bytes(12);
  NewBuffers added(plan);
  EXPECT_EQ(added.addLike(0, "first", plan::Buffer::HOST), 3u);
  const uint32_t second = added.addLike(0, "second", plan::Buffer::FILE);
  added.addLike(second, "of second", plan::Buffer::HOST);
  added.addLike(2, "last", plan::Buffer::DEVICE);
  EXPECT_EQ(plan.buffers(3).bytes(), 12u);
  EXPECT_EQ(plan.buffers(3).space(), plan::Buffer::HOST);
  added.settle();
  std::string names;
  for (const plan::Buffer& buffer : plan.buffers()) names += buffer.name() + ",";
  EXPECT_EQ(names, "0,second,of second,first,1,2,last,");
  auto nameOf = [&](uint32_t buffer) { return plan.buffers(static_cast<int>(buffer)).name(); };
  for (const plan::Section& section : plan::sectionsOf(plan))
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(nameOf(section.list->Get(i).operands(0).buffer()), std::to_string(i)) << section.name;
  EXPECT_EQ(nameOf(plan.buckets(0).parameter_buffer()), "1");
  EXPECT_EQ(nameOf(plan.buckets(0).states(0).buffer()), "2");
  EXPECT_EQ(nameOf(plan.constants(0).buffer()), "1");
  EXPECT_EQ(nameOf(plan.loss_scale_buffer()), "2");
  EXPECT_EQ(nameOf(plan.generations(0).current()), "1");
  EXPECT_EQ(nameOf(plan.generations(0).next()), "2");
}

TEST(NewBuffers, NothingIsRenumberedWithoutThem) {
  plan::Plan plan = planOf(3);
  const std::string before = plan.SerializeAsString();
  NewBuffers(plan).settle();
  EXPECT_EQ(plan.SerializeAsString(), before);
}

}  // namespace
}  // namespace sheaf::plan_ir
