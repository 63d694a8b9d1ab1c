// Insertions into lists and tables of a plan: order, and the numbers that refer to buffers.
#include "passes/plan/Edits.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "ir/Plan/TextTable.h"
#include "ir/Plan/reflected_plan.pb.h"

namespace sheaf::plan_ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

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

// The fields that hold the number of a buffer: those that the text of plans prints as a buffer's name.
std::set<const FieldDescriptor*> bufferFields() {
  std::set<const FieldDescriptor*> fields;
  auto add = [&](const std::vector<text::Element>& elements) {
    text::forEachElement(elements, [&](const text::Element& element) {
      if (element.form == text::Form::kBuffer) fields.insert(element.path.back());
    });
  };
  for (const text::Statement& statement : text::table().declarations) add(statement.elements);
  for (const text::Statement& statement : text::table().instructions) add(statement.elements);
  for (const auto& [type, elements] : text::table().parts) add(elements);
  return fields;
}

// Calls visit(field, number) for every number of a buffer in a message.
template <typename Visit>
void forEachBuffer(const Message& message, Visit visit) {
  static const std::set<const FieldDescriptor*> buffers = bufferFields();
  std::vector<const FieldDescriptor*> set;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (buffers.contains(field)) visit(field, reflection.GetUInt32(message, field));
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) forEachBuffer(reflection.GetMessage(message, field), visit);
    for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i)
      forEachBuffer(reflection.GetRepeatedMessage(message, field, i), visit);
  }
}

reflected_plan::Plan reflected(const plan::Plan& plan) {
  reflected_plan::Plan result;
  EXPECT_TRUE(result.ParseFromString(plan.SerializeAsString()));
  return result;
}

// "Bucket.parameter_buffer is 1", for every number of a buffer in the plan.
std::vector<std::string> buffersOf(const plan::Plan& plan) {
  std::vector<std::string> texts;
  forEachBuffer(reflected(plan), [&](const FieldDescriptor* field, uint32_t number) {
    texts.push_back(field->full_name() + " is " + plan.buffers(static_cast<int>(number)).name());
  });
  return texts;
}

TEST(NewBuffers, AreTestedWithEveryFieldThatHoldsTheNumberOfABuffer) {
  std::set<const FieldDescriptor*> tested;
  forEachBuffer(reflected(planOf(3)), [&](const FieldDescriptor* field, uint32_t) { tested.insert(field); });
  EXPECT_GE(tested.size(), 7u);
  for (const FieldDescriptor* field : bufferFields())
    EXPECT_TRUE(tested.contains(field)) << field->full_name()
                                        << " is not set in planOf(): set it there, and replace it in "
                                        << "renumber() in passes/plan/Edits.cpp";
}

TEST(NewBuffers, StandAfterTheirOwnAndEverythingStillRefersToTheSameBuffer) {
  plan::Plan plan = planOf(3);
  const std::vector<std::string> before = buffersOf(plan);
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
  EXPECT_EQ(buffersOf(plan), before);
}

TEST(NewBuffers, NothingIsRenumberedWithoutThem) {
  plan::Plan plan = planOf(3);
  const std::string before = plan.SerializeAsString();
  NewBuffers(plan).settle();
  EXPECT_EQ(plan.SerializeAsString(), before);
}

}  // namespace
}  // namespace sheaf::plan_ir
