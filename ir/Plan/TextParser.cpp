// From the text of a plan to the message.
#include <algorithm>
#include <map>
#include <set>

#include "ir/Plan/Text.h"
#include "ir/Plan/TextReader.h"
#include "ir/Plan/TextTable.h"
#include "ir/Plan/reflected_plan.pb.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {
namespace text {
namespace {

using google::protobuf::Reflection;
using Kind = Token::Kind;

// Follows the formats from left to right.
class Parser : public TextReader {
 public:
  using TextReader::TextReader;

  // Reads programs up to the end of the text, each alone or in `module { }`.
  bool programs(std::vector<plan::Plan>& plans, size_t limit) {
    size_t open = 0;
    while (current().kind != Kind::kEnd) {
      if (takes("module")) {
        if (!needs("{")) return false;
        ++open;
      } else if (open > 0 && takes("}")) {
        --open;
      } else if (plans.size() == limit && current().is(kProgram.statement)) {
        return fail(current().at, "a second plan.program, expected one");
      } else if (!program(plans.emplace_back())) {
        return false;
      }
    }
    return open == 0 || unexpected("'}'");
  }

 private:
  // --- statements ---

  bool program(plan::Plan& own) {
    reflected_plan::Plan plan;
    plan.mutable_memory();
    plan_ = &plan;
    buffers_.clear();
    std::set<const Statement*> given;
    name_ = current();
    if (!needs(kProgram.statement) || !sequence(table().program.elements, plan) || !version(plan) || !needs("{"))
      return false;
    while (!takes("}"))
      if (!declaration(given)) return false;
    return own.ParseFromString(plan.SerializeAsString()) || fail(name_.at, "a string of the plan is not UTF-8");
  }

  // The text of the oldest version is that of this one. A text without a version is of a plan that is not finished.
  bool version(reflected_plan::Plan& plan) {
    if (plan.version() == plan::kOldestPlanVersion) plan.set_version(plan::kPlanVersion);
    return plan.version() == plan::kPlanVersion || plan.version() == 0 ||
           fail(name_.at, plan::otherVersion(plan.version()));
  }

  bool declaration(std::set<const Statement*>& given) {
    const Token buffer = current();
    if (current().kind == Kind::kBuffer) {
      advance();
      if (!needs("=")) return false;
    }
    name_ = current();
    const Statement* statement = nullptr;
    if (!find(table().declarations, "a declaration such as plan.buffer or plan.body, or '}'", statement)) return false;
    if (!statement->list) {
      if (!given.insert(statement).second)
        return fail(name_.at, cat(describe(*statement), " stands here a second time, expected it once"));
    }
    const bool named = buffer.kind == Kind::kBuffer;
    const bool isBuffer = statement->list && statement->list->message_type() == reflected_plan::Buffer::descriptor();
    if (named && !isBuffer) return fail(buffer.at, cat("a name of a ", name_.text, ", expected one of a plan.buffer"));
    const auto index = static_cast<uint64_t>(plan_->buffers_size());
    if (!contents(*statement)) return false;
    if (named && !buffers_.emplace(buffer.text, index).second)
      return fail(buffer.at, cat(quoted(buffer), " is the name of another buffer above, expected a name of its own"));
    return true;
  }

  // "plan.body", or "plan.digests \"training\"" of a statement that is not the only one of its name.
  static std::string describe(const Statement& statement) {
    const auto same = std::count_if(table().declarations.begin(), table().declarations.end(),
                                    [&](const Statement& one) { return one.name == statement.name; });
    return same == 1 ? statement.name : cat(statement.name, " ", statement.elements.front().literal);
  }

  bool contents(const Statement& statement) {
    columns_.clear();
    Message* message = plan_;
    if (statement.list) message = plan_->GetReflection()->AddMessage(plan_, statement.list);
    if (!statement.where.empty() && !statement.where.back()->is_repeated() && statement.where.back()->message_type())
      walk(*plan_, statement.where);
    if (!sequence(statement.elements, *message)) return false;
    if (statement.where.size() > 1) {
      const FieldDescriptor* table = statement.where.front();
      const Reflection* reflection = plan_->GetReflection();
      if (reflection->GetMessage(*plan_, table).ByteSizeLong() == 0) reflection->ClearField(plan_, table);
    }
    if (statement.block.empty()) return true;
    if (!needs("{")) return false;
    while (!takes("}"))
      if (!instruction(*message->GetReflection()->AddMessage(message, statement.block.back()))) return false;
    return true;
  }

