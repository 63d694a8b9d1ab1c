// The buffers of an arena that have a place, and the search for the first place where another one fits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "llvm/ADT/STLFunctionalExtras.h"

namespace sheaf::plan_ir {

// When a buffer is alive, in instructions of a round; half-open. Buffers that are not alive at the same time may share
// bytes.
struct Alive {
  int64_t begin = 0, end = INT64_MAX;
  // The stream of all accesses, if they are of one, and what follows the last one in the round; else -1. Buffers of the
  // same stream may share bytes exactly where their accesses do not overlap: the stream orders them.
  int64_t stream = -1, lastEnd = INT64_MAX;

  bool ofOneStream(const Alive& other) const { return stream >= 0 && stream == other.stream; }
  bool overlaps(const Alive& other) const {
    if (ofOneStream(other)) return begin < other.lastEnd && other.begin < lastEnd;
    return begin < other.end && other.begin < end;
  }
};

class PlacedBuffers {
 public:
  struct Buffer {
    int64_t begin, end;  // bytes
    Alive alive;
    size_t id;
  };

  // Returns the first place from `at` on that is free of buffers that are in conflict with one of `size` bytes.
  // conflict(id): whether a buffer of other streams that is alive at the same time is; aligned(place): the next place
  // that the buffer can have.
  int64_t find(int64_t at, int64_t size, const Alive& alive, llvm::function_ref<bool(size_t id)> conflict,
               llvm::function_ref<int64_t(int64_t)> aligned) const {
    for (const Block& block : blocks_) {
      if (block.buffers.front().begin >= at + size) break;
      if (!block.hull.overlaps(alive) || block.end <= at) continue;
      // All are alive then, and the buffer fits between no two of them.
      if (block.common.ofOneStream(alive) && block.common.begin < block.common.lastEnd &&
          block.common.overlaps(alive) && block.gap < size) {
        at = aligned(block.end);
        continue;
      }
      for (const Buffer& other : block.buffers) {
        if (other.begin >= at + size) return at;
        if (other.end <= at || !other.alive.overlaps(alive)) continue;
        if (other.alive.ofOneStream(alive) || conflict(other.id)) at = aligned(other.end);
      }
    }
    return at;
  }

  void insert(const Buffer& buffer) {
    auto after = [](const Buffer& a, const Buffer& b) { return a.begin < b.begin; };
    auto block = std::partition_point(blocks_.begin(), blocks_.end(),
                                      [&](const Block& b) { return b.buffers.front().begin <= buffer.begin; });
    if (block != blocks_.begin()) --block;
    if (block == blocks_.end()) block = blocks_.emplace(block);
    std::vector<Buffer>& buffers = block->buffers;
    buffers.insert(std::upper_bound(buffers.begin(), buffers.end(), buffer, after), buffer);
    if (buffers.size() == kMost) {
      Block rest;
      rest.buffers.assign(buffers.begin() + kMost / 2, buffers.end());
      buffers.resize(kMost / 2);
      block->sum();
      rest.sum();
      blocks_.insert(block + 1, std::move(rest));
      return;
    }
    block->sum();
  }

 private:
  static constexpr size_t kMost = 512;

  // Neighbours in the arena.
  struct Block {
    std::vector<Buffer> buffers;  // by begin
    Alive hull, common;           // when some may be alive, and when all are
    int64_t end = 0, gap = 0;     // the last byte, and the most bytes between neighbours that no buffer has

    void sum() {
      hull = common = buffers.front().alive;
      end = buffers.front().begin, gap = 0;
      for (const Buffer& buffer : buffers) {
        const Alive& one = buffer.alive;
        const int64_t stream = common.stream == one.stream ? one.stream : -1;
        hull = {std::min(hull.begin, one.begin), std::max(hull.end, one.end), stream,
                std::max(hull.lastEnd, one.lastEnd)};
        common = {std::max(common.begin, one.begin), std::min(common.end, one.end), stream,
                  std::min(common.lastEnd, one.lastEnd)};
        gap = std::max(gap, buffer.begin - end);
        end = std::max(end, buffer.end);
      }
    }
  };

  std::vector<Block> blocks_;
};

}  // namespace sheaf::plan_ir
