#include "test/emulation/ThreadBlock.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "test/emulation/Context.h"

namespace sheaf::emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kAlignment = 128;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated thread block: %s\n", what);
  std::abort();
}

enum class Waits { kNothing, kBlock, kWarp, kEnded };

struct Fiber {
  Context context;
  Waits waits = Waits::kNothing;
  uint64_t value = 0;  // that it brings to an exchange
};

// What one OS thread keeps for the blocks that it runs: stacks are made once.
struct Block {
  std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<Fiber> fibers;
  std::vector<std::byte> shared;
  std::byte* sharedBase = nullptr;
  Context scheduler;
  const std::function<void(int)>* body = nullptr;
  int threads = 0, current = -1;

  void run(int count, size_t sharedBytes, const std::function<void(int)>& function);
  bool release(int first, int last, Waits kind);
  void wait(Waits kind);
};

thread_local Block block;

void enter() {
  (*block.body)(block.current);
  block.fibers[block.current].waits = Waits::kEnded;
  block.fibers[block.current].context.switchTo(block.scheduler);
}

void Block::run(int count, size_t sharedBytes, const std::function<void(int)>& function) {
  if (current >= 0) die("blocks do not nest");
  if (count < 1 || count > 1024) die("a block has 1 to 1024 threads");
  threads = count;
  body = &function;
  shared.assign(sharedBytes + kAlignment, std::byte{0});
  sharedBase = shared.data() + (kAlignment - reinterpret_cast<uintptr_t>(shared.data()) % kAlignment) % kAlignment;
  while (stacks.size() < static_cast<size_t>(count))
    stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
  if (fibers.size() < static_cast<size_t>(count)) fibers.resize(count);
  for (int i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    fiber.context.start(stacks[i].get(), kStackBytes, enter);
    fiber.waits = Waits::kNothing;
  }
  for (bool ended = false; !ended;) {
    bool moved = false;
    ended = true;
    for (int i = 0; i < count; ++i) {
      if (fibers[i].waits == Waits::kNothing) {
        current = i;
        scheduler.switchTo(fibers[i].context);
        moved = true;
      }
      ended &= fibers[i].waits == Waits::kEnded;
    }
    for (int i = 0; i < count; i += kWarp) moved |= release(i, std::min(i + kWarp, count), Waits::kWarp);
    moved |= release(0, count, Waits::kBlock);
    if (!moved && !ended) die("threads wait for others that have ended or wait elsewhere: a barrier in a branch?");
  }
  current = -1;
}

// Lets those who wait go on if all do. Of a block those that have ended do not count, of a warp they must not have.
bool Block::release(int first, int last, Waits kind) {
  bool any = false;
  for (int i = first; i < last; ++i) {
    if (fibers[i].waits == kind)
      any = true;
    else if (fibers[i].waits != Waits::kEnded || kind == Waits::kWarp)
      return false;
  }
  if (!any) return false;
  for (int i = first; i < last; ++i)
    if (fibers[i].waits == kind) fibers[i].waits = Waits::kNothing;
  return true;
}

void Block::wait(Waits kind) {
  if (current < 0) die("a barrier outside of a block");
  Fiber& fiber = fibers[current];
  fiber.waits = kind;
  fiber.context.switchTo(scheduler);
}

}  // namespace

void runBlock(int threads, size_t sharedBytes, const std::function<void(int thread)>& body) {
  block.run(threads, sharedBytes, body);
}

int currentThread() {
  return block.current;
}

std::byte* sharedMemory() {
  return block.sharedBase;
}

void blockBarrier() {
  block.wait(Waits::kBlock);
}

void warpBarrier() {
  block.wait(Waits::kWarp);
}

uint64_t warpExchange(uint64_t value, int source) {
  if (source < 0 || source >= kWarp) die("an exchange with a lane that is not in the warp");
  int self = block.current, lane = self / kWarp * kWarp + source;
  block.fibers[self].value = value;
  block.wait(Waits::kWarp);
  uint64_t result = lane < block.threads ? block.fibers[lane].value : value;
  block.wait(Waits::kWarp);  // nobody brings a new value before all have read
  return result;
}

}  // namespace sheaf::emulation
