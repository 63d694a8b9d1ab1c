// Compiled once for each level: SHEAF_SIMD_LEVEL is v2, v3 or v4.
#include "runtime/device/cpu/simd/Loops.h"

#include "runtime/base/Float16.h"
#include "runtime/device/cpu/simd/Exponential.h"
#include "runtime/plan/calls/HidingMask.h"

#define SHEAF_JOIN2(a, b) a##b
#define SHEAF_JOIN(a, b) SHEAF_JOIN2(a, b)

namespace sheaf::cpu::simd {
namespace {

void add(float* __restrict destination, const float* __restrict source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] += source[i];
}

inline float fromBits(uint16_t half) {
  uint32_t bits = uint32_t(half) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}

void widenBf16(const uint16_t* __restrict source, float* __restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = fromBits(source[i]);
}

void narrowBf16(const float* __restrict source, uint16_t* __restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, source + i, sizeof bits);
    uint32_t upper = bits >> 16, rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
    destination[i] = uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? upper | 0x40u : rounded);
  }
}

// The tanh form of GELU is x s with s = sigmoid(2u) and u = k (x + c x^3), which does not cancel for negative x; its
// slope is s + 2 x s (1 - s) u'.
constexpr float kGeluFactor = 0.7978845608f, kGeluCubic = 0.044715f;

inline float geluSigmoid(float x) {
  return 1.0f / (1.0f + exponential(-2.0f * kGeluFactor * (x + kGeluCubic * (x * x * x))));
}

void gelu(float* values, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) values[i] *= geluSigmoid(values[i]);
}

void geluGradient(const float* __restrict before, float* __restrict values, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float x = before[i], s = geluSigmoid(x);
    float rising = kGeluFactor * (1.0f + 3.0f * kGeluCubic * (x * x));
    values[i] *= s + 2.0f * x * (s * (1.0f - s)) * rising;
  }
}

void addBf16(float* __restrict destination, const uint16_t* __restrict source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] += fromBits(source[i]);
}

void widenF16(const uint16_t* __restrict source, float* __restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = floatOfF16(source[i]);
}

void narrowF16(const float* __restrict source, uint16_t* __restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = f16OfFloat(source[i]);
}

void addF16(float* __restrict destination, const uint16_t* __restrict source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] += floatOfF16(source[i]);
}

double squareSum(const float* source, int64_t count) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      double x = source[i + lane];
      lanes[lane] += x * x;  // exact in f64: the sum alone rounds, contracted or not
    }
  for (int64_t i = whole; i < count; ++i) {
    double x = source[i];
    lanes[i - whole] += x * x;
  }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

void transpose(const uint32_t* __restrict source, int64_t sourceStride, uint32_t* __restrict destination,
               int64_t destinationStride, int64_t rows, int64_t columns) {
  // Blocks of a cache line by a cache line; whole ones through a buffer, so that loads and stores are both contiguous.
  constexpr int64_t kBlock = 16;
  for (int64_t i = 0; i < rows; i += kBlock) {
    for (int64_t j = 0; j < columns; j += kBlock) {
      int64_t height = rows - i < kBlock ? rows - i : kBlock, width = columns - j < kBlock ? columns - j : kBlock;
      if (height == kBlock && width == kBlock) {
        uint32_t block[kBlock][kBlock];
        for (int64_t x = 0; x < kBlock; ++x)
          for (int64_t y = 0; y < kBlock; ++y) block[x][y] = source[(i + x) * sourceStride + j + y];
        for (int64_t y = 0; y < kBlock; ++y)
          for (int64_t x = 0; x < kBlock; ++x) destination[(j + y) * destinationStride + i + x] = block[x][y];
      } else {
        for (int64_t y = 0; y < width; ++y)
          for (int64_t x = 0; x < height; ++x)
            destination[(j + y) * destinationStride + i + x] = source[(i + x) * sourceStride + j + y];
      }
    }
  }
}

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
inline void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = uint64_t(0xD2511F53u) * counter[0], product1 = uint64_t(0xCD9E8D57u) * counter[2];
    uint32_t next0 = uint32_t(product1 >> 32) ^ counter[1] ^ key0, next2 = uint32_t(product0 >> 32) ^ counter[3] ^ key1;
    counter[1] = uint32_t(product1);
    counter[3] = uint32_t(product0);
    counter[0] = next0;
    counter[2] = next2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// Calls store(i, random word of element i).
