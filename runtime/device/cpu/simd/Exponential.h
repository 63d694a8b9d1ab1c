// e^x in f32, in a form that vectorises.
#pragma once

namespace sheaf::cpu::simd {

// 2^n * 2^f by the exponent's bits and a polynomial in f of degree 6 on [-1/2, 1/2]; relative error below 2e-7. Below
// -87 the result is 0, above 88 infinity; a NaN stays one.
inline float exponential(float x) {
  float scaled = x * 1.44269504f;
  float n = __builtin_floorf(scaled + 0.5f);
  // What x * log2(e) loses in rounding matters for large |x|: subtract n * ln 2 in two parts instead.
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  float bounded = n < -126.0f ? -126.0f : n > 127.0f ? 127.0f : n;
  int bits = (int(bounded) + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  float result = p * power;
  result = x < -87.0f ? 0.0f : result;
  return x > 88.0f ? __builtin_inff() : result;
}

}  // namespace sheaf::cpu::simd