  bool instruction(Message& message) {
    name_ = current();
    columns_.clear();
    const Statement* statement = nullptr;
    if (!find(table().instructions, "an instruction such as plan.launch, or '}'", statement)) return false;
    Message* kind = message.GetReflection()->MutableMessage(&message, statement->kind);
    if (!statement->operation.empty())
      kind->GetReflection()->SetEnumValue(kind, statement->operation.back(), statement->operationValue);
    return sequence(statement->elements, message);
  }

  // Finds the statement that the token names and takes the token. Where several have the name, the next token decides.
  bool find(const std::vector<Statement>& among, std::string_view what, const Statement*& found) {
    std::vector<const Statement*> named;
    for (const Statement& one : among)
      if (current().kind == Kind::kWord && one.name == current().text) named.push_back(&one);
    if (named.empty()) return unexpected(what);
    advance();
    found = named.front();
    if (named.size() == 1) return true;
    std::vector<std::string> words;
    for (const Statement* one : named) {
      words.push_back(one->elements.front().literal);
      if (current().is(words.back())) {
        found = one;
        return true;
      }
    }
    return unexpected(cat("one of ", listText(words, SIZE_MAX)));
  }

  // --- formats ---

  bool sequence(const std::vector<Element>& elements, Message& message) {
    return std::all_of(elements.begin(), elements.end(), [&](const Element& one) { return element(one, message); });
  }

  bool element(const Element& element, Message& message) {
    switch (element.kind) {
      case Element::Kind::kLiteral:
        return takes(element.literal) || unexpected(cat("'", element.literal, "'"));
      case Element::Kind::kGroup:
        return group(element, message);
      case Element::Kind::kDictionary:
        return dictionary(element, message);
      case Element::Kind::kField:
        return field(element, message, false);
    }
    return false;
  }

  bool group(const Element& element, Message& message) {
    const Element& first = element.children.front();
    const std::string_view begin = first.kind == Element::Kind::kDictionary ? "{" : std::string_view(first.literal);
    if (!current().is(begin)) {
      mayHaveBeen(begin);
      return true;
    }
    if (!sequence(element.children, message)) return false;
    // A stride of 0 has no axis.
    if (!element.anchor.empty() && !isSet(message, element.anchor))
      for (const Element& child : element.children)
        if (child.path.size() == 1) message.GetReflection()->ClearField(&message, child.path.back());
    return true;
  }

  // Reads `{key = value, ...}`, and calls value(key) for each, which reads the value. A key is a word or a string.
  template <typename Value>
  bool entries(Value value) {
    if (!needs("{")) return false;
    if (takes("}")) return true;
    std::set<std::string> given;
    do {
      const Token token = current();
      std::string key(token.text);
      if (token.kind == Kind::kString) {
        if (!content(key)) return false;
      } else if (token.kind != Kind::kWord) {
        return unexpected("a key");
      } else {
        advance();
      }
      if (!given.insert(key).second) return fail(token.at, cat(quoted(token), " stands here a second time"));
      if (!needs("=") || !value(key, token)) return false;
    } while (takes(","));
    return takes("}") || unexpected("',' or '}'");
  }

  bool dictionary(const Element& element, Message& message) {
    const Token begin = current();
    std::map<const Element*, Token> given;
    const auto value = [&](const std::string& key, const Token& token) {
      for (const Element& entry : element.children) {
        if (entry.literal != key) continue;
        given.emplace(&entry, token);
        return field(entry, message, true);
      }
      std::vector<std::string> keys;
      for (const Element& entry : element.children) keys.push_back(entry.literal);
      return fail(token.at, cat(quoted(token), " is not one of ", listText(keys, SIZE_MAX)));
    };
    if (!entries(value)) return false;
    for (const Element& entry : element.children) {
      const auto found = given.find(&entry);
      if (entry.required && found == given.end()) return fail(begin.at, cat("expected '", entry.literal, "' in it"));
      if (found != given.end() && !entry.anchor.empty() && isSet(message, entry.path) && !isSet(message, entry.anchor))
        return fail(found->second.at, cat("'", entry.literal, "' without '", entry.anchorKey, "', expected both"));
    }
    return true;
  }

