// From the message to its text.
#include <llvm/ADT/APFloat.h>
#include <llvm/ADT/SmallString.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "ir/Plan/Text.h"
#include "ir/Plan/TextTable.h"
#include "ir/Plan/reflected_plan.pb.h"
#include "runtime/base/Text.h"

namespace sheaf::plan_ir {
namespace text {
namespace {

using google::protobuf::Reflection;

void quote(llvm::raw_ostream& out, std::string_view text) {
  out << '"';
  llvm::printEscapedString(text, out);
  out << '"';
}

// Prints with seven digits if they are the number; else with as many as it needs, or as its bits.
void real(llvm::raw_ostream& out, double value) {
  const llvm::APFloat number(value);
  llvm::SmallString<32> digits;
  if (number.isFinite()) {
    number.toString(digits, /*FormatPrecision=*/6, /*FormatMaxPadding=*/0, /*TruncateZero=*/false);
    if (llvm::APFloat(number.getSemantics(), digits).bitwiseIsEqual(number)) {
      out << digits;
      return;
    }
    digits.clear();
    number.toString(digits);
    if (digits.str().contains('.')) {
      out << digits;
      return;
    }
  }
  out << "0x" << llvm::utohexstr(number.bitcastToAPInt().getZExtValue());
}

// The names of buffers: their own, made of the characters that a name may have, and a number where that is taken.
class Names {
 public:
  explicit Names(const reflected_plan::Plan& plan) {
    size_t unnamed = 0, conflicts = 0;
    std::unordered_set<std::string> used;
    for (const auto& buffer : plan.buffers()) {
      std::string name = buffer.name().empty() ? cat(unnamed++) : allowed(buffer.name());
      if (!buffer.name().empty() && !used.insert(name).second) {
        std::string other;
        do other = cat(name, '_', conflicts++);
        while (!used.insert(other).second);
        name = std::move(other);
      }
      names_.push_back(std::move(name));
    }
  }

  std::string of(uint64_t buffer) const {
    return buffer < names_.size() ? cat('%', names_[buffer]) : cat("%!", buffer);
  }

 private:
  static std::string allowed(std::string_view name) {
    std::string text;
    if (llvm::isDigit(name[0])) text = '_';
    for (char c : name) {
      if (llvm::isAlnum(c) || c == '$' || c == '.' || c == '_' || c == '-')
        text += c;
      else
        text += c == ' ' ? "_" : llvm::utohexstr(static_cast<unsigned char>(c));
    }
    return text;
  }

  std::vector<std::string> names_;
};

class Printer {
 public:
  explicit Printer(const reflected_plan::Plan& plan, llvm::raw_ostream& out) : plan_(plan), names_(plan), out_(out) {}

  void print() {
    out_ << "module {\n  ";
    statement(table().program, plan_);
    out_ << " {\n";
    for (const Statement& one : table().declarations) {
      if (one.list) {
        const Reflection* reflection = plan_.GetReflection();
        for (int i = 0; i < reflection->FieldSize(plan_, one.list); ++i)
          declaration(one, reflection->GetRepeatedMessage(plan_, one.list, i), i);
      } else if (one.where.empty() || isSet(plan_, one.where)) {
        declaration(one, plan_, 0);
      }
    }
    out_ << "  }\n}\n";
  }

 private:
  void declaration(const Statement& one, const Message& message, int index) {
    out_ << "    ";
    if (one.list && one.list->message_type() == reflected_plan::Buffer::descriptor())
      out_ << names_.of(static_cast<uint64_t>(index)) << " = ";
    statement(one, message);
    if (!one.block.empty()) {
      out_ << " {\n";
      const Reflection* reflection = message.GetReflection();
      for (int i = 0; i < reflection->FieldSize(message, one.block.back()); ++i)
        instruction(reflection->GetRepeatedMessage(message, one.block.back(), i));
      out_ << "    }";
    }
    out_ << '\n';
  }

  void instruction(const Message& message) {
    const Statement* found = statementOf(message);
    if (!found) return;
    out_ << "      ";
    statement(*found, message);
    out_ << '\n';
  }

  void statement(const Statement& one, const Message& message) {
    out_ << one.name;
    sequence(one.elements, message);
  }

  void sequence(const std::vector<Element>& elements, const Message& message) {
    for (const Element& element : elements)
      if (isPrinted(element, message)) {
        if (element.space) out_ << ' ';
        print(element, message);
      }
  }

