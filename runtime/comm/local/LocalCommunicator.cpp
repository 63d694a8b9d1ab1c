#include "runtime/comm/local/LocalCommunicator.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/comm/local/Reduce.h"
#include "runtime/plan/Words.h"

namespace sheaf::comm {
namespace {

// Up to as many bytes, of all ranks together, the last rank to arrive does everyone's part: the others are woken once.
constexpr uint64_t kSmallBytes = 64 << 10;

// A collective whose ranks have all arrived, as one of them sees it.
class Collective {
 public:
  Collective(int64_t rank, std::vector<CollectiveBuffers> posted, const PeerReadListener& onPeerRead)
      : rank_(rank), ranks_(static_cast<int64_t>(posted.size())), posted_(std::move(posted)), onPeerRead_(onPeerRead) {}

  bool agrees() const {
    return std::all_of(posted_.begin(), posted_.end(), [this](const CollectiveBuffers& other) {
      return other.op == any().op && other.type == any().type && other.count == any().count &&
             other.continues == any().continues;
    });
  }

  // The destination of a rank.
  void gather(int64_t part) const {
    // Every rank starts with its own shard and continues in rank order, so that ranks read from different peers at a
    // time.
    for (int64_t i = 0; i < ranks_; ++i) {
      const int64_t peer = (part + i) % ranks_;
      copy(peer, posted_[peer].source, posted_[part].destination + peer * bytes(), bytes());
    }
  }
  void reduceScatter(int64_t part) const { sum(part * any().count, any().count, posted_[part].destination); }
  // The destination of a rank gets its share of the sum ...
  void reduceShare(int64_t part) const {
    sum(begin(part), begin(part + 1) - begin(part), posted_[part].destination + begin(part) * width());
  }
  // ... and, when all have theirs, the other shares.
  void gatherShares(int64_t part) const {
    for (int64_t i = 1; i < ranks_; ++i) {
      const int64_t peer = (part + i) % ranks_;
      const uint64_t offset = begin(peer) * width();
      copy(peer, posted_[peer].destination + offset, posted_[part].destination + offset,
           (begin(peer + 1) - begin(peer)) * width());
    }
  }

  uint64_t allBytes() const {
    return any().count * width() * static_cast<uint64_t>(any().op == plan::ALL_REDUCE ? ranks_ : ranks_ * ranks_);
  }

 private:
  const CollectiveBuffers& any() const { return posted_.front(); }
  uint64_t width() const { return plan::elementBytes(any().type); }
  uint64_t bytes() const { return any().count * width(); }
  // The first element of a rank's share of an all-reduce.
  uint64_t begin(int64_t part) const {
    return any().count / ranks_ * part + std::min<uint64_t>(part, any().count % ranks_);
  }

  void sum(uint64_t first, uint64_t count, std::byte* destination) const {
    std::vector<const std::byte*> sources(posted_.size());
    for (int64_t peer = 0; peer < ranks_; ++peer) {
      sources[peer] = posted_[peer].source + first * width();
      if (onPeerRead_ && peer != rank_) onPeerRead_(sources[peer], count * width());
    }
    sumOverRanks(any().type, sources, destination, count, any().continues);
  }

  void copy(int64_t peer, const std::byte* source, std::byte* destination, uint64_t count) const {
    if (source == destination || count == 0) return;
    if (onPeerRead_ && peer != rank_) onPeerRead_(source, count);
    std::memcpy(destination, source, count);
  }

  const int64_t rank_, ranks_;
  const std::vector<CollectiveBuffers> posted_;
  const PeerReadListener& onPeerRead_;
};

}  // namespace

Status LocalCommunicator::run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead) {
  const uint64_t width = plan::elementBytes(buffers.type);
  if (width == 0 || (buffers.op != plan::ALL_GATHER && !canSum(buffers.type)))
    return Status::error("a collective cannot sum elements of type " + plan::word(buffers.type));
  const int64_t ranks = rendezvous_.ranks();
  auto collective = [&] {
    std::vector<CollectiveBuffers> posted;
    posted.reserve(static_cast<size_t>(ranks));
    for (int64_t i = 0; i < ranks; ++i) posted.push_back(rendezvous_.posted(rank, i));
    return Collective(rank, std::move(posted), onPeerRead);
  };
  using Part = void (Collective::*)(int64_t) const;
  std::vector<Part> phases;
  switch (buffers.op) {
    case plan::ALL_GATHER:
      phases = {&Collective::gather};
      break;
    case plan::REDUCE_SCATTER:
      phases = {&Collective::reduceScatter};
      break;
    case plan::ALL_REDUCE:
      phases = {&Collective::reduceShare, &Collective::gatherShares};
      break;
    default:
      return Status::error("unknown collective");
  }
  auto isSmall = [](const Collective& all) { return all.allBytes() <= kSmallBytes; };
  rendezvous_.post(rank, buffers);
  SHEAF_RETURN_IF_ERROR(rendezvous_.wait(rank, [&] {
    const Collective all = collective();
    if (!all.agrees() || !isSmall(all)) return;
    for (Part phase : phases)
      for (int64_t part = 0; part < ranks; ++part) (all.*phase)(part);
  }));
  const Collective all = collective();
  if (!all.agrees()) return Status::error("ranks met in different collectives; the plan is not the same on all ranks");
  if (isSmall(all)) return {};
  for (Part phase : phases)
    SHEAF_RETURN_IF_ERROR(rendezvous_.share(rank, ranks, [&](int64_t part) { (all.*phase)(part); }));
  return {};
}

}  // namespace sheaf::comm
