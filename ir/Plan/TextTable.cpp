#include "ir/Plan/TextTable.h"

#include <llvm/Support/ErrorHandling.h>

#include "ir/Plan/Text.h"
#include "ir/Plan/reflected_plan.pb.h"
#include "runtime/base/Text.h"
#include "runtime/plan/DigestTable.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/StepWork.h"

namespace sheaf::plan_ir::text {
namespace {

constexpr std::string_view kAccess[] = {"", "r", "w", "rw"};
constexpr std::string_view kIndex[] = {"rank", "local", "node"};
constexpr Spelling kSpellings[] = {{"access", kAccess}, {"index", kIndex}};

// Converts between a message and the same one of plan.proto's own classes.
template <typename Own>
Own ownOf(const Message& message) {
  Own own;
  own.ParseFromString(message.SerializeAsString());
  return own;
}
template <typename Own>
Status assign(const Own& own, Message& message) {
  message.ParseFromString(own.SerializeAsString());
  return {};
}

Status setProduct(std::string_view word, Message& message) {
  const std::optional<plan::ProductFlops> products = plan::productsOfWord(word);
  if (!products) return Status::error(cat("there are no products of type '", word, "'"));
  return assign(*products, message);
}

Status setSchedule(std::string_view text, Message& message) {
  const Expected<plan::Schedule> schedule = plan::parseSchedule(std::string(text));
  return schedule.ok() ? assign(*schedule, message) : schedule.status();
}

Status setLossScale(std::string_view text, Message& message) {
  const Expected<std::optional<plan::LossScale>> scale = plan::parseLossScale(std::string(text));
  if (!scale.ok()) return scale.status();
  if (!*scale) return Status::error("a loss scale of 'none' is left out");
  return assign(**scale, message);
}

const TextForm kTextForms[] = {
    {"product",
     {"type", "tf32"},
     [](const Message& message) { return plan::productWord(ownOf<plan::ProductFlops>(message)); },
     setProduct},
    {"schedule",
     {},
     [](const Message& message) { return plan::scheduleText(ownOf<plan::Schedule>(message)); },
     setSchedule},
    {"loss_scale",
     {},
     [](const Message& message) { return plan::lossScaleText(ownOf<plan::LossScale>(message)); },
     setLossScale},
};

// Returns the text with `?` replaced.
std::string filledIn(std::string_view text, std::string_view name) {
  std::string filled;
  for (char c : text) c == '?' ? filled += name : filled += c;
  return filled;
}

// An operator's punctuation stands directly after the name of the statement, anything else after a space.
std::vector<Element> afterName(std::string_view format, const Descriptor& message) {
  return compileFormat(format.starts_with("(") ? std::string(format) : cat(' ', format), message);
}

Statement declaration(const Row& row, std::string_view name = {}) {
  const Descriptor* message = reflected_plan::Plan::descriptor();
  Statement statement{&row, std::string(row.statement), nullptr, {}, {}, {}, nullptr, {}, 0};
  if (row.where.ends_with('*')) {
    statement.list = message->FindFieldByName(std::string(row.where.substr(0, row.where.size() - 1)));
    if (!statement.list) llvm::report_fatal_error(cat("a plan has no list ", row.where).c_str());
    message = statement.list->message_type();
  } else {
    statement.where = pathOf(filledIn(row.where, name), *message);
  }
  statement.elements = afterName(filledIn(row.format, name), *message);
  statement.block = pathOf(row.block, *message);
  return statement;
}

Statement instruction(const Row& row) {
  const Descriptor& message = *reflected_plan::Instruction::descriptor();
  const std::string_view kind = row.where.substr(0, row.where.find('='));
  Statement statement{&row, std::string(row.statement), nullptr, {}, {}, {}, nullptr, {}, 0};
  statement.kind = pathOf(kind, message).front();
  statement.elements = afterName(row.format, message);
  if (kind.size() < row.where.size()) {
    statement.operation = pathOf(cat(kind, ".op"), message);
    const auto& enumeration = *statement.operation.back()->enum_type();
    const std::string_view word = row.where.substr(kind.size() + 1);
    while (wordOf(enumeration, statement.operationValue) != word)
      if (++statement.operationValue >= enumeration.value_count())
        llvm::report_fatal_error(cat("there is no operation ", word).c_str());
  }
  return statement;
}

Table compiled() {
  Table all{declaration(kProgram), {}, {}, {}};
  for (const Row& row : declarationRows()) {
    if (!row.where.ends_with('?')) {
      all.declarations.push_back(declaration(row));
      continue;
    }
    for (const plan::DigestTable& digests : plan::kDigestTables)
      all.declarations.push_back(declaration(row, digests.name));
  }
  for (const Row& row : instructionRows()) all.instructions.push_back(instruction(row));
  const auto* file = reflected_plan::Plan::descriptor()->file();
  for (const SubMessage& part : subMessageRows()) {
    const Descriptor* message = file->FindMessageTypeByName(std::string(part.message));
    if (!message) llvm::report_fatal_error(cat("plan.proto has no message ", part.message).c_str());
    all.parts[message] = compileFormat(part.format, *message);
  }
  return all;
}

// Returns the format as the reference page has it: without the forms of values, and with `TABLE` for the name of a
// table.
std::string shown(std::string_view format) {
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c == '^' || c == '!') continue;
    if (c == ':' && i > 0 && (isWordChar(format[i - 1]) || format[i - 1] == '?')) {
      while (i + 1 < format.size() && isWordChar(format[i + 1])) ++i;
    } else if (c == '?') {
      text += "TABLE";
    } else {
      if (c == '|') text += '\\';
      text += c;
    }
  }
  return text;
}

}  // namespace