  // Returns the message that has the last field of a path, and makes those that lead to it.
  static Message& walk(Message& message, const Path& path) {
    Message* at = &message;
    for (const FieldDescriptor* field : path)
      if (field->message_type() && !field->is_repeated()) at = at->GetReflection()->MutableMessage(at, field);
    return *at;
  }

  bool field(const Element& element, Message& message, bool inDictionary) {
    Message* at = &message;
    const auto last = element.path.end() - 1;
    for (auto step = element.path.begin(); step != last; ++step) {
      if ((*step)->is_repeated()) return column(element, *at, *step);
      at = at->GetReflection()->MutableMessage(at, *step);
    }
    if (element.form == Form::kFlat) return flat(*at, *last, inDictionary);
    if ((*last)->is_repeated()) return list(element, *at, *last, inDictionary);
    return value(element, *at, *last, inDictionary);
  }

  // Reads `one, one`, with brackets or without; without them it ends before `)`.
  template <typename One>
  bool sequenceOf(bool bare, One one) {
    if (!bare && !needs("[")) return false;
    if (current().is(bare ? ")" : "]")) return bare || takes("]");
    do {
      if (!one()) return false;
    } while (takes(","));
    return bare || takes("]") || unexpected("',' or ']'");
  }

  // A list of one field in each of the entries. The first column of a statement makes the entries.
  bool column(const Element& element, Message& message, const FieldDescriptor* entries) {
    const Reflection* reflection = message.GetReflection();
    const bool first = std::find(columns_.begin(), columns_.end(), entries) == columns_.end();
    const Token begin = current();
    int count = 0;
    const auto one = [&] {
      ++count;
      if (first) return value(element, *reflection->AddMessage(&message, entries), element.path.back(), false);
      if (count <= reflection->FieldSize(message, entries))
        return value(element, *reflection->MutableRepeatedMessage(&message, entries, count - 1), element.path.back(),
                     false);
      return fail(current().at, cat("more entries than the list before has, expected ", count - 1));
    };
    columns_.push_back(entries);
    if (!sequenceOf(element.form == Form::kBuffer, one)) return false;
    const int needed = reflection->FieldSize(message, entries);
    return count == needed ||
           fail(begin.at, cat(count, " entries, expected ", needed, ": as many as in the list before"));
  }

  bool list(const Element& element, Message& message, const FieldDescriptor* field, bool inDictionary) {
    if (const auto* entry = mapEntryOf(field)) return map(*entry, message, field);
    const Reflection* reflection = message.GetReflection();
    const auto one = [&] { return value(element, message, field, false); };
    if (!sequenceOf(field->message_type() && !inDictionary, one)) return false;
    const auto count = static_cast<size_t>(reflection->FieldSize(message, field));
    return element.count == 0 || count == element.count ||
           fail(name_.at, cat(name_.text, " with ", count, " ", field->name(), ", expected ", element.count));
  }

  // A dictionary as messages, in the order of their keys: of words that of their values.
  bool map(const std::vector<Element>& entry, Message& message, const FieldDescriptor* field) {
    const Reflection* reflection = message.GetReflection();
    const Message* prototype = reflection->GetMessageFactory()->GetPrototype(field->message_type());
    std::vector<std::pair<std::pair<int, std::string>, std::unique_ptr<Message>>> sorted;
    const auto value = [&](const std::string& key, const Token& token) {
      std::unique_ptr<Message> one(prototype->New());
      if (!keyed(entry[0], *one, key, token)) return false;
      const Element& held = entry[2];
      if (held.kind == Element::Kind::kDictionary ? !dictionary(held, *one) : !this->field(held, *one, true))
        return false;
      std::pair<int, std::string> rank = rankOf(entry[0], *one);
      sorted.emplace_back(std::move(rank), std::move(one));
      return true;
    };
    if (!entries(value)) return false;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [rank, one] : sorted) reflection->AddAllocatedMessage(&message, field, one.release());
    return true;
  }