  static bool isPrinted(const Element& element, const Message& message) {
    if (element.kind == Element::Kind::kDictionary)
      return std::any_of(element.children.begin(), element.children.end(),
                         [&](const Element& entry) { return isPrinted(entry, message); });
    if (!element.anchor.empty()) return isSet(message, element.anchor);
    if (element.kind == Element::Kind::kGroup) return isPrinted(element.children.back(), message);
    return element.kind == Element::Kind::kLiteral || element.path.back()->type() != FieldDescriptor::TYPE_BOOL;
  }

  void print(const Element& element, const Message& message) {
    switch (element.kind) {
      case Element::Kind::kLiteral:
        out_ << element.literal;
        break;
      case Element::Kind::kGroup:
        sequence(element.children, message);
        break;
      case Element::Kind::kDictionary:
        dictionary(element, message);
        break;
      case Element::Kind::kField:
        field(element, message, false);
        break;
    }
  }

  void dictionary(const Element& element, const Message& message) {
    const char* separator = "";
    out_ << '{';
    for (const Element& entry : element.children) {
      if (!entry.anchor.empty() && !isSet(message, entry.anchor)) continue;
      out_ << separator << entry.literal << " = ";
      field(entry, message, true);
      separator = ", ";
    }
    out_ << '}';
  }

  // Walks to the message that has the field's value, or to the list that it is a column of.
  void field(const Element& element, const Message& message, bool inDictionary) {
    const Message* at = &message;
    const auto last = element.path.end() - 1;
    for (auto step = element.path.begin(); step != last; ++step) {
      if ((*step)->is_repeated()) return column(element, *at, *step);
      at = &at->GetReflection()->GetMessage(*at, *step);
    }
    if (element.form == Form::kFlat) return flat(*at, *last, inDictionary);
    if ((*last)->is_repeated()) return list(element, *at, *last, inDictionary);
    value(element, *at, *last, -1, inDictionary);
  }

  void column(const Element& element, const Message& message, const FieldDescriptor* entries) {
    const bool bare = element.form == Form::kBuffer;
    const Reflection* reflection = message.GetReflection();
    if (!bare) out_ << '[';
    for (int i = 0; i < reflection->FieldSize(message, entries); ++i) {
      if (i) out_ << ", ";
      value(element, reflection->GetRepeatedMessage(message, entries, i), element.path.back(), -1, false);
    }
    if (!bare) out_ << ']';
  }

  void list(const Element& element, const Message& message, const FieldDescriptor* field, bool inDictionary) {
    if (const auto* entry = mapEntryOf(field)) return map(*entry, message, field);
    const bool bare = field->message_type() && !inDictionary;
    if (!bare) out_ << '[';
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      if (i) out_ << ", ";
      value(element, message, field, i, false);
    }
    if (!bare) out_ << ']';
  }

  // A dictionary from the messages of a list.
  void map(const std::vector<Element>& entry, const Message& message, const FieldDescriptor* field) {
    std::vector<std::pair<std::string, const Message*>> sorted;
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      const Message& one = message.GetReflection()->GetRepeatedMessage(message, field, i);
      sorted.emplace_back(keyOf(entry[0], one), &one);
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const char* separator = "";
    out_ << '{';
    for (const auto& [key, one] : sorted) {
      out_ << separator;
      isBareWord(key) ? void(out_ << key) : quote(out_, key);
      out_ << " = ";
      const Element& held = entry[2];
      held.kind == Element::Kind::kDictionary ? dictionary(held, *one) : this->field(held, *one, true);
      separator = ", ";
    }
    out_ << '}';
  }

  static std::string keyOf(const Element& key, const Message& message) {
    if (key.form == Form::kText) return key.text->text(message);
    const FieldDescriptor* field = key.path.back();
    if (!field->enum_type()) return message.GetReflection()->GetString(message, field);
    return std::string(wordFor(key, message.GetReflection()->GetEnumValue(message, field)));
  }

  static std::string_view wordFor(const Element& element, int value) {
    const auto index = static_cast<size_t>(value);
    const bool known = index < element.words.size() && !element.words[index].empty();
    return known ? std::string_view(element.words[index]) : "unspecified";
  }

  static bool isBareWord(std::string_view key) {
    return !key.empty() && !llvm::isDigit(key[0]) && key[0] != '$' && key[0] != '.' &&
           std::all_of(key.begin(), key.end(),
                       [](char c) { return llvm::isAlnum(c) || c == '_' || c == '$' || c == '.'; });
  }

