// The element types: one row of kElements for each type of plan.proto, and for each type that only files have. Other
// files look facts of a type up here, and code that differs from type to type is called by visitElement(). So a new
// type is an enumerator in plan.proto and a row; the compiler names the code that lacks a case for it
// (docs/extending.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

enum class NumberKind : uint8_t { kNone, kFloat, kSigned, kUnsigned, kBool };

// Types of elements in files that plans do not have. Their elements are converted when they are read (io::DataType).
inline constexpr ElementType kFileU16{static_cast<ElementType>(ElementType_MAX + 1)},
    kFileU32{static_cast<ElementType>(ElementType_MAX + 2)}, kFileU64{static_cast<ElementType>(ElementType_MAX + 3)};
inline constexpr int kElementTypes = kFileU64;  // types are numbered from 1 to this

struct ElementFacts {
  ElementType type;
  std::string_view name;  // in texts of plans, in JSON and in messages: plan.proto's enumerator in lower case
  NumberKind kind;
  int bits;                      // of a value; an element has whole bytes
  ElementType computed;          // elements are widened to this type, computed with, and rounded when they are stored
  int onnx;                      // onnx.TensorProto.DataType
  std::string_view safetensors;  // the name in files of this format; empty: the format lacks the type
  std::string_view npy;          // the same in NumPy's arrays, without the byte order
  bool products;                 // matrix products, attention, scatter_add, square_sum and sum_partials take the type
  bool arithmetic;               // cumsum, top_k and those kinds of scatter that compute take it
  bool summed;                   // collectives of every device can sum it

  constexpr bool isElement() const { return kind != NumberKind::kNone; }
  constexpr bool isFloat() const { return kind == NumberKind::kFloat; }
  constexpr bool inPlans() const { return isElement() && type <= ElementType_MAX; }
  constexpr bool isFloatInPlans() const { return isFloat() && inPlans(); }
  // True if devices compute in a wider type than memory holds.
  constexpr bool isWidened() const { return computed != type; }
  constexpr uint64_t bytes() const { return static_cast<uint64_t>(bits + 7) / 8; }
};

// Lists of types in messages and in reference pages are in the order of the rows.
inline constexpr ElementFacts kElements[] = {
    // type, name, kind, bits, computed, onnx, safetensors, npy, products, arithmetic, summed
    {F32, "f32", NumberKind::kFloat, 32, F32, 1, "F32", "f4", true, true, true},
    {F64, "f64", NumberKind::kFloat, 64, F64, 11, "F64", "f8", false, true, true},
    {BF16, "bf16", NumberKind::kFloat, 16, F32, 16, "BF16", "", true, false, true},
    {F16, "f16", NumberKind::kFloat, 16, F32, 10, "F16", "f2", true, false, true},
    {I32, "i32", NumberKind::kSigned, 32, I32, 6, "I32", "i4", false, true, true},
    {I64, "i64", NumberKind::kSigned, 64, I64, 7, "I64", "i8", false, true, true},
    {I16, "i16", NumberKind::kSigned, 16, I16, 5, "I16", "i2", false, false, false},
    {I8, "i8", NumberKind::kSigned, 8, I8, 3, "I8", "i1", false, false, false},
    {U8, "u8", NumberKind::kUnsigned, 8, U8, 2, "U8", "u1", false, false, false},
    {BOOL, "bool", NumberKind::kBool, 1, BOOL, 9, "BOOL", "b1", false, false, false},
    {kFileU16, "u16", NumberKind::kUnsigned, 16, kFileU16, 4, "U16", "u2", false, false, false},
    {kFileU32, "u32", NumberKind::kUnsigned, 32, kFileU32, 12, "U32", "u4", false, false, false},
    {kFileU64, "u64", NumberKind::kUnsigned, 64, kFileU64, 13, "U64", "u8", false, false, false},
};

// The facts of a number that is not a type: it has no bytes and is not a float.
inline constexpr ElementFacts kNoElement{ELEMENT_TYPE_UNSPECIFIED,
                                         "unspecified",
                                         NumberKind::kNone,
                                         0,
                                         ELEMENT_TYPE_UNSPECIFIED,
                                         0,
                                         "",
                                         "",
                                         false,
                                         false,
                                         false};

namespace element_rows {

constexpr int rowsOf(ElementType type) {
  int rows = 0;
  for (const ElementFacts& facts : kElements) rows += facts.type == type;
  return rows;
}

// The compiler's error names the type that fails.
template <ElementType Type>
constexpr bool isComplete() {
  static_assert(rowsOf(Type) == 1, "this element type must have exactly one row in kElements");
  return true;
}
template <int... Number>
constexpr bool areComplete(std::integer_sequence<int, Number...>) {
  return (isComplete<static_cast<ElementType>(Number + 1)>() && ...);
}
static_assert(areComplete(std::make_integer_sequence<int, kElementTypes>()));
static_assert(std::size(kElements) == kElementTypes, "a row of kElements has a type that is not numbered");

// The place of each type's row.
inline constexpr auto kPlaces = [] {
  std::array<uint8_t, kElementTypes + 1> places{};
  for (size_t i = 0; i < std::size(kElements); ++i) places[static_cast<size_t>(kElements[i].type)] = uint8_t(i);
  return places;
}();

}  // namespace element_rows

