#include "runtime/device/cuda/kernels/HandOver.h"

#include "runtime/device/cuda/Launch.h"

#ifdef SHEAF_CUDA_EMULATION
#include <thread>
#endif

namespace sheaf::cuda {
namespace {

#ifdef SHEAF_CUDA_EMULATION
__device__ void publish(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
__device__ uint64_t observe(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
__device__ void rest() {
  std::this_thread::yield();
}
#else
// With the host in their scope: PTX ISA, "Memory Consistency Model", scope .sys.
__device__ void publish(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ uint64_t observe(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
// A look takes some 1 us over PCIe.
__device__ void rest() {
  __nanosleep(500);
}
#endif

__global__ void handOverKernel(HandOver* words, uint32_t report, uint32_t await) {
  if (report > 0) publish(&words->reported, observe(&words->reported) + report);
  if (await == 0) return;
  const uint64_t expected = observe(&words->expected) + await;
  publish(&words->expected, expected);
  while (observe(&words->done) < expected && observe(&words->stop) == 0) rest();
}

}  // namespace

cudaError_t handOver(HandOver* words, uint32_t report, uint32_t await, cudaStream_t stream) {
  return launch(handOverKernel, {dim3(1), dim3(1)}, stream, words, report, await);
}

}  // namespace sheaf::cuda
