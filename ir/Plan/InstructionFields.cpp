#include "ir/Plan/InstructionFields.h"

#include "ir/Plan/TextTable.h"
#include "ir/Plan/reflected_plan.pb.h"

namespace sheaf::plan_ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Appends a field of a message if it holds one value.
void append(const Message& message, const FieldDescriptor* field, std::vector<InstructionFields::Field>& fields) {
  if (field->is_repeated()) return;
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      fields.push_back({field->name(), reflection.GetString(message, field)});
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      fields.push_back({field->name(), text::wordOf(*field->enum_type(), reflection.GetEnumValue(message, field))});
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      fields.push_back({field->name(), int64_t(reflection.GetBool(message, field))});
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      fields.push_back({field->name(), int64_t(reflection.GetUInt32(message, field))});
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      fields.push_back({field->name(), static_cast<int64_t>(reflection.GetUInt64(message, field))});
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      fields.push_back({field->name(), reflection.GetInt64(message, field)});
      break;
    default:  // an operand of the version before, which reading a plan has moved
      break;
  }
}

}  // namespace

InstructionFields fieldsOf(const plan::Instruction& instruction) {
  reflected_plan::Instruction reflected;
  reflected.ParseFromString(instruction.SerializeAsString());
  InstructionFields result;
  const text::Statement* statement = text::statementOf(reflected);
  if (!statement) return result;
  result.word = statement->name.substr(statement->name.find('.') + 1);
  result.fields.push_back({"stream", int64_t(reflected.stream())});
  std::vector<const FieldDescriptor*> set;
  reflected.GetReflection()->ListFields(reflected, &set);
  for (const FieldDescriptor* field : set)
    if (!field->containing_oneof() && field->name() != "stream" && field->name() != "label")
      append(reflected, field, result.fields);
  const Message& kind = reflected.GetReflection()->GetMessage(reflected, statement->kind);
  for (int i = 0; i < kind.GetDescriptor()->field_count(); ++i)
    append(kind, kind.GetDescriptor()->field(i), result.fields);
  return result;
}

}  // namespace sheaf::plan_ir
