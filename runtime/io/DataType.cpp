#include "runtime/io/DataType.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "runtime/base/Float16.h"
#include "runtime/base/Text.h"

namespace sheaf::io {
namespace {

// Half-precision types: converted by way of f32.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

float toFloat(Brain value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

float toFloat(Half value) {
  return floatOfF16(value.bits);
}

Brain toBrain(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

Half toHalf(float value) {
  return {f16OfFloat(value)};
}

template <typename T>
inline constexpr bool kFloat = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

template <typename From, typename To>
inline constexpr bool kAllowed = kFloat<From> ? kFloat<To>
                                 : kFloat<To>
                                     ? sizeof(From) <= 2 && (std::is_same_v<To, float> || std::is_same_v<To, double>)
                                     : std::is_same_v<From, bool> || !std::is_same_v<To, bool>;

template <typename From>
auto widen(From value) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, Brain>)
    return toFloat(value);
  else
    return value;
}

template <typename To, typename From>
To narrow(From value) {
  if constexpr (std::is_same_v<To, Half>)
    return toHalf(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, Brain>)
    return toBrain(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

template <typename From, typename To>
Status convertArray(const std::byte* source, std::byte* destination, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof value);
    if constexpr (std::is_integral_v<From> && std::is_integral_v<To> && !std::is_same_v<From, bool> &&
                  !std::is_same_v<To, bool>) {
      if (!std::in_range<To>(value)) return Status::error(cat("element ", i, " is ", +value, ", which does not fit"));
    }
    To converted = narrow<To>(widen(value));
    std::memcpy(destination + i * sizeof(To), &converted, sizeof converted);
  }
  return {};
}

// Calls visit(T{}) with the C++ type of a DataType.
template <typename Visit>
auto withType(DataType type, Visit visit) {
  switch (type) {
    case DataType::Bool:
      return visit(bool{});
    case DataType::U8:
      return visit(uint8_t{});
    case DataType::I8:
      return visit(int8_t{});
    case DataType::U16:
      return visit(uint16_t{});
    case DataType::I16:
      return visit(int16_t{});
    case DataType::U32:
      return visit(uint32_t{});
    case DataType::I32:
      return visit(int32_t{});
    case DataType::U64:
      return visit(uint64_t{});
    case DataType::I64:
      return visit(int64_t{});
    case DataType::F16:
      return visit(Half{});
    case DataType::BF16:
      return visit(Brain{});
    case DataType::F32:
      return visit(float{});
    case DataType::F64:
      break;
  }
  return visit(double{});
}

}  // namespace

size_t bytesOf(DataType type) {
  return withType(type, [](auto value) { return sizeof value; });
}

const char* nameOf(DataType type) {
  static constexpr const char* kNames[] = {"bool", "u8",  "i8",  "u16",  "i16", "u32", "i32",
                                           "u64",  "i64", "f16", "bf16", "f32", "f64"};
  return kNames[static_cast<int>(type)];
}

DataType dataTypeOf(plan::ElementType type) {
  switch (type) {
    case plan::F64:
      return DataType::F64;
    case plan::BF16:
      return DataType::BF16;
    case plan::F16:
      return DataType::F16;
    case plan::I64:
      return DataType::I64;
    case plan::I32:
      return DataType::I32;
    case plan::I16:
      return DataType::I16;
    case plan::I8:
      return DataType::I8;
    case plan::U8:
      return DataType::U8;
    case plan::BOOL:
      return DataType::Bool;
    default:
      return DataType::F32;
  }
}

std::string conversionRemedy(DataType to) {
  if (to == DataType::I64) return "; save array.astype('int64')";
  if (to == DataType::I32) return "; save array.astype('int32')";
  return to == DataType::F32 || to == DataType::F16 || to == DataType::BF16 ? "; save array.astype('float32')" : "";
}

bool convertible(DataType from, DataType to) {
  return withType(from, [&](auto source) {
    return withType(to, [](auto target) { return kAllowed<decltype(source), decltype(target)>; });
  });
}

Status convert(DataType from, const std::byte* source, DataType to, std::byte* destination, size_t count) {
  if (count == 0) return {};
  if (from == to && from != DataType::Bool) {
    std::memcpy(destination, source, count * bytesOf(from));
    return {};
  }
  if (from == DataType::Bool) {  // a byte that is neither 0 nor 1 is not a bool; read as what it is stored as
    for (size_t i = 0; i < count; ++i)
      if (source[i] > std::byte{1})
        return Status::error(cat("element ", i, " is ", static_cast<int>(source[i]), ", which is not a bool (0 or 1)"));
  }
  return withType(from, [&](auto sample) {
    return withType(to, [&](auto target) {
      using From = decltype(sample);
      using To = decltype(target);
      if constexpr (kAllowed<From, To>)
        return convertArray<From, To>(source, destination, count);
      else
        return Status::error(cat(nameOf(from), " cannot become ", nameOf(to)));
    });
  });
}

std::optional<int64_t> labelOutOfRange(DataType type, const std::byte* labels, size_t count, int64_t classes,
                                       std::optional<int64_t> ignored) {
  return withType(type, [&]([[maybe_unused]] auto zero) -> std::optional<int64_t> {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, labels + i * sizeof(T), sizeof value);
        const bool inRange = std::cmp_greater_equal(value, 0) && std::cmp_less(value, classes);
        if (!inRange && !(ignored && std::cmp_equal(value, *ignored))) return static_cast<int64_t>(value);
      }
    return std::nullopt;
  });
}

}  // namespace sheaf::io
