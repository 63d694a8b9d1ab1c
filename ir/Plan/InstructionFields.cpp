#include "ir/Plan/InstructionFields.h"

#include "ir/Plan/TextTable.h"
#include "ir/Plan/reflected_plan.pb.h"

namespace sheaf::plan_ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Appends the fields of a message that hold one value.
void append(const Message& message, std::vector<InstructionFields::Field>& fields) {
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_repeated()) continue;
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
  if (reflected.updates_bucket()) result.fields.push_back({"updates_bucket", int64_t(reflected.updates_bucket())});
  append(reflected.GetReflection()->GetMessage(reflected, statement->kind), result.fields);
  return result;
}

}  // namespace sheaf::plan_ir
