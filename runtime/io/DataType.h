// Element types of files, and their conversion to a plan's types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/plan/ElementTypes.h"

namespace sheaf::io {

// The type of elements in a file: any row of plan::kElements, by its number. A type has an enumerator here if code
// names it.
enum class DataType : int {
  Bool = plan::BOOL,
  U8 = plan::U8,
  I8 = plan::I8,
  U16 = plan::kFileU16,
  I16 = plan::I16,
  U32 = plan::kFileU32,
  I32 = plan::I32,
  U64 = plan::kFileU64,
  I64 = plan::I64,
  F16 = plan::F16,
  BF16 = plan::BF16,
  F32 = plan::F32,
  F64 = plan::F64,
};

constexpr const plan::ElementFacts& factsOf(DataType type) {
  return plan::factsOfStored(static_cast<plan::ElementType>(type));
}
constexpr size_t bytesOf(DataType type) {
  return factsOf(type).bytes();
}
// "u16", "f32", ...
constexpr std::string_view nameOf(DataType type) {
  return factsOf(type).name;
}
// The type of a plan's elements in files; F32 for a number that is not a type.
constexpr DataType dataTypeOf(plan::ElementType type) {
  return plan::factsOf(type).isElement() ? static_cast<DataType>(type) : DataType::F32;
}

// Whether every value, or every value in range, has a place in `to`: integers to integers, floats to floats, bool and
// integers of at most 16 bits to floats.
bool convertible(DataType from, DataType to);
// The end of an error about types that are not convertible: "; save array.astype('int64')".
std::string conversionRemedy(DataType to);

// Converts `count` elements; neither pointer need be aligned. Floats are rounded to nearest; an integer that does not
// fit is an error that names it.
Status convert(DataType from, const std::byte* source, DataType to, std::byte* destination, size_t count);

// The first of `count` integers that is neither in [0, classes) nor `ignored`, if there is one.
std::optional<int64_t> labelOutOfRange(DataType type, const std::byte* labels, size_t count, int64_t classes,
                                       std::optional<int64_t> ignored);

}  // namespace sheaf::io
