// Floats of 16 bits by their bits, and conversions of what kernels read and write from and to f32.
#pragma once

#include <cuda_runtime_api.h>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <cstring>

#include "runtime/base/Float16.h"

namespace sheaf::cuda {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// The types of what products, attention and sums read and write.
enum class FloatType { kF32, kBf16, kF16 };

// Calls compute(T()) with the type of elements.
template <typename Compute>
auto withType(FloatType type, Compute compute) {
  switch (type) {
    case FloatType::kBf16:
      return compute(Bf16());
    case FloatType::kF16:
      return compute(F16());
    default:
      return compute(float());
  }
}

__host__ __device__ inline float toFloat(float value) {
  return value;
}

__host__ __device__ inline float toFloat(Bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

__host__ __device__ inline float toFloat(F16 value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  return floatOfF16(value.bits);
#endif
}

// From f32 to the type that is stored: to nearest even; a NaN stays one.
template <typename T>
__host__ __device__ inline T rounded(float value);
template <>
__host__ __device__ inline float rounded<float>(float value) {
  return value;
}
template <>
__host__ __device__ inline Bf16 rounded<Bf16>(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t upper = bits >> 16, rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
  return Bf16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? upper | 0x40u : rounded)};
}
template <>
__host__ __device__ inline F16 rounded<F16>(float value) {
#ifdef __CUDA_ARCH__
  return F16{__half_as_ushort(__float2half_rn(value))};
#else
  return F16{f16OfFloat(value)};
#endif
}

}  // namespace sheaf::cuda
