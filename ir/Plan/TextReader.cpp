#include "ir/Plan/TextReader.h"

#include <llvm/ADT/StringRef.h>
#include <llvm/Support/JSON.h>

#include <algorithm>
#include <limits>

#include "runtime/base/Text.h"

namespace sheaf::plan_ir::text {
namespace {

using google::protobuf::Reflection;
using Kind = Token::Kind;

// The whole numbers that a field takes.
struct Range {
  uint64_t below = 0, most = std::numeric_limits<int64_t>::max();  // from -below to most
};

Range rangeOf(const FieldDescriptor* field, bool isHash) {
  Range range;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      range.most = std::numeric_limits<int32_t>::max();
      range.below = range.most + 1;
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      range.most = std::numeric_limits<uint32_t>::max();
      break;
    default:
      if (isHash || field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) range.below = range.most + 1;
      if (isHash) range.most = std::numeric_limits<uint64_t>::max();
  }
  return range;
}

void store(Message& message, const FieldDescriptor* field, uint64_t bits) {
  const Reflection* r = message.GetReflection();
  const bool isList = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      isList ? r->AddInt32(&message, field, static_cast<int32_t>(bits))
             : r->SetInt32(&message, field, static_cast<int32_t>(bits));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      isList ? r->AddInt64(&message, field, static_cast<int64_t>(bits))
             : r->SetInt64(&message, field, static_cast<int64_t>(bits));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      isList ? r->AddUInt32(&message, field, static_cast<uint32_t>(bits))
             : r->SetUInt32(&message, field, static_cast<uint32_t>(bits));
      break;
    default:
      isList ? r->AddUInt64(&message, field, bits) : r->SetUInt64(&message, field, bits);
  }
}

}  // namespace

void TextReader::advance() {
  token_ = lexer_.next();
  alternatives_.clear();
}

bool TextReader::takes(std::string_view text) {
  if (!token_.is(text)) return false;
  advance();
  return true;
}

bool TextReader::needs(std::string_view text) {
  return takes(text) || unexpected(cat("'", text, "'"));
}

bool TextReader::fail(size_t at, const std::string& message) {
  error_ = cat(file_, ':', lexer_.place(at), ": ", message);
  return false;
}

bool TextReader::unexpected(std::string_view what) {
  if (token_.kind == Kind::kWrong) return fail(token_.at, lexer_.error());
  std::string all;
  for (std::string_view one : alternatives_) all += cat("'", one, "', ");
  if (!all.empty()) all.replace(all.size() - 2, 2, " or ");
  return fail(token_.at, cat("got ", quoted(token_), ", expected ", all, what));
}

bool TextReader::buffer(Message& message, const FieldDescriptor* field) {
  if (token_.kind != Kind::kBuffer) return unexpected("the name of a buffer, such as %x");
  const auto found = buffers_.find(token_.text);
  if (found == buffers_.end())
    return fail(token_.at, cat("there is no buffer ", quoted(token_), " above, expected the name of one"));
  store(message, field, found->second);
  advance();
  return true;
}

bool TextReader::content(std::string& text) {
  if (token_.kind != Kind::kString) return unexpected("a string");
  size_t at = 0;
  if (!contentOf(token_, text, at))
    return fail(at, R"(an unknown escape, expected \\, \", \n, \t or two hexadecimal digits)");
  advance();
  return true;
}

bool TextReader::string(Message& message, const FieldDescriptor* field) {
  const Token token = token_;
  std::string text;
  if (!content(text)) return false;
  if (field->type() == FieldDescriptor::TYPE_STRING && !llvm::json::isUTF8(text))
    return fail(token.at, "the string is not UTF-8");
  const Reflection* reflection = message.GetReflection();
  field->is_repeated() ? reflection->AddString(&message, field, std::move(text))
                       : reflection->SetString(&message, field, std::move(text));
  return true;
}

bool TextReader::hexadecimal(Message& message, const FieldDescriptor* field) {
  const Token token = token_;
  std::string text;
  if (!content(text)) return false;
  uint64_t bits = 0;
  if (llvm::StringRef(text).getAsInteger(16, bits))
    return fail(token.at, cat(quoted(token), " is not a hexadecimal number of 64 bits"));
  store(message, field, bits);
  return true;
}

bool TextReader::word(const Element& element, Message& message, const FieldDescriptor* field, bool inDictionary) {
  const Token begin = token_;
  if (element.form == Form::kQuoted) {
    std::string text;
    return content(text) && enumerator(element, message, text, begin);
  }
  if (inDictionary && (!needs("#") || !needs("plan") || !needs("<") || !needs(field->name()))) return false;
  const Token token = token_;
  if (token.kind != Kind::kWord) return unexpected("a word");
  advance();
  return enumerator(element, message, token.text, token) && (!inDictionary || needs(">"));
}

bool TextReader::enumerator(const Element& element, Message& message, std::string_view word, const Token& token) {
  const auto found = word.empty() ? element.words.end() : std::find(element.words.begin(), element.words.end(), word);
  if (found == element.words.end()) {
    std::vector<std::string> known = element.words;
    std::erase(known, "");
    return fail(token.at, cat(quoted(token), " is not one of ", listText(known, SIZE_MAX)));
  }
  const auto value = static_cast<int>(found - element.words.begin());
  const FieldDescriptor* field = element.path.back();
  const Reflection* reflection = message.GetReflection();
  field->is_repeated() ? reflection->AddEnumValue(&message, field, value)
                       : reflection->SetEnumValue(&message, field, value);
  return true;
}

bool TextReader::keyed(const Element& element, Message& message, const std::string& key, const Token& token) {
  const FieldDescriptor* field = element.path.back();
  if (element.text) {
    const Status status = element.text->set(key, message);
    return status.ok() || fail(token.at, status.message());
  }
  if (field->enum_type()) return enumerator(element, message, key, token);
  message.GetReflection()->SetString(&message, field, key);
  return llvm::json::isUTF8(key) || fail(token.at, "the string is not UTF-8");
}

bool TextReader::number(const Element& element, Message& message, const FieldDescriptor* field, bool inDictionary) {
  const Token token = token_;
  bool real = field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
  if (token.kind != Kind::kNumber) return unexpected(real ? "a number" : "a whole number");
  advance();
  const bool isTyped = inDictionary && takes(":");
  if (!element.other.empty() && (token.text.find('.') != std::string_view::npos || (isTyped && token_.is("f64")))) {
    real = true;
    field = element.other.back();
  }
  if (isTyped && !needs(real ? "f64" : "i64")) return false;
  if (!real) return integer(message, field, token, element.form == Form::kSigned);
  double value = 0;
  if (!realOf(token, value)) return fail(token.at, cat(quoted(token), " is not a number of 64 bits"));
  message.GetReflection()->SetDouble(&message, field, value);
  return true;
}

bool TextReader::integer(Message& message, const FieldDescriptor* field, const Token& token, bool isHash) {
  const Range range = rangeOf(field, isHash);
  Whole whole;
  if (!wholeOf(token, whole) || whole.size > (whole.negative ? range.below : range.most))
    return fail(token.at, cat(quoted(token), " is not a whole number from ", range.below ? "-" : "", range.below,
                              " to ", range.most));
  store(message, field, whole.negative ? 0 - whole.size : whole.size);
  return true;
}

}  // namespace sheaf::plan_ir::text