const Table& table() {
  static const Table all = compiled();
  return all;
}

const Statement* statementOf(const Message& instruction) {
  auto operationOf = [&](const Statement& one) {
    const Message& kind = instruction.GetReflection()->GetMessage(instruction, one.kind);
    return kind.GetReflection()->GetEnumValue(kind, one.operation.back());
  };
  const Statement* found = nullptr;
  for (const Statement& one : table().instructions) {
    if (!instruction.GetReflection()->HasField(instruction, one.kind)) continue;
    found = &one;
    if (one.operation.empty() || operationOf(one) == one.operationValue) break;
  }
  return found;
}

const std::vector<Element>* mapEntryOf(const FieldDescriptor* list) {
  const auto found = table().parts.find(list->message_type());
  if (found == table().parts.end() || found->second.size() != 3 || found->second[1].literal != "=") return nullptr;
  return &found->second;
}

const Spelling* findSpelling(std::string_view name) {
  for (const Spelling& spelling : kSpellings)
    if (spelling.name == name) return &spelling;
  return nullptr;
}

const TextForm* findTextForm(std::string_view name) {
  for (const TextForm& form : kTextForms)
    if (form.name == name) return &form;
  return nullptr;
}

std::string wordOf(const google::protobuf::EnumDescriptor& enumeration, int value) {
  const auto* found = enumeration.FindValueByNumber(value);
  if (!found) return "";
  std::string word = lowerCase(found->name());
  return value == 0 && word.ends_with("unspecified") ? "" : word;
}

}  // namespace sheaf::plan_ir::text

namespace sheaf::plan_ir {

std::string textReference() {
  std::string page = "| statement | form | meaning |\n|---|---|---|\n";
  const auto row = [&](const text::Row& from) {
    page += cat("| `", from.statement, "` | ");
    if (!from.format.empty()) page += cat("`", text::shown(from.format), "`");
    if (!from.block.empty()) page += from.format.empty() ? "`{ ... }`" : " `{ ... }`";
    page += cat(" | ", from.meaning, " |\n");
  };
  row(text::kProgram);
  for (const text::Row& one : text::declarationRows()) row(one);
  for (const text::Row& one : text::instructionRows()) row(one);
  page += "\n| message within a statement | form |\n|---|---|\n";
  for (const text::SubMessage& part : text::subMessageRows())
    page += cat("| `", part.message, "` | `", text::shown(part.format), "` |\n");
  return page;
}

}  // namespace sheaf::plan_ir
