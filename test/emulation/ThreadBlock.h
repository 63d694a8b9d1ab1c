// A GPU's thread block on one CPU thread: its threads are fibers that take turns, each running until it meets a barrier
// or an exchange with its warp, or ends. So kernels are tested, with their indices, barriers and shuffles, on machines
// without a GPU. A barrier that not all threads of the block reach, or an exchange that not all of a warp's do, ends
// the program with a message, as does a block that would hang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace sheaf::emulation {

inline constexpr int kWarp = 32;

// Runs `body` once for each of `threads` threads, with `sharedBytes` of memory that they share. Blocks of one kernel
// run one after the other. Calls do not nest.
void runBlock(int threads, size_t sharedBytes, const std::function<void(int thread)>& body);

// Inside of runBlock:
int currentThread();
// Zeroed for each block; aligned to 128 bytes.
std::byte* sharedMemory();
// Returns when every thread of the block that has not ended has called it.
void blockBarrier();
// Returns when every thread of the warp has called it.
void warpBarrier();
// The value that lane `source` of the caller's warp brings to this exchange; every thread of the warp takes part.
uint64_t warpExchange(uint64_t value, int source);

}  // namespace sheaf::emulation
