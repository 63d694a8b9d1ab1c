// The text of plans: everything that a plan holds survives being printed and read, and errors name their place.
#include "ir/Plan/Text.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "ir/Plan/TextTable.h"
#include "ir/Plan/reflected_plan.pb.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Types.h"
#include "test/Paths.h"

namespace sheaf::plan_ir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using testing::HasSubstr;

std::string bytesOf(const plan::Plan& plan) {
  return plan.SerializeAsString();
}

plan::Plan parsed(const std::string& text) {
  Expected<plan::Plan> plan = parseText(text, "f");
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? std::move(*plan) : plan::Plan();
}

std::string errorOf(const std::string& text) {
  return parseText(text, "f").status().message();
}

void expectRoundTrip(const plan::Plan& plan) {
  const std::string text = textOf(plan);
  const plan::Plan again = parsed(text);
  EXPECT_EQ(textOf(again), text);
  EXPECT_TRUE(bytesOf(again) == bytesOf(plan)) << "the plans differ, but not their texts";
}

// Calls visit(message type, field) for every field that can be reached from a plan and is not deprecated.
template <typename Visit>
void forEachField(const Descriptor* type, std::set<const Descriptor*>& seen, Visit visit) {
  if (!seen.insert(type).second) return;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->options().deprecated()) continue;
    visit(field);
    if (field->message_type()) forEachField(field->message_type(), seen, visit);
  }
}

void cover(const text::Path& path, std::set<const FieldDescriptor*>& covered) {
  covered.insert(path.begin(), path.end());
}

// The fields that a format has.
void cover(const std::vector<text::Element>& elements, std::set<const FieldDescriptor*>& covered) {
  text::forEachElement(elements, [&](const text::Element& element) {
    cover(element.path, covered);
    cover(element.other, covered);
    if (element.path.empty()) return;
    const Descriptor* type = element.path.back()->message_type();
    const bool all = element.form == text::Form::kFlat || (element.text && element.text->fields.empty());
    for (int i = 0; all && i < type->field_count(); ++i) covered.insert(type->field(i));
    if (element.text)
      for (std::string_view name : element.text->fields)
        covered.insert(element.path.back()->containing_type()->FindFieldByName(std::string(name)));
  });
}

TEST(PlanTextTable, HasEveryFieldOfThePlan) {
  const text::Table& table = text::table();
  std::set<const FieldDescriptor*> covered;
  const auto statement = [&](const text::Statement& one) {
    covered.insert(one.list);
    covered.insert(one.kind);
    cover(one.elements, covered), cover(one.block, covered), cover(one.operation, covered);
  };
  statement(table.program);
  for (const text::Statement& one : table.declarations) statement(one);
  for (const text::Statement& one : table.instructions) statement(one);
  for (const auto& [type, elements] : table.parts) cover(elements, covered);
  std::set<const Descriptor*> seen;
  forEachField(reflected_plan::Plan::descriptor(), seen, [&](const FieldDescriptor* field) {
    EXPECT_TRUE(covered.contains(field)) << field->full_name() << " is in no row of ir/Plan/TextRows.cpp";
  });
  EXPECT_GT(seen.size(), 30u);
}

TEST(PlanTextTable, HasNoFieldTwiceInARow) {
  const auto expectOnce = [](std::string_view name, const std::vector<text::Element>& elements) {
    std::set<text::Path> paths;
    text::forEachElement(elements, [&](const text::Element& element) {
      if (!element.path.empty()) {
        EXPECT_TRUE(paths.insert(element.path).second) << name;
      }
    });
  };
  for (const text::Statement& one : text::table().declarations) expectOnce(one.name, one.elements);
  for (const text::Statement& one : text::table().instructions) expectOnce(one.name, one.elements);
  for (const auto& [type, elements] : text::table().parts) expectOnce(type->name(), elements);
}

