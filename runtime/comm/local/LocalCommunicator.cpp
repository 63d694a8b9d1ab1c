#include "runtime/comm/local/LocalCommunicator.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/local/Reduce.h"

namespace sheaf::comm {

LocalCommunicator::LocalCommunicator(int64_t ranks, AbortSignal& abort, int spins)
    : ranks_(ranks), abort_(abort), meeting_(ranks, abort, spins), posted_(ranks) {}

Status LocalCommunicator::run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead) {
  const uint64_t width = elementBytes(buffers.type);
  if (width == 0 || (buffers.op != plan::ALL_GATHER && !canSum(buffers.type)))
    return Status::error("a collective cannot sum elements of type " + plan::ElementType_Name(buffers.type));
  posted_[rank] = buffers;
  if (!meeting_.wait()) return abort_.status();
  for (const CollectiveBuffers& peer : posted_)
    if (peer.op != buffers.op || peer.type != buffers.type || peer.count != buffers.count)
      return Status::error("ranks met in different collectives; the plan is not the same on all ranks");

  auto sumParts = [&](uint64_t begin, uint64_t count, std::byte* destination) {
    std::vector<const std::byte*> sources(ranks_);
    for (int64_t peer = 0; peer < ranks_; ++peer) {
      sources[peer] = posted_[peer].source + begin * width;
      if (onPeerRead && peer != rank) onPeerRead(sources[peer], count * width);
    }
    sumInRankOrder(buffers.type, sources, destination, count);
  };
  auto copyFrom = [&](int64_t peer, const std::byte* source, std::byte* destination, uint64_t count) {
    if (source == destination || count == 0) return;
    if (onPeerRead && peer != rank) onPeerRead(source, count * width);
    std::memcpy(destination, source, count * width);
  };

  switch (buffers.op) {
    case plan::ALL_GATHER:
      // Every rank starts with its own part and goes round, so that the ranks read from different peers at a time.
      for (int64_t i = 0; i < ranks_; ++i) {
        int64_t peer = (rank + i) % ranks_;
        copyFrom(peer, posted_[peer].source, buffers.destination + peer * buffers.count * width, buffers.count);
      }
      break;
    case plan::REDUCE_SCATTER:
      sumParts(rank * buffers.count, buffers.count, buffers.destination);
      break;
    case plan::ALL_REDUCE: {
      auto begin = [&](int64_t part) {
        return buffers.count / ranks_ * part + std::min<uint64_t>(part, buffers.count % ranks_);
      };
      sumParts(begin(rank), begin(rank + 1) - begin(rank), buffers.destination + begin(rank) * width);
      if (!meeting_.wait()) return abort_.status();
      for (int64_t i = 1; i < ranks_; ++i) {
        int64_t peer = (rank + i) % ranks_;
        uint64_t offset = begin(peer) * width;
        copyFrom(peer, posted_[peer].destination + offset, buffers.destination + offset, begin(peer + 1) - begin(peer));
      }
      break;
    }
    default:
      return Status::error("unknown collective");
  }
  return meeting_.wait() ? Status() : abort_.status();
}

}  // namespace sheaf::comm
