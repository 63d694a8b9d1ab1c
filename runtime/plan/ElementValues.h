// Conversions between f32 and the types that are widened to it: one pair of overloads for each of them.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/Float16.h"
#include "runtime/plan/ElementTypes.h"

namespace sheaf::plan {

inline float widened(ElementBits<BF16> value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline float widened(ElementBits<F16> value) {
  return floatOfF16(value.bits);
}

// Rounds to nearest, ties to even; a NaN stays one.
inline void narrow(float value, ElementBits<BF16>& result) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  result.bits = static_cast<uint16_t>(value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void narrow(float value, ElementBits<F16>& result) {
  result.bits = f16OfFloat(value);
}

}  // namespace sheaf::plan