// Sets every field of a message to a value that is not its default, which differs from call to call.
class Filler {
 public:
  plan::Plan plan() {
    reflected_plan::Plan plan;
    fill(plan);
    plan.set_version(plan::kPlanVersion);
    for (auto& parameter : *plan.mutable_parameters()) parameter.clear_constant();
    for (auto& copied : *plan.mutable_copied()) {
      copied.clear_trainable(), copied.clear_bucket();
      copied.clear_offset(), copied.clear_source_type();
    }
    auto& products = *plan.mutable_floor()->mutable_products();
    products[0].set_type(reflected_plan::F32), products[0].set_tf32(true);
    products[1].set_type(reflected_plan::BF16), products[1].clear_tf32();
    plan.mutable_memory()->mutable_spaces()->Clear();
    for (auto space : {reflected_plan::Buffer::HOST, reflected_plan::Buffer::FILE}) {
      fill(*plan.mutable_memory()->add_spaces());
      plan.mutable_memory()->mutable_spaces()->rbegin()->set_space(space);
    }
    std::vector<google::protobuf::RepeatedPtrField<reflected_plan::KindBytes>*> kinds = {
        plan.mutable_memory()->mutable_by_kind()};
    for (auto& space : *plan.mutable_memory()->mutable_spaces()) kinds.push_back(space.mutable_by_kind());
    for (auto* list : kinds)
      for (int i = 0; i < list->size(); ++i) (*list)[i].set_kind(static_cast<reflected_plan::BufferKind>(i + 1));
    plan::Plan own;
    EXPECT_TRUE(own.ParseFromString(plan.SerializeAsString()));
    return own;
  }

 private:
  void fill(Message& message) {
    const Descriptor* type = message.GetDescriptor();
    ++message_;
    if (type == reflected_plan::Instruction::descriptor()) return instruction(message);
    if (type == reflected_plan::Schedule::descriptor() || type == reflected_plan::LossScale::descriptor()) {
      const text::TextForm* form =
          text::findTextForm(type == reflected_plan::Schedule::descriptor() ? "schedule" : "loss_scale");
      const bool ok =
          form->set(form->name == "schedule" ? "cosine:warmup=3,steps=9,min=0.1" : "dynamic:init=2", message).ok();
      EXPECT_TRUE(ok);
      return;
    }
    for (int i = 0; i < type->field_count(); ++i)
      if (!type->field(i)->options().deprecated()) field(message, type->field(i));
  }

  void field(Message& message, const FieldDescriptor* field) {
    const Reflection* r = message.GetReflection();
    if (const auto* oneof = field->real_containing_oneof())
      if (message_ % oneof->field_count() != field->index_in_oneof()) return;
    const bool isInstructions = field->message_type() == reflected_plan::Instruction::descriptor();
    const int count = isInstructions ? 2 * kKinds : 2;
    for (int i = 0; i < (field->is_repeated() ? count : 1); ++i) {
      ++number_;
      if (field->message_type())
        fill(field->is_repeated() ? *r->AddMessage(&message, field) : *r->MutableMessage(&message, field));
      else
        scalar(message, field);
    }
  }

  void scalar(Message& message, const FieldDescriptor* field) {
    const Reflection* r = message.GetReflection();
    const bool isList = field->is_repeated();
    const bool isBuffer = field->name() == "buffer" || field->name() == "parameter_buffer" ||
                          field->name() == "current" || field->name() == "next" || field->name() == "loss_scale_buffer";
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING: {
        // Keys of dictionaries are in order.
        const std::string text = cat("name ", 1000 + number_, " \"\\\n\t\x7f \xc3\xa4");
        isList ? r->AddString(&message, field, text) : r->SetString(&message, field, text);
        break;
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = 1 + number_ % (field->enum_type()->value_count() - 1);
        isList ? r->AddEnumValue(&message, field, value) : r->SetEnumValue(&message, field, value);
        break;
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        r->SetBool(&message, field, true);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        r->SetDouble(&message, field, 1.0 / number_);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        r->SetInt32(&message, field, -number_);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        isList ? r->AddInt64(&message, field, -number_) : r->SetInt64(&message, field, -number_);
        break;
      case FieldDescriptor::CPPTYPE_UINT32: {
        const auto value = static_cast<uint32_t>(isBuffer ? 1 : number_);
        isList ? r->AddUInt32(&message, field, value) : r->SetUInt32(&message, field, value);
        break;
      }
      default: {
        const bool isHash = field->type() == FieldDescriptor::TYPE_FIXED64;
        const uint64_t value = static_cast<uint64_t>(number_) << 40 | (isHash ? uint64_t{1} << 63 : 0);
        isList ? r->AddUInt64(&message, field, value) : r->SetUInt64(&message, field, value);
      }
    }
  }

