// The values of a plan's text: tokens, one ahead, into fields.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/Plan/TextFormat.h"
#include "ir/Plan/TextLexer.h"
#include "runtime/base/Status.h"

namespace sheaf::plan_ir::text {

// Every function that returns false has set the error. Those with a field set it, or add an entry to it if it is a
// list.
class TextReader {
 public:
  TextReader(std::string_view text, std::string_view file) : lexer_(text), file_(file), token_(lexer_.next()) {}

  Status error() const { return Status::error(error_); }

 protected:
  const Token& current() const { return token_; }
  void advance();
  bool takes(std::string_view text);
  bool needs(std::string_view text);
  // Says that this could stand before the next token; a message that it is unexpected lists it.
  void mayHaveBeen(std::string_view word) { alternatives_.push_back(word); }

  bool fail(size_t at, const std::string& message);
  bool unexpected(std::string_view what);

  // The name of a buffer as its index.
  bool buffer(Message& message, const FieldDescriptor* field);
  bool string(Message& message, const FieldDescriptor* field);
  bool hexadecimal(Message& message, const FieldDescriptor* field);
  // An enumerator as a word; in a dictionary `#plan<FIELD WORD>`, or where its form says so a string.
  bool word(const Element& element, Message& message, const FieldDescriptor* field, bool inDictionary);
  // A number; in a dictionary its type may follow.
  bool number(const Element& element, Message& message, const FieldDescriptor* field, bool inDictionary);

  // A string's content.
  bool content(std::string& text);
  // A key of a dictionary: an enumerator, a string, or what a form makes of it.
  bool keyed(const Element& element, Message& message, const std::string& key, const Token& token);
  // A number that has been read. A hash has 64 bits, with or without a sign.
  bool integer(Message& message, const FieldDescriptor* field, const Token& token, bool isHash);

  // The buffers' indices, by name.
  std::unordered_map<std::string_view, uint64_t> buffers_;

 private:
  bool enumerator(const Element& element, Message& message, std::string_view word, const Token& token);

  Lexer lexer_;
  const std::string_view file_;
  Token token_;
  std::vector<std::string_view> alternatives_;
  std::string error_;
};

}  // namespace sheaf::plan_ir::text
