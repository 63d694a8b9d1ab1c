// A GPU's thread block on one CPU thread: its threads are fibers that take turns, each running until it meets a barrier
// or an exchange with its warp, or ends. So kernels are tested, with their indices, barriers and shuffles, on machines
// without a GPU. A barrier that not all threads of the block reach, or an exchange that not all of a warp's do, or
// threads that meet at different places, end the program with a message. That a barrier is missing shows in the
// results, because warps run in many orders (WarpOrder.h), and to ThreadSanitizer, to which fibers are threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

namespace sheaf::emulation {

inline constexpr int kWarp = 32;

// Runs `body` once for each of `threads` threads, with `sharedBytes` of memory that they share. Blocks of one kernel
// run one after the other. Calls do not nest.
void runBlock(int threads, size_t sharedBytes, const std::function<void(int thread)>& body);

// Where a barrier or an exchange is in a kernel's source. All who meet must be at the same.
using Place = std::source_location;

// Inside of runBlock:
int currentThread();
// Full of garbage when a block begins; aligned to 128 bytes.
std::byte* sharedMemory();
// Returns when every thread of the block has called it.
void blockBarrier(Place place = Place::current());
// Returns when every thread of the warp has called it.
void warpBarrier(Place place = Place::current());
// The value that lane `source` of the caller's warp has in this exchange; every thread of the warp takes part. As on
// a GPU, it orders nothing that the threads do in memory.
uint64_t warpExchange(uint64_t value, int source, Place place = Place::current());

}  // namespace sheaf::emulation