  void instruction(Message& message) {
    const Descriptor* type = message.GetDescriptor();
    const int which = kind_++ % kKinds;
    const auto* kinds = type->FindOneofByName("kind");
    for (const char* name : {"stream", "label"}) field(message, type->FindFieldByName(name));
    auto& own = dynamic_cast<reflected_plan::Instruction&>(message);
    // After the kinds of the oneof come the other two collectives.
    if (which < kinds->field_count()) {
      fill(*message.GetReflection()->MutableMessage(&message, kinds->field(which)));
    } else {
      fill(*own.mutable_collective());
    }
    if (own.has_collective())
      own.mutable_collective()->set_op(
          static_cast<reflected_plan::CollectiveOp>(std::max(1, which - kinds->field_count() + 2)));
    // And the instruction's other fields that its row has.
    std::set<const FieldDescriptor*> covered;
    cover(text::statementOf(own)->elements, covered);
    for (int i = 0; i < type->field_count(); ++i)
      if (const FieldDescriptor* one = type->field(i); covered.contains(one) && !one->is_repeated() &&
                                                       !one->containing_oneof() && one->name() != "stream" &&
                                                       one->name() != "label")
        field(message, one);
    const bool none = own.has_record() || own.has_wait();
    const bool one = own.has_input() || own.has_scalars() || own.has_output();
    for (int i = 0; i < (none ? 0 : one ? 1 : 2); ++i) fill(*own.add_operands()), ++number_;
  }

  static constexpr int kKinds = 12;          // ten of the oneof, and two more collectives
  int number_ = 0, kind_ = 0, message_ = 0;  // that have been set
};

TEST(PlanText, KeepsEveryField) {
  const plan::Plan plan = Filler().plan();
  expectRoundTrip(plan);
  EXPECT_EQ(plan.body_size(), 24);
}

TEST(PlanText, KeepsReals) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  plan::Plan plan;
  plan.mutable_memory();
  for (double value : {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 0.30000000000000004, 1e300, 123456789.0, 1e22, kInfinity,
                       -kInfinity, std::numeric_limits<double>::max(), std::numeric_limits<double>::min(),
                       std::numeric_limits<double>::denorm_min(), -3.0 * std::numeric_limits<double>::denorm_min(),
                       std::bit_cast<double>(0x7ff8000000000001), std::bit_cast<double>(0xfff0000000000001)}) {
    plan.add_scalars()->set_value(value);
    plan.mutable_scalars()->rbegin()->set_kind(plan::StepScalar::LR_TIMES);
    plan::LibraryCall& call = *plan.add_body()->mutable_call();
    call.add_attributes()->set_name("a");
    call.mutable_attributes(0)->set_real(value);
  }
  expectRoundTrip(plan);
}

TEST(PlanText, PrintsRealsAsMlirDoes) {
  const auto printed = [](double value) {
    plan::Plan plan;
    plan.add_scalars()->set_value(value);
    plan.mutable_scalars(0)->set_kind(plan::StepScalar::STEP);
    const std::string text = textOf(plan);
    const size_t from = text.find("plan.scalar step ") + 17;
    return text.substr(from, text.find('\n', from) - from);
  };
  EXPECT_EQ(printed(0.01), "1.000000e-02");
  EXPECT_EQ(printed(-0.0), "-0.000000e+00");
  EXPECT_EQ(printed(0.999), "0.99899999999999999");
  EXPECT_EQ(printed(0.9), "9.000000e-01");
  EXPECT_EQ(printed(0.30000000000000004), "0.30000000000000004");
  EXPECT_EQ(printed(123456789.0), "0x419D6F3454000000");
  EXPECT_EQ(printed(std::numeric_limits<double>::infinity()), "0x7FF0000000000000");
}

TEST(PlanText, KeepsEveryByteOfAString) {
  std::string bytes, characters;
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  for (int c = 0; c < 128; ++c) characters += static_cast<char>(c);
  for (int c = 128; c < 256; ++c)
    (characters += static_cast<char>(0xc0 | c >> 6)) += static_cast<char>(0x80 | (c & 63));
  plan::Plan plan;
  plan.mutable_memory();
  plan.add_images()->set_code(bytes);
  plan.add_files()->set_path(characters);
  plan.add_buffers()->set_name(characters);
  plan.mutable_buffers(0)->set_kind(plan::GRADIENTS);
  plan::LibraryCall& call = *plan.add_body()->mutable_call();
  for (const std::string& name : {std::string(), characters, std::string("b c"), std::string("d.e$_2")}) {
    call.add_attributes()->set_name(name);
    call.mutable_attributes()->rbegin()->set_integer(-1);
  }
  expectRoundTrip(plan);
}

