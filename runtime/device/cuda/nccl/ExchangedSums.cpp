#include "runtime/device/cuda/nccl/ExchangedSums.h"

#include "runtime/device/cuda/Check.h"
#include "runtime/device/cuda/Communicators.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/Types.h"

namespace sheaf::nccl {
namespace {

// Each rank's whole contribution goes to all: one exchange instead of two.
bool isSmall(uint64_t count, uint64_t width) {
  return count * width <= plan::kUndividedSumBytes;
}

}  // namespace

Status ExchangedSums::enqueue(const comm::CollectiveBuffers& buffers, cuda::SumType type, std::byte* scratch,
                              cudaStream_t stream, const Exchange& exchange) const {
  return buffers.op == plan::REDUCE_SCATTER ? reduceScatter(buffers, type, scratch, stream, exchange)
                                            : allReduce(buffers, type, scratch, stream, exchange);
}

Status ExchangedSums::sum(const comm::CollectiveBuffers& buffers, cuda::SumType type, const std::byte* scratch,
                          uint64_t stride, std::byte* destination, uint64_t count, cudaStream_t stream) const {
  cuda::RankSources sources;
  sources.continues = buffers.continues;
  sources.ranks = static_cast<int>(ranks_);
  sources.first = scratch;
  sources.stride = stride;
  return cuda::check(cuda::sumOverRanks(type, sources, destination, count, stream), "cannot sum over the ranks");
}

Status ExchangedSums::reduceScatter(const comm::CollectiveBuffers& buffers, cuda::SumType type, std::byte* scratch,
                                    cudaStream_t stream, const Exchange& exchange) const {
  const uint64_t bytes = buffers.count * plan::elementBytes(buffers.type), stride = plan::aligned(bytes);
  SHEAF_RETURN_IF_ERROR(exchange([&](uint64_t peer) {
    return Transfer{buffers.source + peer * bytes, bytes, scratch + peer * stride, bytes};
  }));
  return sum(buffers, type, scratch, stride, buffers.destination, buffers.count, stream);
}

Status ExchangedSums::allReduce(const comm::CollectiveBuffers& buffers, cuda::SumType type, std::byte* scratch,
                                cudaStream_t stream, const Exchange& exchange) const {
  const uint64_t width = plan::elementBytes(buffers.type), whole = buffers.count * width;
  if (isSmall(buffers.count, width)) {
    SHEAF_RETURN_IF_ERROR(exchange([&](uint64_t peer) {
      return Transfer{buffers.source, whole, scratch + peer * plan::aligned(whole), whole};
    }));
    return sum(buffers, type, scratch, plan::aligned(whole), buffers.destination, buffers.count, stream);
  }
  const cuda::SumParts parts(buffers.count, ranks_);
  const uint64_t stride = plan::aligned(parts.largest * width), mine = parts.size(self_) * width;
  SHEAF_RETURN_IF_ERROR(exchange([&](uint64_t peer) {
    return Transfer{buffers.source + parts.begin(peer) * width, parts.size(peer) * width, scratch + peer * stride,
                    mine};
  }));
  std::byte* result = buffers.destination + parts.begin(self_) * width;
  SHEAF_RETURN_IF_ERROR(sum(buffers, type, scratch, stride, result, parts.size(self_), stream));
  return exchange([&](uint64_t peer) {
    std::byte* place = buffers.destination + parts.begin(peer) * width;
    return peer == self_ ? Transfer{} : Transfer{result, mine, place, parts.size(peer) * width};
  });
}

}  // namespace sheaf::nccl
