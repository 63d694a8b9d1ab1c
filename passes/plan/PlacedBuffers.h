// The buffers of an arena that have a place, and the search for the first place where another one fits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "llvm/ADT/STLFunctionalExtras.h"

namespace sheaf::plan_ir {

// When a buffer is alive, in instructions of a round; half-open. Buffers that are not alive at the same time may share
// bytes.
struct LiveRange {
  int64_t begin = 0, end = INT64_MAX;
  int64_t stream = -1;  // the only stream that accesses the buffer; -1: several do
  // The position after the last access. Buffers of one stream may share bytes exactly where their accesses do not
  // overlap, since the stream orders them.
  int64_t lastAccessEnd = INT64_MAX;

  bool sameStream(const LiveRange& other) const { return stream >= 0 && stream == other.stream; }
  bool overlaps(const LiveRange& other) const {
    if (sameStream(other)) return begin < other.lastAccessEnd && other.begin < lastAccessEnd;
    return begin < other.end && other.begin < end;
  }
};

class PlacedBuffers {
 public:
  struct Buffer {
    int64_t begin, end;  // bytes
    LiveRange alive;
    size_t id;
  };

  // Returns the lowest offset >= `at` where `size` bytes conflict with no placed buffer. conflict(id): whether an
  // overlapping buffer of another stream conflicts. aligned(offset): the next offset that the buffer can have.
  int64_t find(int64_t at, int64_t size, const LiveRange& alive, llvm::function_ref<bool(size_t id)> conflict,
               llvm::function_ref<int64_t(int64_t)> aligned) const {
    for (const Block& block : blocks_) {
      if (block.buffers.front().begin >= at + size) break;
      if (!block.anyLive.overlaps(alive) || block.end <= at) continue;
      // All buffers are live and no gap is large enough.
      if (block.allLive.sameStream(alive) && block.allLive.begin < block.allLive.lastAccessEnd &&
          block.allLive.overlaps(alive) && block.maxGap < size) {
        at = aligned(block.end);
        continue;
      }
      for (const Buffer& other : block.buffers) {
        if (other.begin >= at + size) return at;
        if (other.end <= at || !other.alive.overlaps(alive)) continue;
        if (other.alive.sameStream(alive) || conflict(other.id)) at = aligned(other.end);
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
    if (buffers.size() == kMaxBlockBuffers) {
      Block rest;
      rest.buffers.assign(buffers.begin() + kMaxBlockBuffers / 2, buffers.end());
      buffers.resize(kMaxBlockBuffers / 2);
      block->updateSummary();
      rest.updateSummary();
      blocks_.insert(block + 1, std::move(rest));
      return;
    }
    block->updateSummary();
  }

 private:
  static constexpr size_t kMaxBlockBuffers = 512;

  // Neighbours in the arena.
  struct Block {
    std::vector<Buffer> buffers;  // by begin
    LiveRange anyLive, allLive;   // when some buffers may be live, and when all are
    int64_t end = 0, maxGap = 0;  // end offset; largest gap between neighbours, in bytes

    void updateSummary() {
      anyLive = allLive = buffers.front().alive;
      end = buffers.front().begin, maxGap = 0;
      for (const Buffer& buffer : buffers) {
        const LiveRange& one = buffer.alive;
        const int64_t stream = allLive.stream == one.stream ? one.stream : -1;
        anyLive = {std::min(anyLive.begin, one.begin), std::max(anyLive.end, one.end), stream,
                   std::max(anyLive.lastAccessEnd, one.lastAccessEnd)};
        allLive = {std::max(allLive.begin, one.begin), std::min(allLive.end, one.end), stream,
                   std::min(allLive.lastAccessEnd, one.lastAccessEnd)};
        maxGap = std::max(maxGap, buffer.begin - end);
        end = std::max(end, buffer.end);
      }
    }
  };

  std::vector<Block> blocks_;
};

}  // namespace sheaf::plan_ir
