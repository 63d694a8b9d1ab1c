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
    alignas(kCacheLine) std::atomic<uint64_t> arrivals;  // how many times this rank has arrived
    // Counted by this rank, for itself: how often it has posted and shared work, and all parts of that work.
    uint64_t posts, rounds, parts;
    // In turn, so that a rank may post again while another one still reads: that one must arrive before the next turn.
    // Addresses are offsets in the rank's memory.
    CollectiveBuffers buffers[2];
    // Of the part of this number: the last round in which a rank took it, which rank, and the last round it was done
    // in.
    alignas(kCacheLine) std::atomic<uint64_t> taken;
    std::atomic<int64_t> taker;
    std::atomic<uint64_t> done;
  };
  alignas(kCacheLine) std::atomic<int64_t> arrived;      // ranks that wait for the next generation
  alignas(kCacheLine) std::atomic<uint64_t> generation;  // how many times all have arrived
  alignas(kCacheLine) std::atomic<uint64_t> finished;    // parts that were done, of all rounds
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
  State::Slot& mine = state_->slots[rank];
  CollectiveBuffers& slot = mine.buffers[++mine.posts % 2];
  slot = buffers;
  if (shared_.memory.empty()) return;
  const std::byte* memory = shared_.memory[static_cast<size_t>(rank)];
  slot.source = reinterpret_cast<const std::byte*>(buffers.source - memory);
  slot.destination = reinterpret_cast<std::byte*>(buffers.destination - memory);
}

CollectiveBuffers Rendezvous::posted(int64_t reader, int64_t rank) const {
  CollectiveBuffers buffers = state_->slots[rank].buffers[state_->slots[reader].posts % 2];
  if (shared_.memory.empty()) return buffers;
  std::byte* memory = shared_.memory[static_cast<size_t>(rank)];
  buffers.source = memory + reinterpret_cast<uintptr_t>(buffers.source);
  buffers.destination = memory + reinterpret_cast<uintptr_t>(buffers.destination);
  return buffers;
}

Status Rendezvous::wait(int64_t rank, const std::function<void()>& last) {
  // It does not change before this rank has arrived.
  const uint64_t generation = state_->generation.load(std::memory_order_relaxed);
  state_->slots[rank].arrivals.store(generation + 1, std::memory_order_relaxed);
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    if (last) last();
    state_->arrived.store(0, std::memory_order_relaxed);
    // Sequentially consistent with the count of sleepers: either a sleeper sees the generation or we see the sleeper.
    state_->generation.store(generation + 1);
    if (state_->sleepers.load() > 0) wakeSleepers();
  } else {
    SHEAF_RETURN_IF_ERROR(waitFor(
        [&] { return state_->generation.load() != generation; },
        [&](int64_t other) { return state_->slots[other].arrivals.load(std::memory_order_relaxed) <= generation; }));
  }
  // The generation may have been stored by another process, which ThreadSanitizer does not see. What it does see is
  // that the ranks of this process have arrived.
  state_->arrived.load(std::memory_order_acquire);
  return abort_.raised() ? abort_.status() : Status();
}

Status Rendezvous::share(int64_t rank, int64_t parts, const std::function<void(int64_t part)>& work) {
  State::Slot& mine = state_->slots[rank];
  const uint64_t round = ++mine.rounds, all = mine.parts += static_cast<uint64_t>(parts);
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t part = (rank + i) % parts;
    State::Slot& slot = state_->slots[part];
    uint64_t taken = slot.taken.load(std::memory_order_relaxed);
    // Fails if another rank takes it first: no rank begins the next round before every part of this one is taken.
    if (taken >= round || !slot.taken.compare_exchange_strong(taken, round, std::memory_order_relaxed)) continue;
    slot.taker.store(rank, std::memory_order_relaxed);
    work(part);
    slot.done.store(round, std::memory_order_relaxed);
    // Sequentially consistent, as the generation in wait().
    if (state_->finished.fetch_add(1) + 1 == all && state_->sleepers.load() > 0) wakeSleepers();
  }
  auto isMissing = [&](int64_t other) {
    for (int64_t part = 0; part < parts; ++part)
      if (const State::Slot& slot = state_->slots[part]; slot.done.load() < round && slot.taker.load() == other)
        return true;
    return false;
  };
  SHEAF_RETURN_IF_ERROR(waitFor([&] { return state_->finished.load() >= all; }, isMissing));
  return abort_.raised() ? abort_.status() : Status();
}

template <typename Done, typename Missing>
Status Rendezvous::waitFor(const Done& done, const Missing& isMissing) {
  if (spinUntil(spins_, [&] { return done() || abort_.raised(); })) return {};
  state_->sleepers.fetch_add(1);
  Status status = sleep(done, isMissing);
  state_->sleepers.fetch_sub(1);
  return status;
}

template <typename Done, typename Missing>
Status Rendezvous::sleep(const Done& done, const Missing& isMissing) {
  using Clock = std::chrono::steady_clock;
  const bool limited = shared_.limit.count() > 0;
  const auto deadline = Clock::now() + shared_.limit;
  for (;;) {
    const uint32_t seen = state_->signals.load();
    if (done() || abort_.raised()) return {};
    timespec time{};
    if (limited) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
      if (left <= 0) return late(isMissing);
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

template <typename Missing>
Status Rendezvous::late(const Missing& isMissing) const {
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (!isMissing(rank)) continue;
    std::string name = shared_.describe(rank);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return Status::error(cat("nothing has come from ", listText(names), " for ",
                           secondsText(static_cast<double>(shared_.limit.count()) / 1000), " (SHEAF_TIMEOUT)"));
}

}  // namespace sheaf::comm
