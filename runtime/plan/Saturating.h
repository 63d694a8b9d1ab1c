// Arithmetic on untrusted sizes: non-negative results that do not fit are INT64_MAX.
#pragma once

#include <cstdint>

namespace sheaf::plan {

constexpr int64_t saturatingMultiply(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

constexpr int64_t saturatingAdd(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? INT64_MAX : result;
}

}  // namespace sheaf::plan
