// Conversions between f32 and f16 by integers: to nearest, ties to even, with subnormals; what is too large becomes
// infinity, and a NaN stays one. Without branches, so that loops of them vectorise. Nothing here is linked between
// files that are compiled for different processors.
//
// After Fabian Giesen, "half_to_float_fast5" and "float_to_half_fast3_rtne" (public domain).
#pragma once

#include <stdint.h>

namespace sheaf {

static inline float floatOfF16(uint16_t half) {
  const uint32_t magnitude = (half & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  // 127 - 15 more in the exponent; of infinities and NaNs that once more.
  const uint32_t normal = magnitude + (112u << 23) + (exponent == 0x0f800000u ? 112u << 23 : 0u);
  // A subnormal: the exponent of the least normal number, which is then subtracted.
  const uint32_t raised = magnitude + (113u << 23), least = 113u << 23;
  float high, low;
  __builtin_memcpy(&high, &raised, sizeof high);
  __builtin_memcpy(&low, &least, sizeof low);
  high -= low;
  uint32_t subnormal;
  __builtin_memcpy(&subnormal, &high, sizeof subnormal);
  const uint32_t bits = (exponent == 0 ? subnormal : normal) | (half & 0x8000u) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}

static inline uint16_t f16OfFloat(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const uint32_t rounded = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // The addition rounds what will be a subnormal at its last place.
  const uint32_t shift = 126u << 23;
  float sum, anchor;
  __builtin_memcpy(&sum, &magnitude, sizeof sum);
  __builtin_memcpy(&anchor, &shift, sizeof anchor);
  sum += anchor;
  uint32_t subnormal;
  __builtin_memcpy(&subnormal, &sum, sizeof subnormal);
  subnormal -= shift;
  // From 65,520 on the rounding is infinity: 0x47800000 is 65,536.
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t result = magnitude >= 0x47800000u ? large : magnitude < (113u << 23) ? subnormal : rounded;
  return static_cast<uint16_t>(result | sign >> 16);
}

}  // namespace sheaf
