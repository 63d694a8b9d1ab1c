#include "runtime/comm/transport/ProcessCommunicator.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/local/Reduce.h"
#include "runtime/plan/StepWork.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::comm {

ProcessCommunicator::ProcessCommunicator(const ProcessGroup& nodes, NodeRanks ranks, int64_t number,
                                         Transport& transport, uint64_t exchangeBytes, AbortSignal& abort, int spins,
                                         Rendezvous::Shared shared)
    : group_(nodes),
      nodes_(nodes.size()),
      mine_(nodes.rank()),
      rails_(ranks.count),
      firstLocal_(ranks.first),
      slotBytes_(exchangeBytes / static_cast<uint64_t>((nodes_ - 1) * rails_)),
      rendezvous_(ranks.count, abort, spins, std::move(shared)),
      lanes_(static_cast<size_t>(ranks.own)) {
  for (int64_t i = 0; i < ranks.own; ++i) {
    Lane& lane = lanes_[static_cast<size_t>(i)];
    lane.rail = std::make_unique<Rail>(transport.channel(number, i), nodes, abort);
    lane.exchange.resize(exchangeBytes);
    lane.posted.resize(static_cast<size_t>(rails_));
    lane.parts.resize(static_cast<size_t>(nodes_));
    lane.sources.resize(static_cast<size_t>(nodes_ * rails_));
  }
}

std::byte* ProcessCommunicator::slot(Lane& lane, int64_t node) const {
  const int64_t place = (node < mine_ ? node : node - 1) * rails_;
  return lane.exchange.data() + static_cast<uint64_t>(place) * slotBytes_;
}

ProcessCommunicator::Part ProcessCommunicator::partOf(uint64_t count, int64_t rank) const {
  const uint64_t ranks = static_cast<uint64_t>(nodes_ * rails_), part = static_cast<uint64_t>(rank);
  return {count / ranks * part + std::min(part, count % ranks), count / ranks + (part < count % ranks ? 1 : 0)};
}

Status ProcessCommunicator::run(int64_t rank, const CollectiveBuffers& buffers, const PeerReadListener& onPeerRead) {
  const uint64_t width = plan::elementBytes(buffers.type);
  if (width == 0 || (buffers.op != plan::ALL_GATHER && !canSum(buffers.type)))
    return Status::error("a collective cannot sum elements of type " + plan::word(buffers.type));
  const int64_t local = rank - rankOf(mine_, 0);
  Lane& lane = lanes_[static_cast<size_t>(local - firstLocal_)];
  rendezvous_.post(local, buffers);
  SHEAF_RETURN_IF_ERROR(rendezvous_.wait(local));
  for (int64_t i = 0; i < rails_; ++i) {
    const CollectiveBuffers& peer = lane.posted[static_cast<size_t>(i)] =
        i == local ? buffers : rendezvous_.posted(local, i);
    if (peer.op != buffers.op || peer.type != buffers.type || peer.count != buffers.count ||
        peer.continues != buffers.continues)
      return Status::error("ranks met in different collectives; the plan is not the same on all ranks");
  }
  const Call call{local, buffers, onPeerRead, width, lane};
  switch (buffers.op) {
    case plan::ALL_GATHER:
      SHEAF_RETURN_IF_ERROR(allGather(call));
      break;
    case plan::REDUCE_SCATTER: {
      std::vector<Part>& parts = lane.parts;
      for (int64_t node = 0; node < nodes_; ++node)
        parts[static_cast<size_t>(node)] = {static_cast<uint64_t>(rankOf(node, local)) * buffers.count, buffers.count};
      SHEAF_RETURN_IF_ERROR(reduce(call, parts, buffers.destination));
      break;
    }
    case plan::ALL_REDUCE:
      SHEAF_RETURN_IF_ERROR(buffers.count * width <= std::min(plan::kSmallAllReduceBytes, slotBytes_)
                                ? allReduceSmall(call)
                                : allReduce(call));
      break;
    default:
      return Status::error("unknown collective");
  }
  return rendezvous_.wait(local);
}

template <typename PartOf>
void ProcessCommunicator::copyFromLocal(const Call& call, PartOf partOf) {
  for (int64_t i = 1; i < rails_; ++i) {
    const int64_t peer = (call.local + i) % rails_;
    for (int64_t node = 0; node < nodes_; ++node) {
      const Part part = partOf(rankOf(node, peer));
      const std::byte* from = call.lane.posted[static_cast<size_t>(peer)].destination + part.begin * call.width;
      std::byte* to = call.buffers.destination + part.begin * call.width;
      if (from == to || part.count == 0) continue;
      if (call.onPeerRead) call.onPeerRead(from, part.count * call.width);
      std::memcpy(to, from, part.count * call.width);
    }
  }
}

