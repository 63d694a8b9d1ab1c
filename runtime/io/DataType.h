// Element types of files, and their conversion to a plan's types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::io {

enum class DataType { Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64 };

size_t bytesOf(DataType type);
const char* nameOf(DataType type);  // "u16", "f32", ...
DataType dataTypeOf(plan::ElementType type);

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