  // All numbers of a message, or of the messages of a list.
  void flat(const Message& message, const FieldDescriptor* field, bool inDictionary) {
    const Reflection* reflection = message.GetReflection();
    const char* separator = inDictionary ? ": " : "";
    out_ << (inDictionary ? "array<i64" : "[");
    const auto one = [&](const Message& from) {
      for (int f = 0; f < from.GetDescriptor()->field_count(); ++f) {
        const FieldDescriptor* number = from.GetDescriptor()->field(f);
        const int count = number->is_repeated() ? from.GetReflection()->FieldSize(from, number) : 1;
        for (int i = 0; i < count; ++i, separator = ", ") {
          out_ << separator;
          integer(from, number, number->is_repeated() ? i : -1);
        }
      }
    };
    if (!field->is_repeated()) {
      if (reflection->HasField(message, field)) one(reflection->GetMessage(message, field));
    } else {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i)
        one(reflection->GetRepeatedMessage(message, field, i));
    }
    out_ << (inDictionary ? '>' : ']');
  }

  uint64_t bits(const Message& message, const FieldDescriptor* field, int index) {
    const Reflection* r = message.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return static_cast<uint64_t>(
            int64_t{index < 0 ? r->GetInt32(message, field) : r->GetRepeatedInt32(message, field, index)});
      case FieldDescriptor::CPPTYPE_INT64:
        return static_cast<uint64_t>(index < 0 ? r->GetInt64(message, field)
                                               : r->GetRepeatedInt64(message, field, index));
      case FieldDescriptor::CPPTYPE_UINT32:
        return index < 0 ? r->GetUInt32(message, field) : r->GetRepeatedUInt32(message, field, index);
      default:
        return index < 0 ? r->GetUInt64(message, field) : r->GetRepeatedUInt64(message, field, index);
    }
  }

  // Numbers of 64 bits have a sign in the text.
  void integer(const Message& message, const FieldDescriptor* field, int index) {
    out_ << static_cast<int64_t>(bits(message, field, index));
  }

  // Prints a field of a message, or with an index an entry of its list.
  void value(const Element& element, const Message& message, const FieldDescriptor* field, int index,
             bool inDictionary) {
    const Reflection* r = message.GetReflection();
    if (element.form == Form::kBuffer) {
      out_ << names_.of(bits(message, field, index));
    } else if (element.form == Form::kHex) {
      quote(out_, hexText(bits(message, field, index)));
    } else if (element.form == Form::kText) {
      quote(out_, element.text->text(r->GetMessage(message, field)));
    } else if (!element.other.empty() && r->HasField(message, element.other.back())) {
      real(out_, r->GetDouble(message, element.other.back()));
      if (inDictionary) out_ << " : f64";
    } else {
      plain(element, message, field, index, inDictionary);
    }
  }

  void plain(const Element& element, const Message& message, const FieldDescriptor* field, int index,
             bool inDictionary) {
    const Reflection* r = message.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        quote(out_, index < 0 ? r->GetString(message, field) : r->GetRepeatedString(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        real(out_, r->GetDouble(message, field));
        if (inDictionary) out_ << " : f64";
        break;
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int number = index < 0 ? r->GetEnumValue(message, field) : r->GetRepeatedEnumValue(message, field, index);
        const std::string_view word = wordFor(element, number);
        if (element.form == Form::kQuoted)
          quote(out_, word);
        else if (inDictionary)
          out_ << "#plan<" << field->name() << ' ' << word << '>';
        else
          out_ << word;
        break;
      }
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        const Message& inner = index < 0 ? r->GetMessage(message, field) : r->GetRepeatedMessage(message, field, index);
        sequence(table().parts.at(field->message_type()), inner);
        break;
      }
      default:
        integer(message, field, index);
        if (inDictionary) out_ << " : i64";
    }
  }

  const reflected_plan::Plan& plan_;
  const Names names_;
  llvm::raw_ostream& out_;
};

}  // namespace
}  // namespace text

std::string textOf(const plan::Plan& plan) {
  reflected_plan::Plan reflected;
  if (!reflected.ParseFromString(plan.SerializeAsString()))
    return "module {\n  // a string of the plan is not UTF-8\n}\n";
  std::string text;
  llvm::raw_string_ostream out(text);
  text::Printer(reflected, out).print();
  return text;
}

}  // namespace sheaf::plan_ir
