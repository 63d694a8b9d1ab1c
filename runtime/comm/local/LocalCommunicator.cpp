#include "runtime/comm/local/LocalCommunicator.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/local/Reduce.h"
#include "runtime/plan/Words.h"

namespace sheaf::comm {
namespace {

// Up to here an all-reduce is summed by every rank for itself: that saves a rendezvous.
constexpr uint64_t kSmallBytes = 4096;

}  // namespace

Status LocalCommunicator::run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead) {
  const uint64_t width = elementBytes(buffers.type);
  if (width == 0 || (buffers.op != plan::ALL_GATHER && !canSum(buffers.type)))
    return Status::error("a collective cannot sum elements of type " + plan::word(buffers.type));
  const int64_t ranks = rendezvous_.ranks();
  rendezvous_.post(rank, buffers);
  SHEAF_RETURN_IF_ERROR(rendezvous_.wait(rank));
  std::vector<CollectiveBuffers> posted;
  posted.reserve(static_cast<size_t>(ranks));
  for (int64_t i = 0; i < ranks; ++i) {
    const CollectiveBuffers& peer = posted.emplace_back(i == rank ? buffers : rendezvous_.posted(i));
    if (peer.op != buffers.op || peer.type != buffers.type || peer.count != buffers.count)
      return Status::error("ranks met in different collectives; the plan is not the same on all ranks");
  }

  auto sumParts = [&](uint64_t begin, uint64_t count, std::byte* destination) {
    std::vector<const std::byte*> sources(ranks);
    for (int64_t peer = 0; peer < ranks; ++peer) {
      sources[peer] = posted[peer].source + begin * width;
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
      for (int64_t i = 0; i < ranks; ++i) {
        int64_t peer = (rank + i) % ranks;
        copyFrom(peer, posted[peer].source, buffers.destination + peer * buffers.count * width, buffers.count);
      }
      break;
    case plan::REDUCE_SCATTER:
      sumParts(rank * buffers.count, buffers.count, buffers.destination);
      break;
    case plan::ALL_REDUCE: {
      if (buffers.count * width <= kSmallBytes) {
        alignas(8) std::byte sum[kSmallBytes];
        sumParts(0, buffers.count, sum);
        SHEAF_RETURN_IF_ERROR(rendezvous_.wait(rank));  // the destination may be a source
        if (buffers.count > 0) std::memcpy(buffers.destination, sum, buffers.count * width);
        return {};
      }
      auto begin = [&](int64_t part) {
        return buffers.count / ranks * part + std::min<uint64_t>(part, buffers.count % ranks);
      };
      sumParts(begin(rank), begin(rank + 1) - begin(rank), buffers.destination + begin(rank) * width);
      SHEAF_RETURN_IF_ERROR(rendezvous_.wait(rank));
      for (int64_t i = 1; i < ranks; ++i) {
        int64_t peer = (rank + i) % ranks;
        uint64_t offset = begin(peer) * width;
        copyFrom(peer, posted[peer].destination + offset, buffers.destination + offset, begin(peer + 1) - begin(peer));
      }
      break;
    }
    default:
      return Status::error("unknown collective");
  }
  return rendezvous_.wait(rank);
}

}  // namespace sheaf::comm
