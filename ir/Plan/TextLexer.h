// The words of a plan's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace sheaf::plan_ir::text {

struct Token {
  enum class Kind { kEnd, kWord, kBuffer, kNumber, kString, kPunctuation, kWrong };
  Kind kind = Kind::kEnd;
  std::string_view text;  // as it stands; of a string with its quotes, of a buffer without `%`
  size_t at = 0;          // its first byte

  bool is(std::string_view other) const { return kind != Kind::kBuffer && text == other; }
};

// Cuts a text into tokens. Blanks and comments, which begin with `//` and end with the line, stand between them.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  // Returns the next token. One of kind kWrong ends the text: error() says why.
  Token next();
  const std::string& error() const { return error_; }

  // "LINE:COLUMN" of a byte, both from 1 on; a column is a byte of its line.
  std::string place(size_t at) const;

 private:
  void skipBlanks();
  Token string();
  Token number();
  Token wrong(size_t at, std::string message);
  Token cut(Token::Kind kind, size_t from);

  const std::string_view text_;
  size_t at_ = 0;
  std::string error_;
};

// The token as a message quotes it; a long one is cut off.
std::string quoted(const Token& token);

// The content of a string's token, whose escapes are `\"`, `\\`, `\n`, `\t` and two hexadecimal digits after `\`.
// False if there is another one: `at` is then its first byte.
bool contentOf(const Token& token, std::string& content, size_t& at);

// A whole number: a sign and an absolute value. False if the token is none, or has more than 64 bits.
struct Whole {
  bool negative = false;
  uint64_t size = 0;
};
bool wholeOf(const Token& token, Whole& value);
// A real number. Hexadecimal digits are the bits of one. False if the token is none, or too large.
bool realOf(const Token& token, double& value);

}  // namespace sheaf::plan_ir::text
