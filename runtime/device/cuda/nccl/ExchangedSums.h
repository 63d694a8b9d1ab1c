// Sums over ranks with a GPU each that do not depend on the number of processes: every rank sends every other one the
// terms that it sums, and a kernel adds them in the order of a fixed tree.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/Status.h"
#include "runtime/comm/Communicator.h"
#include "runtime/device/cuda/SumTypes.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::nccl {

// What goes to a peer and comes from it; nothing where there are no bytes.
struct Transfer {
  const std::byte* send;
  uint64_t sendBytes;
  std::byte* receive;
  uint64_t receiveBytes;
};
// Does the transfers with all ranks, this one included, in the order of the sum's stream.
using Exchange = std::function<Status(const std::function<Transfer(uint64_t peer)>&)>;

class ExchangedSums {
 public:
  ExchangedSums(uint64_t ranks, uint64_t self) : ranks_(ranks), self_(self) {}

  // A reduce-scatter or an all-reduce, with plan::collectedBytes of scratch.
  Status enqueue(const comm::CollectiveBuffers& buffers, cuda::SumType type, std::byte* scratch, cudaStream_t stream,
                 const Exchange& exchange) const;

 private:
  Status reduceScatter(const comm::CollectiveBuffers& buffers, cuda::SumType type, std::byte* scratch,
                       cudaStream_t stream, const Exchange& exchange) const;
  Status allReduce(const comm::CollectiveBuffers& buffers, cuda::SumType type, std::byte* scratch, cudaStream_t stream,
                   const Exchange& exchange) const;
  Status sum(const comm::CollectiveBuffers& buffers, cuda::SumType type, const std::byte* scratch, uint64_t stride,
             std::byte* destination, uint64_t count, cudaStream_t stream) const;

  const uint64_t ranks_, self_;
};

}  // namespace sheaf::nccl
