// The inner loops of library calls, compiled for several levels of the x86-64 ABI. Files of this folder include nothing
// of the standard library that has code in it: an inline function compiled for one level could be linked into another.
#pragma once

#include <stdint.h>

namespace sheaf::cpu::simd {

// Key and counter of Philox 4x32-10 for a random node.
struct Philox {
  uint64_t seed;
  uint32_t node;
  uint32_t step;
};

// Of a float of 16 bits, given by its bits.
struct Halves {
  // To f32, exactly; and to nearest even, what is too large to infinity. A NaN stays one.
  void (*widen)(const uint16_t* source, float* destination, int64_t count);
  void (*narrow)(const float* source, uint16_t* destination, int64_t count);
  // destination[i] += source[i]
  void (*add)(float* destination, const uint16_t* source, int64_t count);
};

struct Loops {
  // destination[i] += source[i]
  void (*add)(float* destination, const float* source, int64_t count);
  Halves bf16, f16;
  // values[i] = gelu(values[i]), the tanh form
  void (*gelu)(float* values, int64_t count);
  // values[i] *= gelu'(before[i])
  void (*geluGradient)(const float* before, float* values, int64_t count);
  // The sum of squares in f64, in an order fixed by count alone: sixteen lanes, then pairwise.
  double (*squareSum)(const float* source, int64_t count);
  // destination[j * destinationStride + i] = source[i * sourceStride + j] for i < rows, j < columns; 4-byte elements.
  void (*transpose)(const uint32_t* source, int64_t sourceStride, uint32_t* destination, int64_t destinationStride,
                    int64_t rows, int64_t columns);
  // destination[i] = 0 or source[i] * scale; element i has global index first + i; it is kept if its random word is at
  // least `threshold`.
  void (*dropout)(const float* source, float* destination, int64_t count, uint64_t first, Philox philox,
                  uint64_t threshold, float scale);
  // destination[i] = the upper 23 bits of element i's random word, plus 1/2, over 2^23
  void (*uniform)(float* destination, int64_t count, uint64_t first, Philox philox);
  // Returns the largest number of a row of an attention mask if it is at most kHidingMask, else 0: the row's scores are
  // computed less this base, since the sum of their exponentials would vanish next to it.
  float (*maskBase)(const float* mask, int64_t count);
  // One row of a tile of attention scores, keys [0, seen) of `keys`: takes over the maximum, replaces the scores by
  // exp(score - maximum), those not seen by 0, and returns their sum. A maximum of -FLT_MAX means none yet.
  float (*softmaxRow)(float* scores, int64_t seen, int64_t keys, float* maximum);
  // result[i] *= factor
  void (*scale)(float* result, int64_t count, float factor);
  // One row of the backward tile: scores become p = exp(score - logSumExp), gradients become p * (gradient - delta) *
  // scale; both are 0 from `seen` on.
  void (*softmaxGradientRow)(float* scores, float* gradients, int64_t seen, int64_t keys, float logSumExp, float delta,
                             float scale);
  // The dot product, in an order fixed by count.
  float (*dot)(const float* a, const float* b, int64_t count);
  float (*exponential)(float x);
  // maxima[i] = values[i] where that is greater; a NaN is greater than all.
  void (*maximum)(float* maxima, const float* values, int64_t count);
  // sums[i] += gradient[i] where values[i] is maxima[i] and open[i] is not 0; there it becomes 0.
  void (*addAtMaximum)(float* sums, const float* gradient, const float* values, const float* maxima, uint32_t* open,
                       int64_t count);
};

// Of one level each.
extern const Loops loopsV2, loopsV3, loopsV4;

}  // namespace sheaf::cpu::simd

namespace sheaf::cpu {

// The loops for this processor.
const simd::Loops& loops();

}  // namespace sheaf::cpu
