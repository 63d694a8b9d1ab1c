// The formats of a plan's text: what a statement consists of, in the manner of MLIR's assemblyFormat. The printer and
// the parser both interpret a compiled format by protobuf's reflection.
//
//   word ( ) : , = + *   stands in the text as it is; `\[` and `\]` are brackets
//   "word"               the same, in quotes
//   $field               the value of a field; $memory.peak_bytes: of a field of a field
//   $entries.offset      where entries are repeated messages: a list of the field in each of them
//   $field:FORM          in another form than that of its type, see Form
//   $one|other           of a oneof of a whole number and a real number: whichever is set
//   %field               the name of the buffer whose index the field has
//   [ ... ]              left out where its first field has its default, or the one before `^`; a field of type bool
//                        prints nothing itself, and [word] stands for [word $word]
//   {a, b = $field}      a dictionary, sorted by key: `a` stands for `a = $a`. [a, b] is left out where `a` has its
//                        default, and `a!` must be given
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::plan_ir::text {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The fields that lead from a message to a value. All but the last are messages.
using Path = std::vector<const FieldDescriptor*>;

// Selects how a value is printed.
enum class Form {
  kPlain,   // as its type is
  kBuffer,  // an index as the name of a buffer
  kHex,     // 64 bits as sixteen digits in quotes
  kSigned,  // 64 bits without a sign as a number with one
  kQuoted,  // the word of an enumerator in quotes
  kFlat,    // all numbers of a message, or of all messages of a list, as one list
  kText,    // a message as a string, or some of its fields as a key
};

// A form by words: of an enumeration, by value.
struct Spelling {
  std::string_view name;
  std::span<const std::string_view> words;
};

// A form of a message as a string.
struct TextForm {
  std::string_view name;
  std::vector<std::string_view> fields;  // that it covers; none: all
  std::string (*text)(const Message& message);
  Status (*set)(std::string_view text, Message& message);
};

struct Element {
  enum class Kind { kLiteral, kField, kGroup, kDictionary };
  Kind kind = Kind::kLiteral;
  bool space = false;   // true if a space stands before it
  std::string literal;  // the text of a literal, or the key of an entry of a dictionary
  Path path;            // the field
  Path other;           // the second one, if the element is one of two fields
  Form form = Form::kPlain;
  std::vector<std::string> words;  // by value from 0 on, if the field has enumerators; empty if a value has no word
  const TextForm* text = nullptr;
  size_t count = 0;               // the list must have so many entries; 0: any number
  std::vector<Element> children;  // the content of a group or a dictionary
  Path anchor;                    // a group or an optional entry is left out where this has its default
  std::string anchorKey;          // the key of that field
  bool required = false;          // true if an entry must be given
};

// Compiles a format for a message. Formats are constants: a wrong one ends the process.
std::vector<Element> compileFormat(std::string_view format, const Descriptor& message);

// The path of a field, as in "memory.peak_bytes".
Path pathOf(std::string_view names, const Descriptor& message);

// Calls visit(element) for an element and all below it.
template <typename Visit>
void forEachElement(const std::vector<Element>& elements, Visit visit) {
  for (const Element& element : elements) {
    visit(element);
    forEachElement(element.children, visit);
  }
}

// True if the value is not its default; of a list, if it has entries.
bool isSet(const Message& message, const Path& path);

// True for the characters of a format's words.
bool isWordChar(char c);

}  // namespace sheaf::plan_ir::text
