#include "runtime/io/DataType.h"

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "runtime/base/Text.h"
#include "runtime/plan/ElementValues.h"

namespace sheaf::io {
namespace {

template <typename Element>
inline constexpr bool kBool = Element::kFacts.kind == plan::NumberKind::kBool;

template <typename From, typename To>
inline constexpr bool kAllowed = From::kFacts.isFloat() ? To::kFacts.isFloat()
                                 : To::kFacts.isFloat() ? From::kFacts.bytes() <= 2 && !To::kWidened
                                                        : kBool<From> || !kBool<To>;

template <typename From>
auto widened(typename From::Stored value) {
  if constexpr (From::kWidened)
    return plan::widened(value);
  else
    return value;
}

template <typename To, typename Value>
typename To::Stored narrowed(Value value) {
  typename To::Stored result;
  if constexpr (To::kWidened)
    plan::narrow(static_cast<float>(value), result);
  else
    result = static_cast<typename To::Stored>(value);
  return result;
}

// True if an integer is one of To's values, which may have fewer bits than their bytes.
template <typename To, typename Value>
bool fits(Value value) {
  using Limits = std::numeric_limits<typename To::Stored>;
  constexpr int kUnused = static_cast<int>(8 * sizeof(typename To::Stored)) - To::kFacts.bits;
  return std::cmp_greater_equal(value, Limits::min() >> kUnused) &&
         std::cmp_less_equal(value, Limits::max() >> kUnused);
}

template <typename From, typename To>
Status convertArray(const std::byte* source, std::byte* destination, size_t count) {
  constexpr bool kIntegers = !From::kFacts.isFloat() && !To::kFacts.isFloat() && !kBool<From> && !kBool<To>;
  constexpr size_t kFrom = sizeof(typename From::Stored), kTo = sizeof(typename To::Stored);
  for (size_t i = 0; i < count; ++i) {
    typename From::Stored value;
    std::memcpy(&value, source + i * kFrom, kFrom);
    if constexpr (kIntegers) {
      if (!fits<To>(value)) return Status::error(cat("element ", i, " is ", +value, ", which does not fit"));
    }
    typename To::Stored converted = narrowed<To>(widened<From>(value));
    std::memcpy(destination + i * kTo, &converted, kTo);
  }
  return {};
}

// Calls visit(plan::Element<T>()) with the type of files.
template <typename Visit>
auto visitType(DataType type, Visit visit) {
  return plan::visitElement<&plan::ElementFacts::isElement>(static_cast<plan::ElementType>(type), visit);
}

}  // namespace

std::string conversionRemedy(DataType to) {
  if (to == DataType::I64) return "; save array.astype('int64')";
  if (to == DataType::I32) return "; save array.astype('int32')";
  return factsOf(to).isFloat() && to != DataType::F64 ? "; save array.astype('float32')" : "";
}

bool convertible(DataType from, DataType to) {
  return visitType(from, [&](auto source) {
    return visitType(to, [](auto target) { return kAllowed<decltype(source), decltype(target)>; });
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
  return visitType(from, [&](auto sample) {
    return visitType(to, [&](auto target) {
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
  return visitType(type, [&](auto element) -> std::optional<int64_t> {
    using T = typename decltype(element)::Stored;
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
