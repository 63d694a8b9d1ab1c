#include "test/emulation/ThreadBlock.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "test/emulation/Context.h"
#include "test/emulation/WarpOrder.h"

namespace sheaf::emulation {

thread_local constinit int blockThread = -1;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kAlignment = 128;
constexpr std::byte kGarbage{0xCB};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated thread block: %s\n", what);
  std::abort();
}

[[noreturn]] void die(const char* what, const Place& one, const Place& other) {
  std::fprintf(stderr, "emulated thread block: %s: %s:%u and %s:%u\n", what, one.file_name(), one.line(),
               other.file_name(), other.line());
  std::abort();
}

bool same(const Place& one, const Place& other) {
  return one.line() == other.line() && one.column() == other.column() &&
         std::strcmp(one.file_name(), other.file_name()) == 0;
}

enum class Waits { kNothing, kBlock, kWarp, kEnded };

// A fiber outlives the blocks that it runs a thread of.
struct Fiber {
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  Context context;
  Waits waits = Waits::kNothing;
  Place place;
  uint64_t value = 0;    // its value in an exchange
  uint64_t barriers[2];  // passed in this block: the block's, and its warp's
  AsyncCopies copies;
};

// For ThreadSanitizer: the threads of a barrier publish to one mark and observe it, and at the next barrier the other:
// a thread that has already reached the next barrier must not count as having been ordered before this one.
struct BarrierMarks {
  char places[2];
  void* at(uint64_t number) { return &places[number % 2]; }
};

// What one OS thread keeps for the blocks that it runs.
struct Block {
  std::vector<std::unique_ptr<Fiber>> made;
  Fiber* fibers[1024];  // the same
  std::vector<std::byte> shared;
  std::byte* sharedBase = nullptr;
  Context scheduler;
  WarpOrder order;
  std::vector<int> warps, lanes;  // as they come now
  const std::function<void(int)>* body = nullptr;
  int threads = 0, ended = 0;
  bool closing = false;
  BarrierMarks block, warp[1024 / kWarp];
  char beginning = 0, end = 0;

  ~Block();
  void run(int count, size_t sharedBytes, const std::function<void(int)>& function);
  void enter(int fiber);
  bool runWarp(int first);
  bool release(int first, int last, Waits kind);
  void wait(Waits kind, const Place& place);
  void barrier(Waits kind, BarrierMarks& marks, const Place& place);
};

// This OS thread's, made when it first runs a block.
thread_local std::unique_ptr<Block> owned;
thread_local constinit Block* block = nullptr;

SHEAF_NO_TSAN void live() {
  Fiber& self = *block->fibers[blockThread];
  self.context.arrive(block->scheduler);
  while (!block->closing) {
    observe(&block->beginning);
    (*block->body)(blockThread);
    publish(&block->end);
    self.waits = Waits::kEnded;
    ++block->ended;
    self.context.switchTo(block->scheduler);
  }
  self.context.depart(block->scheduler);
}

SHEAF_NO_TSAN Block::~Block() {
  closing = true;
  for (size_t i = 0; i < made.size(); ++i) {
    enter(static_cast<int>(i));
    made[i]->context.end();
  }
}

SHEAF_NO_TSAN void Block::enter(int fiber) {
  blockThread = fiber;
  scheduler.switchTo(fibers[fiber]->context);
}

