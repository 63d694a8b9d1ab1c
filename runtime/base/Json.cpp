#include "runtime/base/Json.h"

#include <charconv>
#include <cmath>
#include <set>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"

namespace sheaf::json {
namespace {

constexpr int kMaxDepth = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Expected<Value> run() {
    Value value;
    if (!parseValue(value, 0)) return failure();
    skipSpace();
    if (at_ != text_.size()) {
      fail("text after the end of the value");
      return failure();
    }
    return value;
  }

 private:
  Status failure() const { return Status::error(cat("JSON: ", error_, " at byte ", at_)); }
  bool fail(const char* why) {
    if (error_.empty()) error_ = why;
    return false;
  }
  void skipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view name) {
    if (text_.substr(at_, name.size()) != name) return fail("expected a value");
    at_ += name.size();
    return true;
  }

  bool parseValue(Value& value, int depth) {
    if (depth > kMaxDepth) return fail("nested too deeply");
    skipSpace();
    if (at_ >= text_.size()) return fail("unexpected end");
    switch (text_[at_]) {
      case '{':
        return parseObject(value, depth);
      case '[':
        return parseArray(value, depth);
      case '"': {
        std::string string;
        if (!parseString(string)) return false;
        value = Value(std::move(string));
        return true;
      }
      case 't':
        value = Value(true);
        return word("true");
      case 'f':
        value = Value(false);
        return word("false");
      case 'n':
        value = Value();
        return word("null");
      default:
        return parseNumber(value);
    }
  }

  bool parseObject(Value& value, int depth) {
    Object object;
    std::set<std::string> names;
    ++at_;
    skipSpace();
    if (!accept('}')) {
      do {
        skipSpace();
        std::string name;
        if (at_ >= text_.size() || text_[at_] != '"') return fail("expected a member's name");
        if (!parseString(name)) return false;
        if (!names.insert(name).second) return fail("a duplicate member name");
        skipSpace();
        if (!accept(':')) return fail("expected ':'");
        Value member;
        if (!parseValue(member, depth + 1)) return false;
        object.set(std::move(name), std::move(member));
        skipSpace();
      } while (accept(','));
      if (!accept('}')) return fail("expected ',' or '}'");
    }
    value = Value(std::move(object));
    return true;
  }

  bool parseArray(Value& value, int depth) {
    Array array;
    ++at_;
    skipSpace();
    if (!accept(']')) {
      do {
        Value element;
        if (!parseValue(element, depth + 1)) return false;
        array.push_back(std::move(element));
        skipSpace();
      } while (accept(','));
      if (!accept(']')) return fail("expected ',' or ']'");
    }
    value = Value(std::move(array));
    return true;
  }

  bool digits() {
    size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > begin;
  }

  bool parseNumber(Value& value) {
    size_t begin = at_;
    accept('-');
    bool leadingZero = at_ < text_.size() && text_[at_] == '0';
    size_t first = at_;
    if (!digits()) return fail("expected a value");
    if (leadingZero && at_ > first + 1) return fail("a number starts with 0");
    bool real = false;
    if (accept('.')) {
      real = true;
      if (!digits()) return fail("expected digits after '.'");
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      real = true;
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (!digits()) return fail("expected digits in the exponent");
    }
    std::string_view number = text_.substr(begin, at_ - begin);
    if (int64_t integer; !real && parseInteger(number, integer)) {
      value = Value(integer);
      return true;
    }
    double parsed = 0;
    if (!parseReal(number, parsed)) return fail("a number out of range");
    value = Value(parsed);
    return true;
  }