TEST(PlanText, NamesBuffersApart) {
  plan::Plan plan;
  plan.mutable_memory();
  for (const char* name : {"x", "0a b/c", "", "x", "x_0", "", "x.-$_", "y\xc3\xa4"}) {
    plan.add_buffers()->set_name(name);
    plan.mutable_buffers()->rbegin()->set_kind(plan::ACTIVATIONS);
    plan.add_constants()->set_buffer(static_cast<uint32_t>(plan.buffers_size() - 1));
  }
  expectRoundTrip(plan);
  const std::string text = textOf(plan);
  for (const char* name : {"%x", "%_0a_b2Fc", "%0", "%x_0", "%x_0_1", "%1", "%x.-$_", "%yC3A4"})
    EXPECT_THAT(text, HasSubstr(cat("plan.constant ", name, " source []\n")));
}

TEST(PlanText, PrintsAnIndexThatNoBufferHas) {
  plan::Plan plan;
  plan.add_constants()->set_buffer(7);
  EXPECT_THAT(textOf(plan), HasSubstr("plan.constant %!7 source []"));
  EXPECT_THAT(errorOf(textOf(plan)), HasSubstr("'%' stands alone"));
  plan.mutable_body()->Add()->add_operands();
  plan.mutable_buckets()->Add()->add_states()->set_buffer(9);
  plan.add_scalars()->set_kind(static_cast<plan::StepScalar::Kind>(99));
  EXPECT_THAT(textOf(plan), HasSubstr("plan.scalar unspecified"));
}

TEST(PlanText, KeepsWhatIsAbsentApartFromDefaults) {
  plan::Plan plan;
  plan.mutable_memory();
  expectRoundTrip(plan);
  plan.add_inputs()->set_type(plan::I64);
  plan.add_inputs()->set_type(plan::I64);
  plan.mutable_inputs(1)->set_ignored_label(0);
  plan.add_buffers()->set_kind(plan::OPTIMIZER);
  expectRoundTrip(plan);
  plan.set_loss_scale_buffer(0);
  plan.mutable_training()->add_groups()->set_name("");
  plan.mutable_training()->add_groups()->set_learning_rate(0);
  expectRoundTrip(plan);
  plan.mutable_training()->mutable_schedule();
  plan.mutable_floor();
  plan.mutable_origin();
  plan.add_parameters()->set_type(plan::F16);
  plan.mutable_parameters(0)->mutable_source();
  plan.add_prologue()->mutable_scalars();
  plan.mutable_prologue(0)->add_operands()->set_access(plan::READ);
  plan.add_body()->mutable_persist();
  expectRoundTrip(plan);
}

TEST(PlanText, KeepsEverySchedule) {
  for (const char* schedule :
       {"constant", "constant:warmup=5", "cosine:steps=9", "cosine:warmup=2,start=0,steps=9,min=0.5",
        "linear:steps=100", "polynomial:steps=10,power=2", "step:step_size=3,gamma=0.5", "wsd:steps=100,decay=10",
        "one-cycle:steps=50"}) {
    const Expected<plan::Schedule> read = plan::parseSchedule(schedule);
    ASSERT_TRUE(read.ok()) << read.status().message();
    plan::Plan plan;
    plan.mutable_memory();
    *plan.mutable_training()->mutable_schedule() = *read;
    expectRoundTrip(plan);
  }
}

