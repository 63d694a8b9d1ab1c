// How library calls are described. Each call of calls/ is a struct with a table, Schema<Call>, whose rows are
// the call's attributes and operands. Reading calls from a plan, writing them, checking them and their reference page
// follow from the tables (Library.h); a consumer takes the struct.
//
// On the wire an attribute is a name and a number: flags and enumerations are integers. An attribute that is not
// required is written only if it differs from its default, the value in a new struct.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Saturating.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {

// The table of a call:
//   kName      the function's name in a plan
//   kText      what it computes
//   kFields    a tuple of Field and List
//   kOperands  an array of OperandRow, in the plan's order; scratch, if there is any, comes after them
//   kRandom    only of a call whose results are random numbers, which depend on the step and the seed (isRandom)
// The struct may have these functions besides:
//   Status check() const                 what its attributes must be together; values are within their limits
//   uint64_t scratchPerThread() const    bytes that a thread of a CPU needs; 0 without it
//   uint64_t deviceScratch() const       bytes that a GPU needs; 0 without it
//   uint64_t packingBytes() const        bytes that a thread's matrix products may make oneDNN allocate, at most
template <typename Call>
struct Schema;

// --- limits of attributes; bounds are inclusive ---

// Limits of sizes and strides that the verifier accepts; the product of two sizes still fits into 64 bits.
inline constexpr int64_t kMaxSize = int64_t{1} << 31, kMaxStride = int64_t{1} << 40;

struct Range {
  int64_t low, high;
};
inline constexpr Range kSizes{1, kMaxSize}, kStrides{0, kMaxStride};

// Up to kMaxSize, and at least what other attributes say.
template <typename Owner>
struct AtLeast {
  int64_t (*low)(const Owner&);
  std::string_view text;  // of the lower bound
};

struct RealRange {
  double low, high;
};

struct Flag {};

// Some values of an enumeration or of an integer.
template <typename Value>
struct Choice {
  Value value;
  std::string_view name;
};
template <typename Value>
struct Choices {
  std::span<const Choice<Value>> all;
};

// The element types whose rows satisfy `Among`.
template <auto Among>
inline constexpr auto kTypeChoices = [] {
  std::array<Choice<ElementType>, kTypesAmong<Among>.size()> choices{};
  for (size_t i = 0; i < choices.size(); ++i) choices[i] = {kTypesAmong<Among>[i], factsOf(kTypesAmong<Among>[i]).name};
  return choices;
}();
// The types of operands whose type is the call's. All arithmetic is in f32; a result of 16 bits is rounded once.
inline constexpr const auto& kFloatTypes = kTypeChoices<&ElementFacts::products>;
// The types of calls that compute in the type of their operands.
inline constexpr const auto& kArithmeticTypes = kTypeChoices<&ElementFacts::arithmetic>;

// --- attributes ---

template <typename Owner, typename Value, typename Limits>
struct Field {
  std::string_view name;
  Value Owner::*member;
  Limits limits;
  bool required;
  std::string_view text;
};

template <typename Owner>
constexpr Field<Owner, int64_t, Range> required(std::string_view name, int64_t Owner::*member, Range range,
                                                std::string_view text) {
  return {name, member, range, true, text};
}
template <typename Owner>
constexpr Field<Owner, int64_t, AtLeast<Owner>> required(std::string_view name, int64_t Owner::*member,
                                                         std::type_identity_t<AtLeast<Owner>> limits,
                                                         std::string_view text) {
  return {name, member, limits, true, text};
}
template <typename Owner>
constexpr Field<Owner, double, RealRange> required(std::string_view name, double Owner::*member, RealRange range,
                                                   std::string_view text) {
  return {name, member, range, true, text};
}
template <typename Owner, size_t N>
constexpr Field<Owner, int64_t, Choices<int64_t>> required(std::string_view name, int64_t Owner::*member,
                                                           const Choice<int64_t> (&choices)[N], std::string_view text) {
  return {name, member, {choices}, true, text};
}
template <typename Owner>
constexpr Field<Owner, int64_t, Range> defaulted(std::string_view name, int64_t Owner::*member, Range range,
                                                 std::string_view text) {
  return {name, member, range, false, text};
}
template <typename Owner, typename Value, size_t N>
constexpr Field<Owner, Value, Choices<Value>> defaulted(std::string_view name, Value Owner::*member,
                                                        const Choice<Value> (&choices)[N], std::string_view text) {
  return {name, member, {choices}, false, text};
}
template <typename Owner, size_t N>
constexpr Field<Owner, ElementType, Choices<ElementType>> defaulted(std::string_view name, ElementType Owner::*member,
                                                                    const std::array<Choice<ElementType>, N>& choices,
                                                                    std::string_view text) {
  return {name, member, {choices}, false, text};
}
template <typename Owner>
constexpr Field<Owner, bool, Flag> flag(std::string_view name, bool Owner::*member, std::string_view text) {
  return {name, member, {}, false, text};
}

