// A stream of the GPU and a thread of the host take turns by words in host memory, which no call of CUDA has to
// deliver: so a graph can hold it, and the thread needs nothing of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

// In pinned memory, zeroed. Each side counts what it has done in a line of its own. Both only ever count up, so that a
// graph that is launched again goes on where it was.
struct HandOver {
  alignas(64) uint64_t reported;  // by the stream
  uint64_t expected;              // of `done`, by the stream for itself
  alignas(64) uint64_t done;      // by the thread
  uint64_t stop;                  // not 0: nothing is waited for any more
};

// When the stream comes here it reports `report` more to the thread, then waits until the thread has done `await` more
// than what was awaited before. What the thread wrote to pinned memory before it counted is there for what follows on
// the stream, and what the stream wrote there before is there for the thread.
cudaError_t handOver(HandOver* words, uint32_t report, uint32_t await, cudaStream_t stream);

}  // namespace sheaf::cuda