  static std::pair<int, std::string> rankOf(const Element& key, const Message& message) {
    const FieldDescriptor* field = key.path.back();
    const Reflection* reflection = message.GetReflection();
    if (!field->enum_type()) return {0, reflection->GetString(message, field)};
    return {reflection->GetEnumValue(message, field), key.text ? key.text->text(message) : ""};
  }

  // --- values ---

  // Reads numbers as the fields of a message, or of the messages of a list, in their order; one that repeats has the
  // rest.
  bool flat(Message& message, const FieldDescriptor* field, bool inDictionary) {
    std::vector<Token> numbers;
    const auto one = [&] {
      if (current().kind != Kind::kNumber) return unexpected("a whole number");
      numbers.push_back(current());
      advance();
      return true;
    };
    const Token begin = current();
    if (!inDictionary) {
      if (!sequenceOf(false, one)) return false;
    } else {
      if (!needs("array") || !needs("<") || !needs("i64")) return false;
      if (takes(":")) do {
          if (!one()) return false;
        } while (takes(","));
      if (!needs(">")) return false;
    }
    const Descriptor& type = *field->message_type();
    std::vector<std::string> names;
    for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
    const Reflection* reflection = message.GetReflection();
    const bool repeats = type.field(type.field_count() - 1)->is_repeated();
    const size_t each = names.size() - repeats;
    if (field->is_repeated() ? numbers.size() % each != 0 : !numbers.empty() && numbers.size() < each)
      return fail(begin.at, cat(numbers.size(), " numbers, expected ", listText(names, SIZE_MAX),
                                field->is_repeated() ? " of each" : ", or none"));
    for (size_t i = 0; i < numbers.size();) {
      Message* to =
          field->is_repeated() ? reflection->AddMessage(&message, field) : reflection->MutableMessage(&message, field);
      for (int f = 0; f < type.field_count(); ++f) do {
          if (i == numbers.size() && type.field(f)->is_repeated()) break;
          if (!integer(*to, type.field(f), numbers[i++], type.field(f)->type() == FieldDescriptor::TYPE_FIXED64))
            return false;
        } while (type.field(f)->is_repeated());
    }
    return true;
  }

  // Reads a field's value; of a list, one more.
  bool value(const Element& element, Message& message, const FieldDescriptor* field, bool inDictionary) {
    const Reflection* reflection = message.GetReflection();
    if (element.form == Form::kBuffer) return buffer(message, field);
    if (element.form == Form::kHex) return hexadecimal(message, field);
    if (element.form == Form::kText) {
      const Token token = current();
      std::string text;
      if (!content(text)) return false;
      const Status status = element.text->set(text, *reflection->MutableMessage(&message, field));
      return status.ok() || fail(token.at, status.message());
    }
    if (field->type() == FieldDescriptor::TYPE_BOOL) {
      reflection->SetBool(&message, field, true);
      return true;
    }
    if (field->message_type()) {
      Message* inner =
          field->is_repeated() ? reflection->AddMessage(&message, field) : reflection->MutableMessage(&message, field);
      return sequence(table().parts.at(field->message_type()), *inner);
    }
    if (field->enum_type()) return word(element, message, field, inDictionary);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return string(message, field);
    return number(element, message, field, inDictionary);
  }

  Token name_;                                   // the name of the statement being read
  std::vector<const FieldDescriptor*> columns_;  // lists that the statement has had a column of
  reflected_plan::Plan* plan_ = nullptr;
};

}  // namespace
}  // namespace text

Expected<std::vector<plan::Plan>> parseTexts(std::string_view text, std::string_view file) {
  std::vector<plan::Plan> plans;
  text::Parser parser(text, file);
  if (!parser.programs(plans, SIZE_MAX)) return parser.error();
  return plans;
}

Expected<plan::Plan> parseText(std::string_view text, std::string_view file) {
  std::vector<plan::Plan> plans;
  text::Parser parser(text, file);
  if (!parser.programs(plans, 1)) return parser.error();
  if (plans.empty()) return Status::error(cat(file, " has no plan.program"));
  return std::move(plans.front());
}

}  // namespace sheaf::plan_ir