// A list of structs. The attribute `name` is its length; of element i, field f is the attribute "f" followed by "i".
template <typename Owner, typename Element, typename... Fields>
struct List {
  std::string_view name;
  std::vector<Element> Owner::*member;
  int64_t most;
  std::tuple<Fields...> fields;
  std::string_view text;
};

// Calls visit(row) for each attribute of the call.
template <typename Call, typename Visit>
constexpr void forEachField(Visit visit) {
  std::apply([&](const auto&... row) { (visit(row), ...); }, Schema<Call>::kFields);
}

// --- operands ---

// Bytes of an operand's elements.
enum class Width {
  kByte,
  kF32,
  kF64,
  kI64,
  kType,          // the attribute "type"
  kElementBytes,  // the attribute "element_bytes"
  kIndexBytes,    // the attribute "index_bytes"
};

template <typename Call>
int64_t bytesOf(Width width, const Call& call) {
  switch (width) {
    case Width::kByte:
      return 1;
    case Width::kF32:
      return sizeof(float);
    case Width::kF64:
      return sizeof(double);
    case Width::kI64:
      return sizeof(int64_t);
    case Width::kType:
      if constexpr (requires { call.type; }) return static_cast<int64_t>(elementBytes(call.type));
      break;
    case Width::kElementBytes:
      if constexpr (requires { call.elementBytes; }) return call.elementBytes;
      break;
    case Width::kIndexBytes:
      if constexpr (requires { call.indexBytes; }) return call.indexBytes;
      break;
  }
  return 1;
}

// Runs of `width` elements, repeated along each dimension: `count` times, `step` elements apart. No dimensions: one
// run.
struct Runs {
  struct Dimension {
    int64_t count, step;
  };
  std::vector<Dimension> dimensions;
  int64_t width;
};
// For an operand whose bytes are written to its end, however many there are.
inline constexpr int64_t kWhole = INT64_MAX;

template <typename Call>
struct OperandRow {
  std::string_view name;
  Access access;
  Width width;
  int64_t (*elements)(const Call&);        // from the operand's begin to the last that is accessed; saturating
  std::string_view text;                   // its shape
  bool (*present)(const Call&) = nullptr;  // of an optional operand
  Runs (*written)(const Call&) = nullptr;  // of one that is not written densely from its begin to `elements`

  constexpr bool isIn(const Call& call) const { return !present || present(call); }
};

// Text as a template argument.
template <size_t N>
struct OperandName {
  char text[N] = {};
  consteval OperandName(const char (&from)[N]) { std::copy_n(from, N, text); }
  constexpr std::string_view view() const { return {text, N - 1}; }
};

// The row of an operand in the table.
template <typename Call, OperandName name>
consteval size_t operandRow() {
  constexpr auto& rows = Schema<Call>::kOperands;
  constexpr size_t found = [] {
    size_t row = 0;
    while (row < rows.size() && rows[row].name != name.view()) ++row;
    return row;
  }();
  static_assert(found < rows.size(), "the call has no operand of this name");
  return found;
}

// The index of an operand among those that the call has; -1 if the call does without it.
template <OperandName name, typename Call>
constexpr int operandIndex(const Call& call) {
  constexpr auto& rows = Schema<Call>::kOperands;
  constexpr size_t row = operandRow<Call, name>();
  if (!rows[row].isIn(call)) return -1;
  return static_cast<int>(std::count_if(rows.begin(), rows.begin() + row, [&](const auto& r) { return r.isIn(call); }));
}

// The same where it is known from the call's type alone.
template <typename Call, OperandName name>
inline constexpr int kOperand = [] {
  constexpr auto& rows = Schema<Call>::kOperands;
  constexpr size_t row = operandRow<Call, name>();
  static_assert(std::none_of(rows.begin(), rows.begin() + row + 1, [](const auto& r) { return r.present; }),
                "the index depends on optional operands: use operandIndex");
  return static_cast<int>(row);
}();

// --- arithmetic of the tables: what does not fit is INT64_MAX ---

constexpr int64_t product(std::initializer_list<int64_t> factors) {
  int64_t all = 1;
  for (int64_t factor : factors) all = saturatingMultiply(all, factor);
  return all;
}

// Elements from the first to the last of `count` rows of `width` elements that start `row` elements apart.
constexpr int64_t rowsSpan(int64_t count, int64_t row, int64_t width) {
  return saturatingAdd(saturatingMultiply(count - 1, row), width);
}

// Scratch of so many f32 elements: of one thread it starts at multiples of 128 bytes.
constexpr uint64_t scratchOfFloats(int64_t floats) {
  const int64_t bytes = saturatingMultiply(floats, sizeof(float));
  return bytes > INT64_MAX - int64_t{kAlignment} ? INT64_MAX : aligned(static_cast<uint64_t>(bytes));
}

}  // namespace sheaf::plan
