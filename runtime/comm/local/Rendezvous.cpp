#include "runtime/comm/local/Rendezvous.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include "runtime/base/Spin.h"
#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

// Valid when it is all zero, so that shared memory needs no one process to initialise it.
struct Rendezvous::State {
  struct Slot {
    alignas(kCacheLine) std::atomic<uint64_t> arrivals;  // how many times this rank has come
    CollectiveBuffers buffers;                           // addresses are offsets in the rank's memory
  };
  alignas(kCacheLine) std::atomic<int64_t> arrived;      // ranks that wait for the next generation
  alignas(kCacheLine) std::atomic<uint64_t> generation;  // how many times all have come
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> signals;  // the futex: changes whenever sleepers have to look again
  Slot slots[];
};

uint64_t Rendezvous::stateBytes(int64_t ranks) {
  return sizeof(State) + static_cast<uint64_t>(ranks) * sizeof(State::Slot);
}

Rendezvous::Rendezvous(int64_t ranks, AbortSignal& abort, int spins) : Rendezvous(ranks, abort, spins, Shared{}) {}

Rendezvous::Rendezvous(int64_t ranks, AbortSignal& abort, int spins, Shared shared)
    : ranks_(ranks), abort_(abort), spins_(spins), shared_(std::move(shared)) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  std::byte* memory = shared_.state;
  if (!memory) {
    own_ = std::make_unique<std::byte[]>(stateBytes(ranks) + kCacheLine);
    memory = own_.get() + (kCacheLine - reinterpret_cast<uintptr_t>(own_.get()) % kCacheLine) % kCacheLine;
  }
  state_ = reinterpret_cast<State*>(memory);
  abort_.listen([this] { wakeSleepers(); });
}

Rendezvous::~Rendezvous() = default;

void Rendezvous::post(int64_t rank, const CollectiveBuffers& buffers) {
  CollectiveBuffers& slot = state_->slots[rank].buffers;
  slot = buffers;
  if (shared_.memory.empty()) return;
  const std::byte* memory = shared_.memory[static_cast<size_t>(rank)];
  slot.source = reinterpret_cast<const std::byte*>(buffers.source - memory);
  slot.destination = reinterpret_cast<std::byte*>(buffers.destination - memory);
}

CollectiveBuffers Rendezvous::posted(int64_t rank) const {
  CollectiveBuffers buffers = state_->slots[rank].buffers;
  if (shared_.memory.empty()) return buffers;
  std::byte* memory = shared_.memory[static_cast<size_t>(rank)];
  buffers.source = memory + reinterpret_cast<uintptr_t>(buffers.source);
  buffers.destination = memory + reinterpret_cast<uintptr_t>(buffers.destination);
  return buffers;
}

Status Rendezvous::wait(int64_t rank) {
  // It does not change before this rank has come.
  const uint64_t generation = state_->generation.load(std::memory_order_relaxed);
  state_->slots[rank].arrivals.store(generation + 1, std::memory_order_relaxed);
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    state_->arrived.store(0, std::memory_order_relaxed);
    // Sequentially consistent with the count of sleepers: either a sleeper sees the generation or we see the sleeper.
    state_->generation.store(generation + 1);
    if (state_->sleepers.load() > 0) wakeSleepers();
  } else if (!spinUntil(spins_, [&] { return state_->generation.load() != generation || abort_.raised(); })) {
    state_->sleepers.fetch_add(1);
    Status status = sleep(generation);
    state_->sleepers.fetch_sub(1);
    SHEAF_RETURN_IF_ERROR(status);
  }
  // The generation may have been stored by another process, which ThreadSanitizer does not see. What it does see is
  // that the ranks of this process have arrived.
  state_->arrived.load(std::memory_order_acquire);
  return abort_.raised() ? abort_.status() : Status();
}

Status Rendezvous::sleep(uint64_t generation) {
  using Clock = std::chrono::steady_clock;
  const bool limited = shared_.limit.count() > 0;
  const auto deadline = Clock::now() + shared_.limit;
  for (;;) {
    const uint32_t seen = state_->signals.load();
    if (state_->generation.load() != generation || abort_.raised()) return {};
    timespec time{};
    if (limited) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
      if (left <= 0) return late(generation);
      time = {left / 1'000'000'000, left % 1'000'000'000};
    }
    syscall(SYS_futex, &state_->signals, shared_.state ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen,
            limited ? &time : nullptr, nullptr, 0);
  }
}

void Rendezvous::wakeSleepers() {
  state_->signals.fetch_add(1);
  syscall(SYS_futex, &state_->signals, shared_.state ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Status Rendezvous::late(uint64_t generation) const {
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (state_->slots[rank].arrivals.load(std::memory_order_relaxed) > generation) continue;
    std::string name = shared_.describe(rank);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return Status::error(cat("nothing has come from ", listText(names), " for ",
                           secondsText(static_cast<double>(shared_.limit.count()) / 1000), " (SHEAF_TIMEOUT)"));
}

}  // namespace sheaf::comm
