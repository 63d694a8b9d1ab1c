#include "passes/schedule/MemoryBound.h"

#include <algorithm>
#include <optional>

namespace sheaf::schedule {
namespace {

// A set of nodes.
class Nodes {
 public:
  explicit Nodes(size_t count = 0) : words_((count + 63) / 64) {}
  void add(uint32_t node) { words_[node / 64] |= uint64_t{1} << node % 64; }
  bool has(uint32_t node) const { return words_[node / 64] >> node % 64 & 1; }
  Nodes& operator|=(const Nodes& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
    return *this;
  }
  Nodes& operator&=(const Nodes& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] &= other.words_[w];
    return *this;
  }
  template <typename Visit>
  void visit(Visit visit) const {
    for (size_t w = 0; w < words_.size(); ++w)
      for (uint64_t left = words_[w]; left != 0; left &= left - 1) visit(64 * w + __builtin_ctzll(left));
  }

 private:
  std::vector<uint64_t> words_;
};

// By node: the nodes that come after it (or before it) in every order, itself included, in the same round and in the
// next (or the last) one.
struct Reached {
  std::vector<Nodes> same, next;

  Reached(size_t count, std::span<const Dependence> data, bool backward) {
    std::vector<std::vector<Dependence>> edges(count);
    for (const Dependence& d : data) edges[backward ? d.to : d.from].push_back(d);
    auto other = [&](const Dependence& d) { return backward ? d.from : d.to; };
    same.assign(count, Nodes(count)), next.assign(count, Nodes(count));
    // Within a round, edges go forward.
    auto each = [&](auto visit) {
      for (uint32_t k = 0; k < count; ++k) visit(backward ? k : static_cast<uint32_t>(count) - 1 - k);
    };
    each([&](uint32_t i) {
      same[i].add(i);
      for (const Dependence& d : edges[i])
        if (d.distance == 0) same[i] |= same[other(d)];
    });
    each([&](uint32_t i) {
      for (const Dependence& d : edges[i])
        if (d.distance < 2) next[i] |= d.distance == 0 ? next[other(d)] : same[other(d)];
    });
  }
};

// An access to a buffer, `round` (0 or 1) rounds after the life of its contents began.
struct Use {
  uint32_t node, round;
};

class Lifetimes {
 public:
  Lifetimes(const StepModel& model, std::span<const Dependence> data)
      : model_(model),
        count_(model.nodes.size()),
        uses_(model.buffers.size()),
        after_(count_, data, false),
        before_(count_, data, true),
        bytes_(count_, 0) {
    // A read before the first write of a round reads what the round before wrote.
    std::vector<bool> written(model.buffers.size());
    for (uint32_t node = 0; node < count_; ++node) {
      for (const Access& access : model.nodes[node].accesses)
        if (access.write) written[access.buffer] = true;
      for (const Access& access : model.nodes[node].accesses)
        uses_[access.buffer].push_back({node, written[access.buffer] ? 0u : 1u});
    }
    std::vector<bool> moved(model.buffers.size());
    for (const Node& node : model.nodes)
      for (const Access& access : node.accesses)
        if (isLink(node.unit)) moved[access.buffer] = true;
    alive_.resize(model.buffers.size());
    for (uint32_t b = 0; b < model.buffers.size(); ++b) {
      if (!model.buffers[b].onDevice) continue;
      if (model.buffers[b].persistent) {
        for (uint64_t& bytes : bytes_) bytes += model.buffers[b].bytes;
      } else if (!uses_[b].empty()) {
        Nodes alive = between(uses_[b]);
        alive.visit([&](uint32_t node) { bytes_[node] += model.buffers[b].bytes; });
        if (moved[b]) alive_[b] = std::move(alive);
      }
    }
  }

  // The nodes during which a buffer with these uses is alive in every order.
  Nodes between(const std::vector<Use>& uses) const {
    Nodes after(count_), afterNext(count_), before(count_), beforeNext(count_);
    for (const Use& use : uses) {
      (use.round == 0 ? after : afterNext) |= after_.same[use.node];
      if (use.round == 0) afterNext |= after_.next[use.node];
      (use.round == 0 ? before : beforeNext) |= before_.same[use.node];
      if (use.round == 1) before |= before_.next[use.node];
    }
    return (after &= before) |= (afterNext &= beforeNext);
  }

  const std::vector<Use>& uses(uint32_t buffer) const { return uses_[buffer]; }
  // Of a buffer that a transfer accesses and that is not persistent.
  bool alive(uint32_t buffer, uint32_t node) const { return alive_[buffer]->has(node); }
  const std::vector<uint64_t>& bytes() const { return bytes_; }  // by node: lower bound on what is alive

