#include "test/bench/Traffic.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/Types.h"
#include "runtime/plan/calls/Moves.h"

namespace sheaf::bench {
namespace {

constexpr uint64_t kBlock = 16 << 10;  // bytes that the cache takes and evicts together
constexpr size_t kNever = SIZE_MAX;

struct Access {
  uint64_t block = 0;
  uint32_t bytes = 0;
  int instruction = 0;
  bool reads = false, writes = false;
  size_t next = kNever;  // the next access of the same block
};

// What a body's instructions access, each block once an instruction. Rank 0's addresses stand for every rank's.
std::vector<Access> accessesOf(const plan::Plan& plan) {
  std::vector<Access> accesses;
  for (int i = 0; i < plan.body_size(); ++i) {
    std::map<uint64_t, Access> blocks;
    // A gather reads some rows of its table, which ones is known when it runs. Leaving the table out keeps this a
    // floor.
    const bool gathers = plan.body(i).call().function() == plan::Schema<plan::GatherCall>::kName;
    const plan::Operand* table = gathers && plan.body(i).operands_size() ? &plan.body(i).operands(0) : nullptr;
    plan::forEachOperand(plan.body(i), [&](const plan::Operand& operand) {
      if (&operand == table) return;
      const uint64_t begin = plan.buffers(static_cast<int>(operand.buffer())).offset() + operand.offset();
      for (uint64_t at = begin; at < begin + operand.bytes();) {
        const uint64_t block = at / kBlock, end = std::min((block + 1) * kBlock, begin + operand.bytes());
        Access& access = blocks[block];
        access.block = block, access.instruction = i;
        access.bytes = static_cast<uint32_t>(std::min<uint64_t>(access.bytes + end - at, kBlock));
        access.reads |= operand.access() != plan::WRITE;
        access.writes |= operand.access() != plan::READ;
        at = end;
      }
    });
    for (const auto& [block, access] : blocks) accesses.push_back(access);
  }
  return accesses;
}

}  // namespace

std::vector<double> memoryTraffic(const plan::Plan& plan, uint64_t cacheBytes) {
  // Three rounds of the body: the second one begins with what the first one leaves, and knows what the third one needs.
  constexpr size_t kRounds = 3;
  std::vector<Access> all;
  const std::vector<Access> once = accessesOf(plan);
  for (size_t round = 0; round < kRounds; ++round) all.insert(all.end(), once.begin(), once.end());
  std::map<uint64_t, size_t> next;
  for (size_t i = all.size(); i-- > 0;) {
    auto known = next.find(all[i].block);
    all[i].next = known == next.end() ? kNever : known->second;
    next[all[i].block] = i;
  }

  struct Held {
    size_t next = kNever;
    uint32_t bytes = 0;
    int writer = -1;  // the instruction whose values memory does not have yet
  };
  std::map<uint64_t, Held> cache;
  std::set<std::pair<size_t, uint64_t>> byNextUse;
  std::vector<double> traffic(static_cast<size_t>(plan.body_size()));
  uint64_t used = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Access& access = all[i];
    const bool counts = i / once.size() == 1;
    auto [place, fresh] = cache.try_emplace(access.block);
    Held& held = place->second;
    if (!fresh) {
      byNextUse.erase({held.next, access.block});
      used -= held.bytes;
    }
    if (fresh && access.reads && counts) traffic[static_cast<size_t>(access.instruction)] += access.bytes;
    held = {access.next, std::max(held.bytes, access.bytes), access.writes ? access.instruction : held.writer};
    byNextUse.emplace(held.next, access.block);
    used += held.bytes;
    while (used > cacheBytes) {
      const auto [use, block] = *byNextUse.rbegin();
      byNextUse.erase(std::prev(byNextUse.end()));
      const Held& evicted = cache[block];
      if (evicted.writer >= 0 && counts) traffic[static_cast<size_t>(evicted.writer)] += evicted.bytes;
      used -= evicted.bytes;
      cache.erase(block);
    }
  }
  return traffic;
}

}  // namespace sheaf::bench