// Returns the row of a type of plans or of files.
constexpr const ElementFacts& factsOfStored(ElementType type) {
  const bool known = type > 0 && type <= kElementTypes;
  return known ? kElements[element_rows::kPlaces[static_cast<size_t>(type)]] : kNoElement;
}
// Returns the row of a plan's type. A plan that has not been verified may have any number as a type: what is not in
// plan.proto is kNoElement.
constexpr const ElementFacts& factsOf(ElementType type) {
  return type <= ElementType_MAX ? factsOfStored(type) : kNoElement;
}

// Bytes of one element; 0 for a type that is not one.
constexpr uint64_t elementBytes(ElementType type) {
  return factsOf(type).bytes();
}
constexpr bool isFloat(ElementType type) {
  return factsOf(type).isFloat();
}
// True if devices compute with elements of the type in a wider one, computedType(), as with floats of 16 bits.
constexpr bool isWidened(ElementType type) {
  return factsOf(type).isWidened();
}
constexpr ElementType computedType(ElementType type) {
  return isWidened(type) ? factsOf(type).computed : type;
}

// The types whose rows satisfy `Among`, in the order of the rows. `Among` is a member of ElementFacts, such as
// &ElementFacts::summed.
template <auto Among>
inline constexpr auto kTypesAmong = [] {
  constexpr size_t count = static_cast<size_t>(std::count_if(std::begin(kElements), std::end(kElements),
                                                             [](const auto& row) { return std::invoke(Among, row); }));
  std::array<ElementType, count> types{};
  size_t next = 0;
  for (const ElementFacts& row : kElements)
    if (std::invoke(Among, row)) types[next++] = row.type;
  return types;
}();

// --- C++ types and dispatch ---

// An element of a type in which C++ does not compute, by its bits. ElementValues.h converts it.
template <ElementType Type>
struct ElementBits {
  std::conditional_t<(factsOfStored(Type).bits > 8), uint16_t, uint8_t> bits;
};

namespace element_rows {

template <ElementType Type>
constexpr auto stored() {
  constexpr const ElementFacts& facts = factsOfStored(Type);
  static_assert(facts.bytes() == 1 || facts.bytes() == 2 || facts.bytes() == 4 || facts.bytes() == 8);
  if constexpr (facts.kind == NumberKind::kBool) {
    return bool();
  } else if constexpr (facts.isWidened()) {
    return ElementBits<Type>();
  } else if constexpr (facts.isFloat()) {
    static_assert(facts.bits == 32 || facts.bits == 64);
    return std::conditional_t<facts.bits == 32, float, double>();
  } else {
    using Signed = std::conditional_t<
        facts.bytes() == 1, int8_t,
        std::conditional_t<facts.bytes() == 2, int16_t, std::conditional_t<facts.bytes() == 4, int32_t, int64_t>>>;
    return std::conditional_t<facts.kind == NumberKind::kSigned, Signed, std::make_unsigned_t<Signed>>();
  }
}

// The type in which sums are formed.
template <typename Stored>
constexpr auto summed() {
  if constexpr (std::is_integral_v<Stored> && !std::is_same_v<Stored, bool>)
    return std::make_unsigned_t<Stored>();
  else
    return Stored();
}

}  // namespace element_rows

// A type as an argument of functions that are overloaded or instantiated per type.
template <ElementType Type>
struct Element {
  static constexpr ElementType kType = Type;
  static constexpr const ElementFacts& kFacts = factsOfStored(Type);
  static constexpr bool kWidened = kFacts.isWidened();
  using Stored = decltype(element_rows::stored<Type>());  // in memory and in files
  // Sums of integers wrap, so they are unsigned.
  using Sum = decltype(element_rows::summed<decltype(element_rows::stored<kFacts.computed>())>());
};

namespace element_rows {

template <auto Among>
constexpr size_t nextRow(size_t row) {
  while (row < std::size(kElements) && !std::invoke(Among, kElements[row])) ++row;
  return row;
}

template <auto Among, size_t Row, typename Visit>
constexpr auto visitFrom(ElementType type, Visit& visit) {
  constexpr size_t kNext = nextRow<Among>(Row + 1);
  if constexpr (kNext < std::size(kElements))
    if (type != kElements[Row].type) return visitFrom<Among, kNext>(type, visit);
  return visit(Element<kElements[Row].type>());
}

}  // namespace element_rows

// Returns visit(Element<T>()), T being the type. `visit` is instantiated for the types whose rows satisfy `Among`, and
// the type must be one of them, which verifiers check before: any other is taken as the last of them.
template <auto Among, typename Visit>
constexpr auto visitElement(ElementType type, Visit visit) {
  return element_rows::visitFrom<Among, element_rows::nextRow<Among>(0)>(type, visit);
}

}  // namespace sheaf::plan
