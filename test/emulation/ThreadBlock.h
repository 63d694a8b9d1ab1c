// A GPU's thread block on one CPU thread: its threads are fibers that take turns, each running until it meets a barrier
// or an exchange with its warp, or ends. So kernels are tested, with their indices, barriers and shuffles, on machines
// without a GPU. A barrier that not all threads of the block reach, or an exchange that not all of a warp's do, or
// threads that meet at different places, end the program with a message. That a barrier is missing shows in the
// results, because warps run in many orders (WarpOrder.h), and to ThreadSanitizer, to which fibers are threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <vector>

namespace sheaf::emulation {

inline constexpr int kWarp = 32;

// Runs `body` once for each of `threads` threads, with `sharedBytes` of memory that they share. Blocks of one kernel
// run one after the other. Calls do not nest.
void runBlock(int threads, size_t sharedBytes, const std::function<void(int thread)>& body);

// Where a barrier or an exchange is in a kernel's source. All who meet must be at the same.
using Place = std::source_location;

// Of the block that runs on this OS thread; -1 if none does. Known without a call: it is read for every threadIdx.
extern thread_local constinit int blockThread;

// Inside of runBlock:
inline int currentThread() {
  return blockThread;
}
// Full of garbage when a block begins; aligned to 128 bytes.
std::byte* sharedMemory();
// Returns when every thread of the block has called it.
void blockBarrier(Place place = Place::current());
// Returns when every thread of the warp has called it.
void warpBarrier(Place place = Place::current());
// The value that lane `source` of the caller's warp has in this exchange; every thread of the warp takes part. As on
// a GPU, it orders nothing that the threads do in memory.
uint64_t warpExchange(uint64_t value, int source, Place place = Place::current());

// Ends the program with a message.
[[noreturn]] void refuse(const char* what);

// Copies that the current thread has started and not waited for, in the order in which they were started. Each belongs
// to a group, which commitCopies() closes; the last one may still be open.
struct AsyncCopies {
  static constexpr size_t kBytes = 16;
  static constexpr int kGarbage = 0xCB;
  struct Copy {
    void* to;
    const void* from;  // null for zeros
    int group;
  };
  std::vector<Copy> underWay;
  int groups = 0;  // closed
};
AsyncCopies& asyncCopies();

// As cp.async: copies 16 bytes, or zeros if there is no source, some time before the thread's wait for the copy
// returns. Until then the destination holds garbage. The source is read as late as it may be. What other threads of the
// block see of it a barrier after the wait decides, as with any store.
inline void copyAsync(void* shared, const void* source) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(source);
  if (bits % AsyncCopies::kBytes != 0) refuse("an asynchronous copy is not aligned to its 16 bytes");
  AsyncCopies& copies = asyncCopies();
  std::memset(shared, AsyncCopies::kGarbage, AsyncCopies::kBytes);
  copies.underWay.push_back({shared, source, copies.groups});
}
inline void commitCopies() {
  ++asyncCopies().groups;
}
// Returns when at most `pending` of the closed groups are under way: the latest ones.
inline void awaitCopies(int pending) {
  AsyncCopies& copies = asyncCopies();
  size_t done = 0;
  for (; done < copies.underWay.size() && copies.underWay[done].group < copies.groups - pending; ++done) {
    const AsyncCopies::Copy& copy = copies.underWay[done];
    if (copy.from)
      std::memcpy(copy.to, copy.from, AsyncCopies::kBytes);
    else
      std::memset(copy.to, 0, AsyncCopies::kBytes);
  }
  copies.underWay.erase(copies.underWay.begin(), copies.underWay.begin() + static_cast<ptrdiff_t>(done));
}

}  // namespace sheaf::emulation
