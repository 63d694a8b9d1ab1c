// CUDA C++ for the host's compiler: what kernels use of the language and its built-in functions, over ThreadBlock.h.
// Included by runtime/device/cuda/Launch.h in place of nvcc's own. Atomics exist for integers only: sums of floats
// must have an order.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>

#include "test/emulation/ThreadBlock.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
// Blocks of one kernel run one after the other on a thread of their stream.
#define __shared__ static thread_local
#define SHEAF_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(::sheaf::emulation::sharedMemory())

namespace sheaf::emulation {

struct KernelPosition {
  uint3 block{};
  dim3 grid, threads;
};
extern thread_local constinit KernelPosition position;

inline uint3 threadIndex() {
  const dim3& size = position.threads;
  unsigned index = static_cast<unsigned>(currentThread());
  if (size.y == 1 && size.z == 1) return {index, 0, 0};
  return {index % size.x, index / size.x % size.y, index / size.x / size.y};
}

// Runs the kernel's blocks, on the stream's thread.
cudaError_t launchKernel(cudaStream_t stream, dim3 blocks, dim3 threads, size_t sharedBytes,
                         std::function<void()> kernel);

template <typename T>
T exchange(T value, int source, Place place) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warpExchange(bits, source, place);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int lane() {
  return currentThread() % kWarp;
}

// The lane to read from: `source` if it is in the caller's group of `width` lanes, else the caller's own.
inline int within(int source, int width) {
  return source >= 0 && source / width == lane() / width ? source : lane();
}

}  // namespace sheaf::emulation

#define threadIdx (::sheaf::emulation::threadIndex())
#define blockIdx (::sheaf::emulation::position.block)
#define blockDim (::sheaf::emulation::position.threads)
#define gridDim (::sheaf::emulation::position.grid)
inline constexpr int warpSize = 32;

using std::max;
using std::min;

// Each takes the place in the source where it is called.
#define SHEAF_HERE ::sheaf::emulation::Place here = ::sheaf::emulation::Place::current()

inline void __syncthreads(SHEAF_HERE) {
  sheaf::emulation::blockBarrier(here);
}
inline void __syncwarp(unsigned = ~0u, SHEAF_HERE) {
  sheaf::emulation::warpBarrier(here);
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32, SHEAF_HERE) {
  return sheaf::emulation::exchange(value, sheaf::emulation::lane() / width * width + source % width, here);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32, SHEAF_HERE) {
  return sheaf::emulation::exchange(value, sheaf::emulation::within(sheaf::emulation::lane() ^ mask, width), here);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32, SHEAF_HERE) {
  return sheaf::emulation::exchange(
      value, sheaf::emulation::within(sheaf::emulation::lane() + static_cast<int>(delta), width), here);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32, SHEAF_HERE) {
  return sheaf::emulation::exchange(
      value, sheaf::emulation::within(sheaf::emulation::lane() - static_cast<int>(delta), width), here);
}
inline unsigned __ballot_sync(unsigned, int predicate, SHEAF_HERE) {
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i)
    bits |= static_cast<unsigned>(sheaf::emulation::exchange(predicate != 0 ? 1 : 0, i, here)) << i;
  return bits;
}
#undef SHEAF_HERE

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  static_assert(std::is_integral_v<T>);
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename To, typename From>
To sheafBits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}
inline unsigned __float_as_uint(float value) {
  return sheafBits<unsigned>(value);
}
inline float __uint_as_float(unsigned value) {
  return sheafBits<float>(value);
}
inline int __float_as_int(float value) {
  return sheafBits<int>(value);
}
inline float __int_as_float(int value) {
  return sheafBits<float>(value);
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline float rsqrtf(float value) {
  return 1 / std::sqrt(value);
}
inline int __popc(unsigned value) {
  return __builtin_popcount(value);
}
inline int __ffs(int value) {
  return __builtin_ffs(value);
}
inline int __clz(int value) {
  return value ? __builtin_clz(static_cast<unsigned>(value)) : 32;
}
