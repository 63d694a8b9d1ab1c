// What has no counterpart on the host: matrix instructions, loads of their fragments, asynchronous copies into shared
// memory, votes. In the emulation the lanes of a warp show each other their operands and each computes its own part, by
// the layouts of the PTX manual (section "Matrix fragments for mma.m16n8k16"), so that a kernel that mixes them up
// fails there too.
#pragma once

#include <cstdint>

#include "runtime/device/cuda/Launch.h"
#include "runtime/device/cuda/kernels/Half.h"

#ifdef SHEAF_CUDA_EMULATION
#include <cmath>

#include "test/emulation/ThreadBlock.h"
#endif

namespace sheaf::cuda {

constexpr int kWarp = 32;
constexpr uint32_t kWholeWarp = 0xffffffffu;

template <typename T>
__host__ __device__ inline T least(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
__host__ __device__ inline T most(T a, T b) {
  return a < b ? b : a;
}

#ifdef SHEAF_CUDA_EMULATION

namespace emulated {

// What every lane shows to its warp. There are two places, used in turn, so that one barrier for an exchange is enough:
// who writes to a place has passed the barrier after which all have read it.
template <typename T>
struct Shown {
  T lanes[2][1024] = {};
  uint32_t turn[1024] = {};

  // This lane's value; returns what the warp's lanes show, until the next call.
  const T* exchange(const T& value) {
    const int thread = emulation::currentThread();
    const uint32_t place = turn[thread]++ % 2;
    lanes[place][thread] = value;
    emulation::warpBarrier();
    return lanes[place] + thread / kWarp * kWarp;
  }
};

template <typename T>
Shown<T>& shown() {
  // Known before any thread runs: which of them comes first to make it would be a race.
  static thread_local constinit Shown<T> place;
  return place;
}

// A lane's halves of a and b of a matrix instruction, as floats.
struct Operands {
  float a[8], b[4];
};

template <typename T>
float half(uint32_t pair, int index) {
  return toFloat(T{static_cast<uint16_t>(pair >> (index * 16))});
}

}  // namespace emulated

inline uint32_t ballot(bool yes) {
  const bool* lanes = emulated::shown<bool>().exchange(yes);
  uint32_t votes = 0;
  for (int lane = 0; lane < kWarp; ++lane) votes |= uint32_t(lanes[lane]) << lane;
  return votes;
}

// The host may have to emulate a fused product, which takes long.
inline float multiplyAdd(float a, float b, float c) {
  return a * b + c;
}

inline float exponential2(float x) {
  return std::exp2(x);
}

template <typename T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::Operands own;
  for (int i = 0; i < 8; ++i) own.a[i] = emulated::half<T>(a[i / 2], i % 2);
  for (int i = 0; i < 4; ++i) own.b[i] = emulated::half<T>(i < 2 ? b0 : b1, i % 2);
  const emulated::Operands* lanes = emulated::shown<emulated::Operands>().exchange(own);
  // Rows lane / 4 and 8 more of a and c, columns lane % 4 * 2 and the next one of b and c.
  const int lane = emulation::currentThread() % kWarp;
  const emulated::Operands *rows = lanes + lane / 4 * 4, *columns = lanes + lane % 4 * 2 * 4;
  float sums[4] = {c[0], c[1], c[2], c[3]};
  for (int k = 0; k < 16; k += 2) {
    const int holder = k % 8 / 2, upper = k / 8;
    const float *row = rows[holder].a + upper * 4, *first = columns[holder].b + upper * 2;
    const float* second = columns[4 + holder].b + upper * 2;
    for (int odd = 0; odd < 2; ++odd) {
      sums[0] += row[odd] * first[odd];
      sums[1] += row[odd] * second[odd];
      sums[2] += row[2 + odd] * first[odd];
      sums[3] += row[2 + odd] * second[odd];
    }
  }
  for (int i = 0; i < 4; ++i) c[i] = sums[i];
}

inline void loadFragments(uint32_t (&result)[4], const void* row, bool transposed) {
  const void* const* rows = emulated::shown<const void*>().exchange(row);
  const int lane = emulation::currentThread() % kWarp;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t pair = 0;
    for (int i = 0; i < 2; ++i) {
      const int line = transposed ? lane % 4 * 2 + i : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + i;
      pair |= static_cast<uint32_t>(static_cast<const uint16_t*>(rows[matrix * 8 + line])[column]) << (i * 16);
    }
    result[matrix] = pair;
  }
}
inline void loadMatrices(uint32_t (&result)[4], const void* row) {
  loadFragments(result, row, false);
}
inline void loadTransposed(uint32_t (&result)[4], const void* row) {
  loadFragments(result, row, true);
}

template <typename T>
uint32_t packHalves(float low, float high) {
  return rounded<T>(low).bits | static_cast<uint32_t>(rounded<T>(high).bits) << 16;
}

inline void copyAsync(void* shared, const void* global, bool there) {
  emulation::copyAsync(shared, there ? global : nullptr);
}
inline void commitCopies() {
  emulation::commitCopies();
}
template <int kPending>
void awaitCopies() {
  emulation::awaitCopies(kPending);
}

#else

__device__ inline uint32_t ballot(bool yes) {
  return __ballot_sync(kWholeWarp, yes);
}

// a * b + c, rounded once where that is fast: for what need not have the same bits everywhere.
__device__ inline float multiplyAdd(float a, float b, float c) {
  return fmaf(a, b, c);
}

// 2^x to 2 units in the last place; results below the normal numbers are 0.
__device__ inline float exponential2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// c += a b: a [16, 16] and b [16, 8] of T, bf16 or f16, c [16, 8] in f32, spread over the warp's registers.
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply<F16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<Bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit elements from shared memory: lane i names row i % 8 of matrix i / 8, of 16 bytes.
__device__ inline void loadMatrices(uint32_t (&result)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ inline void loadTransposed(uint32_t (&result)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// Two numbers as T, the first in the lower half.
template <typename T>
__device__ inline uint32_t packHalves(float low, float high);
template <>
__device__ inline uint32_t packHalves<F16>(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
template <>
__device__ inline uint32_t packHalves<Bf16>(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// Starts a copy of 16 aligned bytes into shared memory, or of zeros if they are not `there`.
__device__ inline void copyAsync(void* shared, const void* global, bool there) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(there ? 16 : 0)
      : "memory");
}
// Makes the copies started since the last call one group.
__device__ inline void commitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending groups of this thread are under way.
template <int kPending>
__device__ inline void awaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace sheaf::cuda
