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

// Statements in a program, which begin on line 2.
std::string program(const std::string& statements) {
  return "plan.program {\n" + statements + "\n}\n";
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
    if (own.has_kernel()) own.set_updates_bucket(7);
    if (own.has_collective())
      own.mutable_collective()->set_op(
          static_cast<reflected_plan::CollectiveOp>(std::max(1, which - kinds->field_count() + 2)));
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

TEST(PlanTextErrors, NameTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"plan.bufer", "f:2:1: got 'plan.bufer', expected a declaration such as plan.buffer or plan.body, or '}'"},
      {"plan.launch", "f:2:1: got 'plan.launch', expected a declaration such as plan.buffer or plan.body, or '}'"},
      {"plan.body {\n  plan.buffer", "f:3:3: got 'plan.buffer', expected an instruction such as plan.launch, or '}'"},
      {"%x = plan.buffer \"x\" heap",
       "f:2:22: 'heap' is not one of parameters, gradients, optimizer, gathered, "
       "activations, workspace, constants"},
      {"%x = plan.buffer \"x\" \"heap\"", "f:2:22: got '\"heap\"', expected a word"},
      {"%x = plan.buffer \"x\" gradients at", "f:2:32: got 'at', expected 'in' or 'offset'"},
      {"%x = plan.buffer \"x\" gradients offset 1.5",
       "f:2:39: '1.5' is not a whole number from 0 to 9223372036854775807"},
      {"%x = plan.buffer \"x\" gradients offset -1",
       "f:2:39: '-1' is not a whole number from 0 to 9223372036854775807"},
      {"%x = plan.buffer \"x\" gradients offset x", "f:2:39: got 'x', expected a whole number"},
      {"%x = plan.buffer \"x\" gradients offset 0 bytes 4\n%x = plan.buffer \"y\" gradients offset 0 bytes 4",
       "f:3:1: '%x' is the name of another buffer above, expected a name of its own"},
      {"%x = plan.file \"x\" size 1 hash 1", "f:2:1: a name of a plan.file, expected one of a plan.buffer"},
      {"plan.constant %x source []", "f:2:15: there is no buffer '%x' above, expected the name of one"},
      {"plan.constant x source []", "f:2:15: got 'x', expected the name of a buffer, such as %x"},
      {"plan.file \"x\" size 1 hash 18446744073709551616",
       "f:2:27: '18446744073709551616' is not a whole number from -9223372036854775808 to 18446744073709551615"},
      {"plan.file \"x\" size 1 hash -9223372036854775809",
       "f:2:27: '-9223372036854775809' is not a whole number from -9223372036854775808 to 18446744073709551615"},
      {"plan.scalar step 0.0 group 4294967296", "f:2:28: '4294967296' is not a whole number from 0 to 4294967295"},
      {"plan.scalar step 1.0e999", "f:2:18: '1.0e999' is not a number of 64 bits"},
      {"plan.scalar step 0x", "f:2:18: '0x' is not a number of 64 bits"},
      {"plan.file \"x", "f:2:11: the string does not end on its line, expected '\"'"},
      {"plan.file \"x\\", "f:2:11: the string does not end on its line, expected '\"'"},
      {"plan.file \"ab\\q\"", "f:2:14: an unknown escape, expected \\\\, \\\", \\n, \\t or two hexadecimal digits"},
      {"plan.file \"\\FF\"", "f:2:11: the string is not UTF-8"},
      {"plan.file \"x\" size 1 hash 1 ~", "f:2:29: got '~', which a plan's text has only in strings and comments"},
      {"plan.file \"x\" size 1 hash 1 \x01", "f:2:29: got the byte 0x1, which a plan's text has only in comments"},
      {"plan.constant %", "f:2:15: '%' stands alone, expected the name of a buffer"},
      {"plan.digests \"training\" [\"xyz\"]", "f:2:26: '\"xyz\"' is not a hexadecimal number of 64 bits"},
      {"plan.body {}\nplan.body {}", "f:3:1: plan.body stands here a second time, expected it once"},
      {"plan.origin_program \"step\" [\"a\"] hashes []",
       "f:2:41: 0 entries, expected 1: as many as in the list before"},
      {"plan.origin_program \"step\" [] hashes [\"1\"]", "f:2:39: more entries than the list before has, expected 0"},
      {"plan.origin_program \"x\" [] hashes []", "f:2:21: got '\"x\"', expected one of \"step\", \"evaluation\""},
      {"plan.kernel \"k\" rows 4 block 2 bytes [64] access [x]", "f:2:51: 'x' is not one of r, w, rw"},
      {"plan.kernel \"k\" rows 4 block 2 bytes [64", "f:3:1: got '}', expected ',' or ']'"},
      {"plan.parameter \"w\" f32 [1] bucket 0 at 0 permutation [] source [1, 2]",
       "f:2:64: 2 numbers, expected file, offset, length, hashes, or none"},
      {"plan.kernel \"k\" rows 1 block 1 bytes [] attributes {size = 1}",
       "f:2:53: 'size' is not one of operations, ops, padding, program"},
      {"plan.body {\n  plan.transfer to_host() stream 0 \"\"", "f:3:3: plan.transfer with 0 operands, expected 2"},
      {"plan.body {\n  plan.call \"f\" {a = 1, a = 2}() stream 0 \"\"", "f:3:25: 'a' stands here a second time"},
      {"plan.body {\n  plan.call \"f\" {a = \"1\"}() stream 0 \"\"", "f:3:22: got '\"1\"', expected a whole number"},
      {"plan.body {\n  plan.call \"f\" {a = 1.0 : i64}() stream 0 \"\"", "f:3:28: got 'i64', expected 'f64'"},
  };
  for (const auto& [statements, error] : cases) EXPECT_EQ(errorOf(program(statements)), error) << statements;
}

