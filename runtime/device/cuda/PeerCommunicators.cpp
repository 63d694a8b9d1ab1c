// Collectives between ranks of one process on one GPU. The ranks' streams meet by events: each records one, the issuing
// threads exchange them, and each stream waits for all. Streams only ever wait for records that have been made, so
// whatever becomes of a rank, no stream waits for ever.
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "runtime/base/Text.h"
#include "runtime/device/cuda/Communicators.h"
#include "runtime/device/cuda/Resources.h"
#include "runtime/device/cuda/SumTypes.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::cuda {
namespace {

class PeerCommunicator {
 public:
  PeerCommunicator(int64_t ranks, comm::AbortSignal& abort)
      : ranks_(ranks), abort_(abort), posted_(ranks), exchanges_(ranks), events_(ranks * 2) {
    abort_.listen([this] {
      { std::lock_guard lock(mutex_); }
      changed_.notify_all();
    });
  }

  Status enqueue(int64_t rank, const comm::CollectiveBuffers& buffers, cudaStream_t stream) {
    const uint64_t width = plan::elementBytes(buffers.type);
    if (width == 0 || (buffers.op != plan::ALL_GATHER && !sumType(buffers.type)))
      return Status::error(cat("a collective cannot sum elements of type ", plan::word(buffers.type)));
    posted_[rank] = buffers;
    SHEAF_RETURN_IF_ERROR(meet(rank, stream));
    for (const comm::CollectiveBuffers& peer : posted_)
      if (peer.op != buffers.op || peer.type != buffers.type || peer.count != buffers.count ||
          peer.continues != buffers.continues)
        return Status::error("ranks met in different collectives; the plan is not the same on all ranks");
    switch (buffers.op) {
      case plan::ALL_GATHER:
        // Every rank starts with its own part and continues in rank order, so that ranks read from different peers.
        for (int64_t i = 0; i < ranks_; ++i) {
          int64_t peer = (rank + i) % ranks_;
          SHEAF_RETURN_IF_ERROR(copy(posted_[peer].source, buffers.destination + peer * buffers.count * width,
                                     buffers.count * width, stream));
        }
        break;
      case plan::REDUCE_SCATTER:
        SHEAF_RETURN_IF_ERROR(sum(rank * buffers.count, buffers.count, buffers.destination, stream));
        break;
      default: {
        const SumParts parts(buffers.count, static_cast<uint64_t>(ranks_));
        const uint64_t self = static_cast<uint64_t>(rank);
        SHEAF_RETURN_IF_ERROR(
            sum(parts.begin(self), parts.size(self), buffers.destination + parts.begin(self) * width, stream));
        SHEAF_RETURN_IF_ERROR(meet(rank, stream));
        for (int64_t i = 1; i < ranks_; ++i) {
          const int64_t peer = (rank + i) % ranks_;
          const uint64_t part = static_cast<uint64_t>(peer), offset = parts.begin(part) * width;
          SHEAF_RETURN_IF_ERROR(
              copy(posted_[peer].destination + offset, buffers.destination + offset, parts.size(part) * width, stream));
        }
      }
    }
    // A buffer is free for its owner when its readers have left.
    return meet(rank, stream);
  }

  Status meet() { return rendezvous() ? Status() : abort_.status(); }