// Spaces, comments, keys in any order, types of numbers and `module` make no difference.
TEST(PlanText, ReadsWhatIsWrittenInOtherWays) {
  const std::string plain = R"(module {
  plan.program attributes {ranks = 2 : i64, turns = array<i64: 0, 1>, micro_batches = 2 : i64, training = {learning_rate = 5.000000e-01 : f64, on_nan = #plan<on_nan skip>}} {
    %x = plan.buffer "x" activations offset 0 bytes 4
    plan.bucket "b" f32 elements 1 parameters %x states(%x, %x) ["m", "n"] trainable
    plan.file "f" size 1 hash -1
    plan.body {
      plan.call "f" {a = 1 : i64, b = 2.000000e+00 : f64}(r %x[0 : 4 + rank * 4]) stream 0 ""
    }
  }
}
)";
  const std::string other = R"(plan.program attributes { // a comment "
  training={on_nan=#plan < on_nan skip >,learning_rate=0.5},micro_batches=0x2,ranks=2,turns=array<i64:0,1>}
{%x=plan.buffer"x"activations offset 0 bytes 4 plan.bucket "b" f32 elements 1 parameters %x
  states (%x,%x)["m","n"]trainable plan.file "f" size 1 hash 18446744073709551615
  plan.body{plan.call"f"{"b"=2.,a=1:i64}(r%x[0:4+rank*4])stream 0""}})";
  EXPECT_EQ(bytesOf(parsed(plain)), bytesOf(parsed(other)));
  EXPECT_EQ(parsed(plain).files(0).hash(), UINT64_MAX);
}

TEST(PlanText, ReadsRealsWithoutAPoint) {
  const std::string scalar = "plan.program {\n    plan.scalar lr_times ";
  for (const auto& [text, value] : {std::pair("1e-3", 1e-3), {"1E3", 1e3}, {"-2e+1", -20.0}, {"5", 5.0}})
    EXPECT_EQ(parsed(scalar + text + "\n}\n").scalars(0).value(), value) << text;
}

TEST(PlanText, ReadsAStrideOfZeroAsNone) {
  const std::string begin = "plan.program {\n  %x = plan.buffer \"x\" activations offset 0 bytes 4\n  plan.body {\n";
  auto operand = [&](const char* stride) {
    return parsed(begin + "plan.call \"f\" {}(r %x[0 : 4" + stride + "]) stream 0 \"\"\n} }\n").SerializeAsString();
  };
  EXPECT_NE(operand(" + node * 4"), operand(""));
  EXPECT_EQ(operand(" + node * 0"), operand(""));
}

TEST(PlanText, ReadsSeveralPrograms) {
  const Expected<std::vector<plan::Plan>> plans =
      parseTexts("plan.program attributes {ranks = 1} {\n}\nmodule {\nplan.program attributes {ranks = 2} {}}\n", "f");
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  ASSERT_EQ(plans->size(), 2u);
  EXPECT_EQ((*plans)[1].ranks(), 2);
  EXPECT_EQ(parseTexts("", "f")->size(), 0u);
  EXPECT_EQ(errorOf("// nothing\n"), "f has no plan.program");
  EXPECT_EQ(errorOf("plan.program {}\nplan.program {}"), "f:2:1: a second plan.program, expected one");
}

TEST(PlanText, TakesVersions) {
  const auto version = [](const char* text) {
    return parsed(cat("plan.program attributes {", text, "} {}")).version();
  };
  EXPECT_EQ(version(""), 0u);
  EXPECT_EQ(version("version = 3 : i64"), plan::kPlanVersion) << "the text of version 3 is that of version 4";
  EXPECT_EQ(version("version = 4 : i64"), plan::kPlanVersion);
  EXPECT_EQ(errorOf("\nplan.program attributes {version = 5 : i64} {}"), cat("f:2:1: ", plan::otherVersion(5)));
  EXPECT_THAT(errorOf("plan.program attributes {version = 2 : i64} {}"), HasSubstr("compile the model again"));
}

TEST(PlanText, IsRefusedWhereItIsCutOff) {
  std::string text = textOf(Filler().plan());
  text.resize(text.rfind('}'));  // the brace of `module`, which may be absent, but not alone
  for (size_t size = text.size(); size > 0; size = size * 15 / 16) {
    const Expected<plan::Plan> plan = parseText(std::string_view(text).substr(0, size), "f");
    EXPECT_FALSE(plan.ok()) << size;
    EXPECT_LT(plan.status().message().size(), 2000u);
  }
}

TEST(PlanTextReference, IsInTheDocumentation) {
  std::ifstream file(paths::kPlanFormat);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "<!-- statements -->\n", end = "<!-- end of statements -->\n";
  const size_t from = page.find(begin), to = page.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
  const std::string there = page.substr(from + begin.size(), to - from - begin.size());
  EXPECT_TRUE(there == textReference()) << "docs/plan-format.md must have this between its marks:\n" << textReference();
}

}  // namespace
}  // namespace sheaf::plan_ir