 private:
  const StepModel& model_;
  const size_t count_;
  std::vector<std::vector<Use>> uses_;  // by buffer
  const Reached after_, before_;
  std::vector<uint64_t> bytes_;
  std::vector<std::optional<Nodes>> alive_;
};

// A gather of parameters that were gathered before in the same round.
struct Regather {
  uint32_t gather;
  uint64_t bytes;
  Nodes between;  // nodes at which the earlier buffer would be alive if it were kept, and is not
};

class Regathers {
 public:
  Regathers(const StepModel& model, const Lifetimes& lifetimes) : model_(model), lifetimes_(lifetimes) {
    std::vector<uint32_t> gathers;
    for (uint32_t i = 0; i < model.nodes.size(); ++i)
      // What is read into the host's memory frees none of the device's.
      if (model.nodes[i].kind == Node::Kind::kGather && model.nodes[i].accesses.size() == 2 &&
          model.buffers[destination(i).buffer].onDevice)
        gathers.push_back(i);
    for (size_t k = 0; k < gathers.size(); ++k)
      for (size_t m = k + 1; m < k + gathers.size(); ++m) {
        const uint32_t other = gathers[m % gathers.size()];
        if (source(gathers[k]).buffer != source(other).buffer || source(gathers[k]).begin != source(other).begin)
          continue;
        consider(gathers[k], other);
        break;
      }
    std::stable_sort(found_.begin(), found_.end(), [&](const Regather& a, const Regather& b) {
      return model.nodes[a.gather].seconds * double(b.bytes) > model.nodes[b.gather].seconds * double(a.bytes);
    });
  }

  // At the node where the limit forces the most: a fractional knapsack of the buffers that would be kept, by seconds
  // saved per byte. The part of each that does not fit is forced; no choice of whole buffers saves more.
  std::vector<double> forced(uint64_t limit) const {
    std::vector<double> forced(model_.nodes.size(), 0);
    double most = 0;
    uint32_t where = kNone;
    for (uint32_t node = 0; node < model_.nodes.size() && !found_.empty(); ++node) {
      double seconds = 0;
      atNode(node, limit, [&](const Regather&, double part) { seconds += part; });
      if (seconds > most) most = seconds, where = node;
    }
    if (where != kNone) atNode(where, limit, [&](const Regather& again, double part) { forced[again.gather] = part; });
    return forced;
  }

 private:
  const Access& source(uint32_t gather) const {
    const std::vector<Access>& accesses = model_.nodes[gather].accesses;
    return accesses[0].write ? accesses[1] : accesses[0];
  }
  const Access& destination(uint32_t gather) const {
    const std::vector<Access>& accesses = model_.nodes[gather].accesses;
    return accesses[0].write ? accesses[0] : accesses[1];
  }

  void consider(uint32_t first, uint32_t second) {
    // The parameters must not change between the two.
    for (const Use& use : lifetimes_.uses(source(first).buffer)) {
      bool within = first < second ? first < use.node && use.node < second : first < use.node || use.node < second;
      for (const Access& access : model_.nodes[use.node].accesses)
        if (within && access.write && access.buffer == source(first).buffer) return;
    }
    const uint32_t kept = destination(first).buffer, again = destination(second).buffer;
    if (kept == again || model_.buffers[kept].persistent || model_.buffers[again].persistent) return;
    std::vector<Use> uses = lifetimes_.uses(kept);
    for (Use use : lifetimes_.uses(again)) {
      use.round += second < first;
      if (use.round > 1) return;
      uses.push_back(use);
    }
    // Of the first hop of a gather no more than its result need be kept.
    const uint64_t result = destination(first).end - destination(first).begin;
    Regather found{second, std::min({result, model_.buffers[kept].bytes, model_.buffers[again].bytes}),
                   Nodes(model_.nodes.size())};
    lifetimes_.between(uses).visit([&](uint32_t node) {
      if (!lifetimes_.alive(kept, node) && !lifetimes_.alive(again, node)) found.between.add(node);
    });
    found_.push_back(std::move(found));
  }

  template <typename Visit>
  void atNode(uint32_t node, uint64_t limit, Visit visit) const {
    uint64_t room = limit - std::min(limit, lifetimes_.bytes()[node]);
    for (const Regather& again : found_) {
      if (!again.between.has(node)) continue;
      const uint64_t stays = std::min(room, again.bytes);
      room -= stays;
      if (stays < again.bytes)
        visit(again, model_.nodes[again.gather].seconds * (1 - double(stays) / double(again.bytes)));
    }
  }

  const StepModel& model_;
  const Lifetimes& lifetimes_;
  std::vector<Regather> found_;  // by seconds saved per byte, the most first
};

}  // namespace

MemoryBound memoryBoundOf(const StepModel& model, std::span<const Dependence> data, uint64_t limit) {
  const size_t count = model.nodes.size();
  MemoryBound memory{std::vector<std::vector<bool>>(count), std::vector<double>(count, 0)};
  Lifetimes lifetimes(model, data);
  if (count == 0 || *std::max_element(lifetimes.bytes().begin(), lifetimes.bytes().end()) > limit) return memory;
  for (uint32_t transfer = 0; transfer < count; ++transfer) {
    if (!isLink(model.nodes[transfer].unit)) continue;
    std::vector<uint32_t> own;
    for (const Access& access : model.nodes[transfer].accesses)
      if (!model.buffers[access.buffer].persistent && model.buffers[access.buffer].onDevice)
        own.push_back(access.buffer);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    for (uint32_t node = 0; node < count; ++node) {
      uint64_t bytes = lifetimes.bytes()[node];
      for (uint32_t buffer : own)
        if (!lifetimes.alive(buffer, node)) bytes += model.buffers[buffer].bytes;
      if (bytes <= limit) continue;
      if (memory.excluded[transfer].empty()) memory.excluded[transfer].resize(count);
      memory.excluded[transfer][node] = true;
    }
  }
  memory.forced = Regathers(model, lifetimes).forced(limit);
  return memory;
}

}  // namespace sheaf::schedule