template <typename Store>
inline void forWords(int64_t count, uint64_t first, Philox key, Store store) {
  uint32_t key0 = uint32_t(key.seed), key1 = uint32_t(key.seed >> 32);
  // Sixteen counters at a time, so that the rounds run in vectors.
  constexpr int kCounters = 16;
  uint32_t words[kCounters][4];
  uint64_t groups = (first % 4 + count + 3) / 4, firstGroup = first / 4;
  for (uint64_t group = 0; group < groups; group += kCounters) {
    for (int i = 0; i < kCounters; ++i) {
      uint64_t index = firstGroup + group + i;
      uint32_t counter[4] = {uint32_t(index), uint32_t(index >> 32), key.node, key.step};
      philox(counter, key0, key1);
      for (int word = 0; word < 4; ++word) words[i][word] = counter[word];
    }
    const uint32_t* random = &words[0][0];
    int64_t begin = int64_t(group * 4) - int64_t(first % 4), end = begin + kCounters * 4;
    int64_t from = begin < 0 ? 0 : begin, to = end < count ? end : count;
    for (int64_t i = from; i < to; ++i) store(i, random[i - begin]);
  }
}

void dropout(const float* source, float* destination, int64_t count, uint64_t first, Philox key, uint64_t threshold,
             float scale) {
  forWords(count, first, key,
           [=](int64_t i, uint32_t word) { destination[i] = word >= threshold ? source[i] * scale : 0.0f; });
}

void uniform(float* destination, int64_t count, uint64_t first, Philox key) {
  forWords(count, first, key, [=](int64_t i, uint32_t word) { destination[i] = (float(word >> 9) + 0.5f) * 0x1p-23f; });
}

float maskBase(const float* mask, int64_t count) {
  constexpr int64_t kBlock = 64;
  float base = -__builtin_inff();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = count - begin < kBlock ? count : begin + kBlock;
    float top = base;
    int visible = 0;
#pragma omp simd reduction(max : top) reduction(| : visible)
    for (int64_t i = begin; i < end; ++i) {
      top = mask[i] > top ? mask[i] : top;
      visible |= !(mask[i] <= plan::kHidingMask);  // a NaN, too
    }
    if (visible) return 0;
    base = top;
  }
  return base >= -__FLT_MAX__ ? base : 0;
}

float softmaxRow(float* scores, int64_t seen, int64_t keys, float* maximum) {
  float top = *maximum;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < seen; ++i) top = scores[i] > top ? scores[i] : top;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < seen; ++i) {
    float e = exponential(scores[i] - top);
    scores[i] = e;
    sum += e;
  }
  for (int64_t i = seen; i < keys; ++i) scores[i] = 0;
  *maximum = top;
  return sum;
}

void scale(float* result, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) result[i] *= factor;
}

void softmaxGradientRow(float* __restrict scores, float* __restrict gradients, int64_t seen, int64_t keys,
                        float logSumExp, float delta, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) {
    float p = exponential(scores[i] - logSumExp);
    scores[i] = p;
    gradients[i] = p * (gradients[i] - delta) * scale;
  }
  for (int64_t i = seen; i < keys; ++i) scores[i] = gradients[i] = 0;
}

float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

float exponentialOf(float x) {
  return exponential(x);
}

void maximum(float* __restrict maxima, const float* __restrict values, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i], best = maxima[i];
    maxima[i] = (value > best) | ((value != value) & (best == best)) ? value : best;
  }
}

void addAtMaximum(float* __restrict sums, const float* __restrict gradient, const float* __restrict values,
                  const float* __restrict maxima, uint32_t* __restrict open, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i], best = maxima[i], g = gradient[i];
    const bool here = ((value == best) | ((value != value) & (best != best))) & (open[i] != 0);
    sums[i] += here ? g : 0.0f;
    open[i] = here ? 0 : open[i];
  }
}

}  // namespace

extern const Loops SHEAF_JOIN(loops, SHEAF_SIMD_LEVEL);
const Loops SHEAF_JOIN(loops, SHEAF_SIMD_LEVEL) = {add,
                                                   {widenBf16, narrowBf16, addBf16},
                                                   {widenF16, narrowF16, addF16},
                                                   gelu,
                                                   geluGradient,
                                                   squareSum,
                                                   transpose,
                                                   dropout,
                                                   uniform,
                                                   maskBase,
                                                   softmaxRow,
                                                   scale,
                                                   softmaxGradientRow,
                                                   dot,
                                                   exponentialOf,
                                                   maximum,
                                                   addAtMaximum};

}  // namespace sheaf::cpu::simd
