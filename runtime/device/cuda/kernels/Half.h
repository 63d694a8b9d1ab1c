// bf16 by its bits, and conversions of what kernels read and write from and to f32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

namespace sheaf::cuda {

struct Half {
  uint16_t bits;
};

__host__ __device__ inline float toFloat(float value) {
  return value;
}

__host__ __device__ inline float toFloat(Half value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// To nearest even; a NaN stays one.
__host__ __device__ inline Half toHalf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t upper = bits >> 16, rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
  return Half{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? upper | 0x40u : rounded)};
}

// From f32 to the type that is stored.
template <typename T>
__host__ __device__ inline T rounded(float value);
template <>
__host__ __device__ inline float rounded<float>(float value) {
  return value;
}
template <>
__host__ __device__ inline Half rounded<Half>(float value) {
  return toHalf(value);
}

}  // namespace sheaf::cuda