TEST(PlanTextErrors, NameTheirPlaceInTheProgramsAttributes) {
  const std::pair<const char*, const char*> cases[] = {
      {"rank = 1", "f:1:26: 'rank' is not one of batch, by_kind, communicator_axes, "},
      {"ranks = 1, ranks = 1", "f:1:37: 'ranks' stands here a second time"},
      {"ranks = 1 : f64", "f:1:38: got 'f64', expected 'i64'"},
      {"ranks = 1", "f:1:34: got '}', expected ',' or '}'"},
      {"zero = 2147483648", "f:1:33: '2147483648' is not a whole number from -2147483648 to 2147483647"},
      {"floor = {products = {bf17 = 1}}", "f:1:47: there are no products of type 'bf17'"},
      {"floor = {state = 1}", "f:1:35: 'state' is not one of gathered_bytes, products, reduced_bytes, state_bytes"},
      {"floor = {products = {f32 = -1}}", "f:1:53: '-1' is not a whole number from 0 to 9223372036854775807"},
      {"floor = {reduced_bytes = \"many\"}", "f:1:51: got '\"many\"', expected a whole number"},
      {"training = {on_nan = #plan<on_nan pray>}", "f:1:60: 'pray' is not one of stop, skip"},
      {"training = {on_nan = \"skip\"}", "f:1:47: got '\"skip\"', expected '#'"},
      {"training = {schedule = \"cosin\"}", "f:1:49: "},
      {"training = {loss_scale = \"none\"}", "f:1:51: a loss scale of 'none' is left out"},
      {"dealing = \"by_rank\"", "f:1:26: 'dealing' without 'micro_batches', expected both"},
      {"micro_batches = 2, dealing = \"by_chance\"", "f:1:55: '\"by_chance\"' is not one of by_micro_batch, by_rank"},
      {"micro_batches = 2, turns = array<i64: 1>", "f:1:53: 1 numbers, expected part, micro_batch of each"},
      {"by_kind = {heap = 1}", "f:1:37: 'heap' is not one of parameters, gradients, "},
      {"spaces = {host = {}}", "f:1:43: expected 'peak_bytes' in it"},
  };
  for (const auto& [attributes, error] : cases) {
    const bool isOpen = std::string_view(attributes) == "ranks = 1";
    EXPECT_THAT(errorOf(cat("plan.program attributes {", attributes, isOpen ? "" : "}", " {\n}\n")),
                testing::StartsWith(isOpen ? "f:1:36: got '{', expected ',' or '}'" : error))
        << attributes;
  }
}

TEST(PlanTextErrors, EndATextThatIsCutOff) {
  std::string text = textOf(Filler().plan());
  text.resize(text.rfind('}'));  // the brace of `module`, which may be absent, but not alone
  for (size_t size = text.size(); size > 0; size = size * 15 / 16) {
    const Expected<plan::Plan> plan = parseText(std::string_view(text).substr(0, size), "f");
    EXPECT_FALSE(plan.ok()) << size;
    EXPECT_LT(plan.status().message().size(), 2000u);
  }
}

TEST(PlanTextErrors, EndLongAndDeepTexts) {
  constexpr size_t kLong = 100 << 20;
  EXPECT_EQ(errorOf(std::string(kLong, '[')), "f:1:1: got '[', expected 'plan.program'");
  EXPECT_THAT(errorOf(std::string(kLong, 'a')), HasSubstr("f:1:1: got 'aaaaaaaa"));
  EXPECT_LT(errorOf(std::string(kLong, 'a')).size(), 100u);
  EXPECT_THAT(errorOf("plan.program attributes {producer = \"" + std::string(kLong, 'a')), HasSubstr("f:1:37: "));
  EXPECT_THAT(errorOf("plan.program attributes {streams = " + std::string(kLong, '[')), HasSubstr("f:1:37: got '['"));
  EXPECT_THAT(errorOf("plan.program attributes {ranks = " + std::string(kLong, '1')), HasSubstr("f:1:34: '1111"));
  std::string modules;
  for (int i = 0; i < 1 << 20; ++i) modules += "module {";
  EXPECT_THAT(errorOf(modules), HasSubstr("got the end of the text, expected '}'"));
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