  bool hex4(uint32_t& unit) {
    if (text_.size() - at_ < 4) return fail("an incomplete \\u escape");
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, unit, 16);
    if (error != std::errc() || end != text_.data() + at_ + 4) return fail("an invalid \\u escape");
    at_ += 4;
    return true;
  }

  static void appendUtf8(std::string& out, uint32_t code) {
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xc0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      out += static_cast<char>(0xe0 | code >> 12);
      out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      out += static_cast<char>(0xf0 | code >> 18);
      out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
      out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (code & 0x3f));
    }
  }

  // Copies one well-formed multi-byte UTF-8 sequence (Unicode 15, table 3-7).
  bool copyUtf8(std::string& out) {
    auto byte = [&](size_t i) { return i < text_.size() ? static_cast<unsigned char>(text_[i]) : 0u; };
    unsigned first = byte(at_), second = byte(at_ + 1);
    int length = first >= 0xc2 && first <= 0xdf   ? 2
                 : (first & 0xf0) == 0xe0         ? 3
                 : first >= 0xf0 && first <= 0xf4 ? 4
                                                  : 0;
    unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (!length || second < low || second > high) return fail("invalid UTF-8");
    for (int i = 2; i < length; ++i)
      if ((byte(at_ + i) & 0xc0) != 0x80) return fail("invalid UTF-8");
    out.append(text_.substr(at_, length));
    at_ += length;
    return true;
  }

  bool parseEscape(std::string& out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return fail("unexpected end");
    char c = text_[at_++];
    if (size_t index = kFrom.find(c); index != std::string_view::npos) {
      out += kTo[index];
      return true;
    }
    if (c != 'u') return fail("an unknown escape");
    uint32_t unit = 0;
    if (!hex4(unit)) return false;
    if (unit >= 0xd800 && unit < 0xe000) {
      uint32_t low = 0;
      if (unit >= 0xdc00 || !accept('\\') || !accept('u')) return fail("an unpaired surrogate");
      if (!hex4(low)) return false;
      if (low < 0xdc00 || low >= 0xe000) return fail("an unpaired surrogate");
      unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    appendUtf8(out, unit);
    return true;
  }

  bool parseString(std::string& out) {
    ++at_;
    while (at_ < text_.size()) {
      unsigned char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c < 0x20) return fail("a control character in a string");
      if (c == '\\') {
        ++at_;
        if (!parseEscape(out)) return false;
      } else if (c < 0x80) {
        out += static_cast<char>(c);
        ++at_;
      } else if (!copyUtf8(out)) {
        return false;
      }
    }
    return fail("an unterminated string");
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string error_;
};

void writeString(std::string& out, const std::string& string) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (size_t at = 0; at < string.size();) {
    const Character character = characterAt(string, at);
    if (character.code == '"' || character.code == '\\') {
      out += '\\';
      out += static_cast<char>(character.code);
    } else if (character.code == '\n') {
      out += "\\n";
    } else if (character.controls()) {
      out += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) out += kHex[character.code >> shift & 15];
    } else {
      out.append(string, at, character.bytes);
    }
    at += character.bytes;
  }
  out += '"';
}

void newLine(std::string& out, int indent, int depth) {
  if (!indent) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * depth, ' ');
}

}  // namespace

const Value* Object::find(std::string_view name) const {
  for (const Member& member : members_)
    if (member.first == name) return &member.second;
  return nullptr;
}

bool Value::number(double& value) const {
  if (const int64_t* integer = std::get_if<int64_t>(&value_)) {
    value = static_cast<double>(*integer);
    return true;
  }
  if (const double* real = std::get_if<double>(&value_)) {
    value = *real;
    return true;
  }
  return false;
}

Expected<Value> parse(std::string_view text) {
  return Parser(text).run();
}

void writeTo(std::string& out, const Value& value, int indent, int depth) {
  if (value.isNull()) {
    out += "null";
  } else if (const bool* boolean = value.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (const int64_t* integer = value.integer()) {
    out += std::to_string(*integer);
  } else if (const double* real = std::get_if<double>(&value.value_)) {
    char text[32];
    auto [end, error] = std::to_chars(text, text + sizeof text, *real);
    std::string_view number(text, static_cast<size_t>(end - text));
    if (!std::isfinite(*real))
      out += "null";
    else
      out.append(number).append(number.find_first_of(".e") == std::string_view::npos ? ".0" : "");
  } else if (const std::string* string = value.string()) {
    writeString(out, *string);
  } else if (const Array* array = value.array()) {
    out += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i) out += indent ? "," : ", ";
      newLine(out, indent, depth + 1);
      writeTo(out, (*array)[i], indent, depth + 1);
    }
    if (!array->empty()) newLine(out, indent, depth);
    out += ']';
  } else if (const Object* object = value.object()) {
    out += '{';
    bool first = true;
    for (const Member& member : object->members()) {
      if (!first) out += indent ? "," : ", ";
      first = false;
      newLine(out, indent, depth + 1);
      writeString(out, member.first);
      out += ": ";
      writeTo(out, member.second, indent, depth + 1);
    }
    if (!first) newLine(out, indent, depth);
    out += '}';
  }
}

std::string write(const Value& value, int indent) {
  std::string out;
  writeTo(out, value, indent, 0);
  return out;
}

}  // namespace sheaf::json