SHEAF_NO_TSAN void Block::run(int count, size_t sharedBytes, const std::function<void(int)>& function) {
  if (blockThread >= 0) die("blocks do not nest");
  if (count < 1 || count > 1024) die("a block has 1 to 1024 threads");
  threads = count;
  body = &function;
  shared.assign(sharedBytes + kAlignment, kGarbage);
  sharedBase = shared.data() + (kAlignment - reinterpret_cast<uintptr_t>(shared.data()) % kAlignment) % kAlignment;
  while (made.size() < static_cast<size_t>(count)) {
    Fiber& fiber = *made.emplace_back(std::make_unique<Fiber>());
    fibers[made.size() - 1] = &fiber;
    fiber.context.start(fiber.stack.get(), kStackBytes, live);
  }
  for (int i = 0; i < count; ++i) {
    Fiber& fiber = *fibers[i];
    fiber.waits = Waits::kNothing;
    fiber.barriers[0] = fiber.barriers[1] = 0;
    fiber.copies.underWay.clear();
    fiber.copies.groups = 0;
  }
  scheduler.adopt();
  publish(&beginning);
  order.nextBlock();
  for (ended = 0; ended < count;) {
    bool moved = false;
    for (int warp : order.arrange((count + kWarp - 1) / kWarp, warps))
      while (runWarp(warp * kWarp)) {
        moved = true;
        if (!order.runsAhead()) break;
      }
    moved |= release(0, count, Waits::kBlock);
    if (!moved && ended < count)
      die("threads wait for others that have ended or wait elsewhere: a barrier in a branch?");
  }
  observe(&end);
  blockThread = -1;
}

// Runs those of a warp's threads that can, in one turn; returns whether there were any.
SHEAF_NO_TSAN bool Block::runWarp(int first) {
  const int last = std::min(first + kWarp, threads);
  bool ran = false;
  for (int lane : order.arrange(last - first, lanes)) {
    if (fibers[first + lane]->waits != Waits::kNothing) continue;
    enter(first + lane);
    ran = true;
  }
  return release(first, last, Waits::kWarp) || ran;
}

// Lets those who wait go on if all do.
SHEAF_NO_TSAN bool Block::release(int first, int last, Waits kind) {
  const Place& place = fibers[first]->place;
  for (int i = first; i < last; ++i) {
    Fiber& fiber = *fibers[i];
    if (fiber.waits != kind) return false;
    if (!same(fiber.place, place)) die("threads meet at different places", place, fiber.place);
  }
  for (int i = first; i < last; ++i) fibers[i]->waits = Waits::kNothing;
  return true;
}

SHEAF_NO_TSAN void Block::wait(Waits kind, const Place& place) {
  Fiber& fiber = *fibers[blockThread];
  fiber.waits = kind;
  fiber.place = place;
  fiber.context.switchTo(scheduler);
}

SHEAF_NO_TSAN void Block::barrier(Waits kind, BarrierMarks& marks, const Place& place) {
  void* here = marks.at(fibers[blockThread]->barriers[kind == Waits::kWarp]++);
  publish(here);
  wait(kind, place);
  observe(here);
}

}  // namespace

void runBlock(int threads, size_t sharedBytes, const std::function<void(int thread)>& body) {
  if (!block) {
    owned = std::make_unique<Block>();
    block = owned.get();
  }
  block->run(threads, sharedBytes, body);
}

SHEAF_NO_TSAN std::byte* sharedMemory() {
  return block->sharedBase;
}

SHEAF_NO_TSAN void blockBarrier(Place place) {
  if (blockThread < 0) die("a barrier outside of a block");
  block->barrier(Waits::kBlock, block->block, place);
}

SHEAF_NO_TSAN void warpBarrier(Place place) {
  if (blockThread < 0) die("a barrier outside of a block");
  block->barrier(Waits::kWarp, block->warp[blockThread / kWarp], place);
}

void refuse(const char* what) {
  die(what);
}

SHEAF_NO_TSAN AsyncCopies& asyncCopies() {
  if (blockThread < 0) die("an asynchronous copy outside of a block");
  return block->fibers[blockThread]->copies;
}

SHEAF_NO_TSAN uint64_t warpExchange(uint64_t value, int source, Place place) {
  if (source < 0 || source >= kWarp) die("an exchange with a lane that is not in the warp");
  if (blockThread < 0) die("an exchange outside of a block");
  int self = blockThread, lane = self / kWarp * kWarp + source;
  block->fibers[self]->value = value;
  block->wait(Waits::kWarp, place);
  uint64_t result = lane < block->threads ? block->fibers[lane]->value : value;
  block->wait(Waits::kWarp, place);  // no thread writes a new value before all have read
  return result;
}

}  // namespace sheaf::emulation