 private:
  Status copy(const std::byte* source, std::byte* destination, uint64_t bytes, cudaStream_t stream) {
    if (source == destination || bytes == 0) return {};
    return check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, stream),
                 "cannot copy from a peer");
  }

  Status sum(uint64_t begin, uint64_t count, std::byte* destination, cudaStream_t stream) {
    const comm::CollectiveBuffers& any = posted_[0];
    if (ranks_ == 1 && !any.continues)
      return copy(any.source, destination, count * plan::elementBytes(any.type), stream);
    RankSources sources;
    sources.ranks = static_cast<int>(ranks_);
    sources.continues = any.continues;
    for (int64_t peer = 0; peer < ranks_; ++peer)
      sources.listed[peer] = posted_[peer].source + begin * plan::elementBytes(any.type);
    return check(sumOverRanks(*sumType(any.type), sources, destination, count, stream), "cannot sum over the ranks");
  }

  // A barrier of the ranks' streams. Records alternate between two events: a rank may reach its next barrier before
  // its peers' streams have been made to wait for the record of this one, but not the barrier after that.
  Status meet(int64_t rank, cudaStream_t stream) {
    if (ranks_ == 1) return {};
    const uint64_t turn = exchanges_[rank]++ % 2;
    Event& mine = events_[rank * 2 + turn];
    if (!mine) {
      Expected<Event> made = makeEvent();
      if (!made.ok()) return made.status();
      mine = std::move(*made);
    }
    SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(mine.get(), stream), "cannot record an event"));
    if (!rendezvous()) return abort_.status();
    for (int64_t peer = 0; peer < ranks_; ++peer)
      if (peer != rank)
        SHEAF_RETURN_IF_ERROR(
            check(cudaStreamWaitEvent(stream, events_[peer * 2 + turn].get(), 0), "cannot wait for an event"));
    return {};
  }

  // Of the issuing threads; false if the run was aborted.
  bool rendezvous() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = generation_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++generation_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return generation_ != mine || abort_.raised(); });
    }
    return !abort_.raised();
  }

  const int64_t ranks_;
  comm::AbortSignal& abort_;
  std::vector<comm::CollectiveBuffers> posted_;
  std::vector<uint64_t> exchanges_;
  std::vector<Event> events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t arrived_ = 0;
  uint64_t generation_ = 0;
};

class PeerCommunicators : public Communicators {
 public:
  PeerCommunicators(const plan::Plan& plan, int64_t ranks, comm::AbortSignal& abort)
      : plan_(plan), ranks_(ranks), communicators_(plan.communicators()) {
    for (uint32_t i = 0; i < plan.communicators(); ++i) {
      const plan::Axis axis = plan::axisOf(plan, static_cast<int>(i));
      // Without nodes a run may have another number of ranks than the plan, as tests do.
      const int64_t members = axis == plan::WORLD ? ranks : plan::ranksOn(plan, axis);
      for (int64_t group = 0; group < ranks / members; ++group)
        communicators_[i].push_back(std::make_unique<PeerCommunicator>(members, abort));
    }
  }

  Status enqueue(int64_t local, uint32_t communicator, const comm::CollectiveBuffers& buffers, cudaStream_t stream,
                 uint32_t) override {
    if (communicator >= communicators_.size())
      return Status::error(cat("communicator ", communicator, " is not in the plan"));
    const plan::Axis axis = plan::axisOf(plan_, static_cast<int>(communicator));
    return communicators_[communicator][static_cast<size_t>(plan::groupOn(plan_, axis, local))]->enqueue(
        plan::placeOn(plan_, axis, local), buffers, stream);
  }
  Status meet(int64_t local, uint32_t communicator) override {
    if (communicator >= communicators_.size())
      return Status::error(cat("communicator ", communicator, " is not in the plan"));
    const plan::Axis axis = plan::axisOf(plan_, static_cast<int>(communicator));
    return communicators_[communicator][static_cast<size_t>(plan::groupOn(plan_, axis, local))]->meet();
  }
  // A graph cannot wait for another rank's stream.
  bool capturable() const override { return ranks_ == 1; }

 private:
  const plan::Plan& plan_;
  const int64_t ranks_;
  // Of each of the plan's communicators: by the group of its axis.
  std::vector<std::vector<std::unique_ptr<PeerCommunicator>>> communicators_;
};

}  // namespace

std::unique_ptr<Communicators> makePeerCommunicators(const plan::Plan& plan, int64_t ranks, comm::AbortSignal& abort) {
  return std::make_unique<PeerCommunicators>(plan, ranks, abort);
}

}  // namespace sheaf::cuda