Status ProcessCommunicator::allGather(const Call& call) {
  const CollectiveBuffers& buffers = call.buffers;
  const uint64_t bytes = buffers.count * call.width;
  auto place = [&](int64_t node) {
    return buffers.destination + static_cast<uint64_t>(rankOf(node, call.local)) * bytes;
  };
  if (buffers.source != place(mine_) && bytes > 0) std::memcpy(place(mine_), buffers.source, bytes);
  Rail& rail = *call.lane.rail;
  rail.begin(buffers);
  for (int64_t node = 0; node < nodes_; ++node) {
    if (node == mine_) continue;
    rail.send(node, buffers.source, bytes);
    rail.receive(node, place(node), bytes);
  }
  SHEAF_RETURN_IF_ERROR(rail.finish());
  if (rails_ == 1) return {};
  SHEAF_RETURN_IF_ERROR(rendezvous_.wait(call.local));
  copyFromLocal(call, [&](int64_t rank) { return Part{static_cast<uint64_t>(rank) * buffers.count, buffers.count}; });
  return {};
}

Status ProcessCommunicator::allReduce(const Call& call) {
  const CollectiveBuffers& buffers = call.buffers;
  std::vector<Part>& parts = call.lane.parts;
  for (int64_t node = 0; node < nodes_; ++node)
    parts[static_cast<size_t>(node)] = partOf(buffers.count, rankOf(node, call.local));
  const Part mine = parts[static_cast<size_t>(mine_)];
  std::byte* sum = buffers.destination + mine.begin * call.width;
  SHEAF_RETURN_IF_ERROR(reduce(call, parts, sum));
  Rail& rail = *call.lane.rail;
  rail.begin(buffers);
  for (int64_t node = 0; node < nodes_; ++node) {
    const Part& part = parts[static_cast<size_t>(node)];
    if (node == mine_) continue;
    rail.send(node, sum, mine.count * call.width);
    rail.receive(node, buffers.destination + part.begin * call.width, part.count * call.width);
  }
  SHEAF_RETURN_IF_ERROR(rail.finish());
  if (rails_ == 1) return {};
  SHEAF_RETURN_IF_ERROR(rendezvous_.wait(call.local));
  copyFromLocal(call, [&](int64_t rank) { return partOf(buffers.count, rank); });
  return {};
}

Status ProcessCommunicator::allReduceSmall(const Call& call) {
  const CollectiveBuffers& buffers = call.buffers;
  if (call.local == 0) {
    std::vector<Part>& parts = call.lane.parts;
    std::fill(parts.begin(), parts.end(), Part{0, buffers.count});
    SHEAF_RETURN_IF_ERROR(reduce(call, parts, buffers.destination));
  }
  if (rails_ == 1) return {};
  SHEAF_RETURN_IF_ERROR(rendezvous_.wait(call.local));
  if (call.local == 0 || buffers.count == 0) return {};
  if (call.onPeerRead) call.onPeerRead(call.lane.posted[0].destination, buffers.count * call.width);
  std::memcpy(buffers.destination, call.lane.posted[0].destination, buffers.count * call.width);
  return {};
}

Status ProcessCommunicator::reduce(const Call& call, const std::vector<Part>& parts, std::byte* destination) {
  Rail& rail = *call.lane.rail;
  std::vector<const std::byte*>& sources = call.lane.sources;
  const uint64_t width = call.width, step = slotBytes_ / width;
  uint64_t longest = 0;
  for (const Part& part : parts) longest = std::max(longest, part.count);
  if (longest > 0 && step == 0) return Status::error("the communicator has no memory to sum in");
  const Part mine = parts[static_cast<size_t>(mine_)];
  auto sizeAt = [&](const Part& part, uint64_t done) {
    return part.count > done ? std::min(step, part.count - done) : 0;
  };
  auto localSource = [&](int64_t local, uint64_t element, uint64_t count) {
    const std::byte* source = call.lane.posted[static_cast<size_t>(local)].source + element * width;
    if (call.onPeerRead && local != call.local && count > 0) call.onPeerRead(source, count * width);
    return source;
  };
  // Every node sees the same longest part, so all make the same number of transfers.
  for (uint64_t done = 0; done < longest; done += step) {
    const uint64_t count = sizeAt(mine, done);
    rail.begin(call.buffers);
    for (int64_t node = 0; node < nodes_; ++node) {
      const Part& part = parts[static_cast<size_t>(node)];
      for (int64_t local = 0; local < rails_; ++local) {
        const std::byte*& source = sources[static_cast<size_t>(rankOf(node, local))];
        if (node == mine_) {
          source = localSource(local, mine.begin + done, count);
          continue;
        }
        const uint64_t theirs = sizeAt(part, done);
        std::byte* to = slot(call.lane, node) + static_cast<uint64_t>(local) * count * width;
        rail.send(node, localSource(local, part.begin + done, theirs), theirs * width);
        rail.receive(node, to, count * width);
        source = to;
      }
    }
    SHEAF_RETURN_IF_ERROR(rail.finish());
    if (count > 0) sumOverRanks(call.buffers.type, sources, destination + done * width, count, call.buffers.continues);
  }
  return {};
}

}  // namespace sheaf::comm
