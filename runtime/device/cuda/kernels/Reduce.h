// Sums over ranks, in the order of one fixed tree: the bits of runtime/comm/local/Reduce.h, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sheaf::cuda {

enum class SumType { kF32, kF64, kBf16, kF16, kI32, kI64 };

inline constexpr int kMaxListedRanks = 128;

// Where each rank's elements are: at addresses of their own, or one after the other.
struct RankSources {
  int ranks = 0;
  const std::byte* first = nullptr;  // if set: rank r's elements are at first + r * stride bytes
  uint64_t stride = 0;
  const std::byte* listed[kMaxListedRanks] = {};
  bool continues = false;  // the sum goes on from what the destination holds

#ifdef __CUDACC__
  __host__ __device__
#endif
      const std::byte*
      of(int rank) const {
    return first ? first + static_cast<uint64_t>(rank) * stride : listed[rank];
  }
};

// As comm::sumOverRanks. The destination may coincide with a source.
cudaError_t sumOverRanks(SumType type, const RankSources& sources, std::byte* destination, uint64_t count,
                         cudaStream_t stream);

}  // namespace sheaf::cuda
