#include "ir/Plan/TextFormat.h"

#include <llvm/Support/ErrorHandling.h>

#include <algorithm>
#include <cctype>

#include "ir/Plan/TextTable.h"
#include "runtime/base/Text.h"

namespace sheaf::plan_ir::text {
namespace {

class Compiler {
 public:
  Compiler(std::string_view format, const Descriptor& message) : format_(format), message_(message) {}

  // Reads up to the end of the format, or to the bracket that ends a group.
  std::vector<Element> sequence() {
    std::vector<Element> elements;
    for (bool space = blanks(); at_ < format_.size() && format_[at_] != ']'; space = blanks()) {
      elements.push_back(one());
      elements.back().space = space;
    }
    return elements;
  }

 private:
  [[noreturn]] void wrong(std::string_view what) const {
    llvm::report_fatal_error(cat("format '", format_, "', character ", at_, ": ", what).c_str());
  }

  // Skips blanks. Returns true if there are any.
  bool blanks() {
    const size_t from = at_;
    while (at_ < format_.size() && format_[at_] == ' ') ++at_;
    return at_ > from;
  }

  bool takes(char c) {
    if (at_ >= format_.size() || format_[at_] != c) return false;
    ++at_;
    return true;
  }

  void needs(char c) {
    if (!takes(c)) wrong(cat("expected ", c));
  }

  std::string_view word() {
    const size_t from = at_;
    while (at_ < format_.size() && isWordChar(format_[at_])) ++at_;
    if (at_ == from) wrong("expected a word");
    return format_.substr(from, at_ - from);
  }

  Element one() {
    Element element;
    if (takes('$')) return field();
    if (takes('%')) {
      element.kind = Element::Kind::kField;
      setPath(element, word());
      element.form = Form::kBuffer;
    } else if (takes('[')) {
      return group();
    } else if (takes('{')) {
      return dictionary();
    } else if (takes('"')) {
      element.literal = cat('"', word(), '"');
      needs('"');
    } else if (isWordChar(format_[at_])) {
      element.literal = word();
    } else {
      takes('\\');
      element.literal = format_[at_++];
    }
    return element;
  }

  Element field() {
    Element element;
    element.kind = Element::Kind::kField;
    setPath(element, word());
    if (takes('|')) element.other = pathOf(word(), message_);
    if (takes(':')) form(element);
    return element;
  }

  void setPath(Element& element, std::string_view names) {
    element.path = pathOf(names, message_);
    if (const auto* enumeration = element.path.back()->enum_type())
      for (int value = 0; value < enumeration->value_count(); ++value)
        element.words.push_back(wordOf(*enumeration, value));
  }

  void form(Element& element) {
    const std::string_view name = word();
    if (std::isdigit(static_cast<unsigned char>(name[0]))) {
      element.count = static_cast<size_t>(name[0] - '0');
      return;
    }
    if (const Spelling* spelling = findSpelling(name)) {
      element.words.assign(spelling->words.begin(), spelling->words.end());
    } else if ((element.text = findTextForm(name))) {
      element.form = Form::kText;
    } else {
      element.form = name == "hex"      ? Form::kHex
                     : name == "signed" ? Form::kSigned
                     : name == "quoted" ? Form::kQuoted
                     : name == "flat"   ? Form::kFlat
                                        : Form::kPlain;
      if (element.form == Form::kPlain) wrong("there is no such form");
    }
  }

  // Between brackets. `^` follows the field that decides; without it that is the first.
  Element group() {
    Element element;
    element.kind = Element::Kind::kGroup;
    for (bool space = blanks(); !takes(']'); space = blanks()) {
      if (at_ == format_.size()) wrong("expected ]");
      element.children.push_back(one());
      Element& last = element.children.back();
      last.space = space;
      const bool decides = takes('^');
      if (last.kind == Element::Kind::kField && (decides || element.anchor.empty())) element.anchor = last.path;
    }
    if (element.anchor.empty() && element.children[0].kind == Element::Kind::kLiteral && element.children.size() == 1) {
      Element flag;
      flag.kind = Element::Kind::kField;
      flag.path = element.anchor = pathOf(element.children[0].literal, message_);
      element.children.push_back(std::move(flag));
    }
    return element;
  }

  Element dictionary() {
    Element element;
    element.kind = Element::Kind::kDictionary;
    do {
      blanks();
      if (takes('[')) {
        const size_t first = element.children.size();
        do {
          blanks();
          element.children.push_back(entry());
          Element& last = element.children.back();
          last.anchor = element.children[first].path;
          last.anchorKey = element.children[first].literal;
        } while (takes(','));
        needs(']');
      } else {
        element.children.push_back(entry());
      }
    } while (takes(','));
    needs('}');
    std::sort(element.children.begin(), element.children.end(),
              [](const Element& a, const Element& b) { return a.literal < b.literal; });
    return element;
  }

  // `key`, `key:FORM`, `key!` or `key = $field`.
  Element entry() {
    Element element;
    element.kind = Element::Kind::kField;
    const std::string_view key = word();
    const bool required = takes('!');
    if (format_.substr(at_, 3) == " = ") {
      at_ += 3;
      needs('$');
      element = field();
    } else {
      setPath(element, key);
      if (takes(':')) form(element);
    }
    element.literal = key;
    element.required = required;
    return element;
  }

  const std::string_view format_;
  const Descriptor& message_;
  size_t at_ = 0;
};

}  // namespace

bool isWordChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

std::vector<Element> compileFormat(std::string_view format, const Descriptor& message) {
  return Compiler(format, message).sequence();
}

Path pathOf(std::string_view names, const Descriptor& message) {
  Path path;
  const Descriptor* at = &message;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find('.'));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const FieldDescriptor* field = at ? at->FindFieldByName(std::string(name)) : nullptr;
    if (!field) llvm::report_fatal_error(cat(message.name(), " has no field ", name).c_str());
    path.push_back(field);
    at = field->message_type();
  }
  return path;
}

bool isSet(const Message& message, const Path& path) {
  const Message* at = &message;
  for (const FieldDescriptor* field : path) {
    const auto* reflection = at->GetReflection();
    if (field->is_repeated()) return reflection->FieldSize(*at, field) > 0;
    if (!reflection->HasField(*at, field)) return false;
    if (field->message_type()) at = &reflection->GetMessage(*at, field);
  }
  return true;
}

}  // namespace sheaf::plan_ir::text
