// JSON values, a strict parser (RFC 8259, no duplicate keys, valid UTF-8) and a writer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;

// Members keep their order.
class Object {
 public:
  Object() = default;
  Object(std::initializer_list<Member> members);
  void set(std::string name, Value value);  // appends; names are not compared
  const Value* find(std::string_view name) const;
  const std::vector<Member>& members() const { return members_; }

 private:
  std::vector<Member> members_;
};

class Value {
 public:
  Value() : value_(nullptr) {}
  Value(bool value) : value_(value) {}
  Value(int64_t value) : value_(value) {}
  Value(int value) : value_(int64_t{value}) {}
  Value(uint64_t value) : value_(static_cast<int64_t>(value)) {}
  Value(uint32_t value) : value_(int64_t{value}) {}
  Value(double value) : value_(value) {}
  Value(const char* value) : value_(std::string(value)) {}
  Value(std::string value) : value_(std::move(value)) {}
  Value(Array value) : value_(std::move(value)) {}
  Value(Object value) : value_(std::move(value)) {}

  // A pointer to the value if it is of that type, else null.
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  bool isNull() const { return std::holds_alternative<std::nullptr_t>(value_); }
  // Integer or real.
  bool number(double& value) const;

 private:
  friend std::string write(const Value& value, int indent);
  friend void writeTo(std::string& out, const Value& value, int indent, int depth);
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_;
};

inline Object::Object(std::initializer_list<Member> members) : members_(members) {}
inline void Object::set(std::string name, Value value) {
  members_.emplace_back(std::move(name), std::move(value));
}

// Numbers with a fraction, an exponent or more than 64 bits become doubles. Errors name the byte.
Expected<Value> parse(std::string_view text);

// One line if indent is 0. Doubles are written so that they read back the same; infinities and NaN become null.
std::string write(const Value& value, int indent = 0);

}  // namespace sheaf::json
