#include "ir/Plan/TextLexer.h"

#include <llvm/ADT/StringExtras.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "runtime/base/Text.h"

namespace sheaf::plan_ir::text {
namespace {

constexpr size_t kShown = 40;  // bytes of a token in a message

bool isNameChar(char c) {
  return llvm::isAlnum(c) || c == '_' || c == '.' || c == '$';
}

bool isHexadecimal(std::string_view number) {
  return number.starts_with("0x");
}

}  // namespace

Token Lexer::wrong(size_t at, std::string message) {
  error_ = std::move(message);
  at_ = text_.size();
  return {Token::Kind::kWrong, {}, at};
}

Token Lexer::cut(Token::Kind kind, size_t from) {
  return {kind, text_.substr(from, at_ - from), from};
}

void Lexer::skipBlanks() {
  while (at_ < text_.size()) {
    if (text_.substr(at_, 2) == "//")
      at_ = std::min(text_.find('\n', at_), text_.size());
    else if (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')
      ++at_;
    else
      return;
  }
}

Token Lexer::string() {
  const size_t from = at_++;
  for (; at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\0'; ++at_) {
    if (text_[at_] == '"') {
      ++at_;
      return cut(Token::Kind::kString, from);
    }
    if (text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
  }
  if (at_ < text_.size() && text_[at_] == '\0') return wrong(at_, "the byte 0x0 in a string, expected \"\\00\"");
  return wrong(from, "the string does not end on its line, expected '\"'");
}

Token Lexer::number() {
  const size_t from = at_;
  const auto digits = [&](bool (*isDigit)(char)) {
    while (at_ < text_.size() && isDigit(text_[at_])) ++at_;
  };
  if (text_[at_] == '-') ++at_;
  if (text_.substr(at_, 2) == "0x") {
    at_ += 2;
    digits(llvm::isHexDigit);
    return cut(Token::Kind::kNumber, from);
  }
  digits(llvm::isDigit);
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits(llvm::isDigit);
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    const size_t sign = at_ + 1 < text_.size() && (text_[at_ + 1] == '+' || text_[at_ + 1] == '-') ? 2 : 1;
    if (at_ + sign < text_.size() && llvm::isDigit(text_[at_ + sign])) {
      at_ += sign;
      digits(llvm::isDigit);
    }
  }
  return cut(Token::Kind::kNumber, from);
}

Token Lexer::next() {
  skipBlanks();
  if (at_ == text_.size()) return {error_.empty() ? Token::Kind::kEnd : Token::Kind::kWrong, {}, at_};
  const size_t from = at_;
  const char c = text_[at_];
  if (c == '"') return string();
  if (llvm::isDigit(c) || (c == '-' && at_ + 1 < text_.size() && llvm::isDigit(text_[at_ + 1]))) return number();
  if (llvm::isAlpha(c) || c == '_') {
    while (at_ < text_.size() && isNameChar(text_[at_])) ++at_;
    return cut(Token::Kind::kWord, from);
  }
  if (c == '%') {
    ++at_;
    while (at_ < text_.size() && (isNameChar(text_[at_]) || text_[at_] == '-')) ++at_;
    if (at_ == from + 1)
      return wrong(from, "'%' stands alone, expected the name of a buffer: letters, digits, '_', '.', '$' and '-'");
    return {Token::Kind::kBuffer, text_.substr(from + 1, at_ - from - 1), from};
  }
  if (std::string_view("(){}[]<>:,=+*#").find(c) != std::string_view::npos) {
    ++at_;
    return cut(Token::Kind::kPunctuation, from);
  }
  if (from == 0 && text_.starts_with("\xEF\xBB\xBF"))
    return wrong(from, "the text begins with a byte order mark: save it as UTF-8 without one");
  if (llvm::isPrint(c)) return wrong(from, cat("got '", c, "', which a plan's text has only in strings and comments"));
  return wrong(from, cat("got the byte 0x", llvm::utohexstr(static_cast<unsigned char>(c)),
                         ", which a plan's text has only in comments"));
}

std::string Lexer::place(size_t at) const {
  const std::string_view before = text_.substr(0, at);
  const size_t line = before.rfind('\n');
  return cat(1 + std::count(before.begin(), before.end(), '\n'), ':',
             line == std::string_view::npos ? at + 1 : at - line);
}

std::string quoted(const Token& token) {
  if (token.kind == Token::Kind::kEnd) return "the end of the text";
  const std::string_view mark = token.kind == Token::Kind::kBuffer ? "%" : "";
  const bool whole = token.text.size() <= kShown;
  return cat("'", mark, token.text.substr(0, kShown), whole ? "'" : "...'");
}

bool contentOf(const Token& token, std::string& content, size_t& at) {
  const std::string_view text = token.text.substr(1, token.text.size() - 2);
  content.clear();
  content.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      content += text[i];
      continue;
    }
    const std::string_view next = text.substr(i + 1, 2);
    if (next[0] == '"' || next[0] == '\\') {
      content += next[0];
    } else if (next.size() == 2 && llvm::isHexDigit(next[0]) && llvm::isHexDigit(next[1])) {
      content += static_cast<char>(llvm::hexFromNibbles(next[0], next[1]));
      ++i;
    } else if (next[0] == 'n' || next[0] == 't') {
      content += next[0] == 'n' ? '\n' : '\t';
    } else {
      at = token.at + 1 + i;
      return false;
    }
    ++i;
  }
  return true;
}

bool wholeOf(const Token& token, Whole& value) {
  if (token.kind != Token::Kind::kNumber) return false;
  std::string_view digits = token.text;
  value.negative = digits.starts_with('-');
  if (value.negative) digits.remove_prefix(1);
  const int base = isHexadecimal(digits) ? 16 : 10;
  if (base == 16) digits.remove_prefix(2);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value.size, base);
  return error == std::errc() && end == digits.data() + digits.size();
}

bool realOf(const Token& token, double& value) {
  if (token.kind != Token::Kind::kNumber) return false;
  if (isHexadecimal(token.text)) {
    Whole bits;
    if (!wholeOf(token, bits)) return false;
    value = std::bit_cast<double>(bits.size);
    return true;
  }
  const char* end = token.text.data() + token.text.size();
  const auto [last, error] = std::from_chars(token.text.data(), end, value);
  return error == std::errc() && last == end;
}

}  // namespace sheaf::plan_ir::text
