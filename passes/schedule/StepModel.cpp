#include "passes/schedule/StepModel.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/schedule/PlanLoop.h"
#include "runtime/plan/Types.h"

namespace sheaf::schedule {
namespace {

bool overlap(const Access& a, const Access& b) {
  // With the same strides both move together from rank to rank.
  const bool together = a.strides == b.strides;
  return a.begin < b.end + (together ? 0 : b.reach) && b.begin < a.end + (together ? 0 : a.reach);
}

// Conflicting accesses of a repeated body: the second of two rounds has all that the steady state has. Unlike
// plan::AccessHistory, this may not rely on the order within a stream, which the scheduler changes, and it knows that
// accesses of the same strides stay apart on every rank.
class Conflicts {
 public:
  explicit Conflicts(const StepModel& model) : model_(model), history_(model.buffers.size()) {}

  std::vector<Dependence> find() {
    for (uint32_t round = 0; round < 2; ++round)
      for (uint32_t node = 0; node < model_.nodes.size(); ++node)
        for (const Access& access : model_.nodes[node].accesses) note(node, round, access);
    return {found_.begin(), found_.end()};
  }

 private:
  struct Less {
    bool operator()(const Dependence& a, const Dependence& b) const {
      return std::tie(a.to, a.from, a.distance) < std::tie(b.to, b.from, b.distance);
    }
  };
  struct Seen {
    uint32_t node, round;
    Access access;
  };

  void note(uint32_t node, uint32_t round, const Access& access) {
    std::vector<Seen>& seen = history_[access.buffer];
    for (size_t i = seen.size(); i-- > 0;) {
      const Seen& earlier = seen[i];
      if (!access.write && !earlier.access.write) continue;
      if (!overlap(access, earlier.access)) continue;
      if (round == 1 && !(earlier.node == node && earlier.round == round))
        found_.insert({earlier.node, node, round - earlier.round});
      // Accesses before a write that covers this one are ordered through it.
      if (earlier.access.write && earlier.access.begin <= access.begin && access.end <= earlier.access.end &&
          earlier.access.strides == access.strides)
        break;
    }
    bool whole = access.write && access.begin == 0 && access.end >= model_.buffers[access.buffer].bytes;
    if (whole) seen.clear();
    seen.push_back({node, round, access});
  }

  const StepModel& model_;
  std::vector<std::vector<Seen>> history_;
  std::set<Dependence, Less> found_;
};

void markAfterReduction(StepModel& model) {
  std::vector<bool> after(model.nodes.size());
  for (const Dependence& d : model.dependences) {  // sorted by `to`, which comes after `from`
    if (d.distance > 0) continue;
    const Node& from = model.nodes[d.from];
    bool reduced = from.kind == Node::Kind::kReduce || after[d.from];
    if (reduced) after[d.to] = true;
  }
  for (size_t i = 0; i < model.nodes.size(); ++i)
    if (after[i] && model.nodes[i].kind == Node::Kind::kCompute) model.nodes[i].kind = Node::Kind::kAfterReduction;
}

// Which node uses which storage: a buffer that one part alone uses lives again in each of the part's turns.
class TurnStorage {
 public:
  TurnStorage(const plan::Plan& plan, StepModel& model) : model_(model), users_(model.buffers.size(), nullptr) {
    for (const plan::StepTurn& part : plan::stepOf(plan))
      for (const plan::Instruction& instruction : *part.list) {
        turns_.push_back({part.list, turn_});
        plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
          const void*& user = users_[operand.buffer()];
          if (user && user != part.list) shared_.insert(operand.buffer());
          user = part.list;
        });
        if (&instruction == &*part.list->rbegin()) ++turn_;
      }
  }

  // `instruction`: in plan::stepInstructions().
  uint32_t of(uint32_t buffer, size_t instruction) {
    const auto [list, turn] = turns_[instruction];
    if (model_.buffers[buffer].persistent || shared_.contains(buffer)) return buffer;
    // The list's first turn keeps the buffer's own number.
    const auto [first, isFirst] = firstTurns_.try_emplace(list, turn);
    if (first->second == turn) return buffer;
    const auto [entry, fresh] = copies_.try_emplace({buffer, turn}, static_cast<uint32_t>(model_.buffers.size()));
    if (fresh) model_.buffers.push_back(Storage(model_.buffers[buffer]));
    return entry->second;
  }

 private:
  StepModel& model_;
  std::vector<const void*> users_;                  // by buffer: the list that uses it
  std::set<uint32_t> shared_;                       // buffers of several lists
  std::vector<std::pair<const void*, int>> turns_;  // by instruction
  std::map<const void*, int> firstTurns_;           // of each list
  std::map<std::pair<uint32_t, int>, uint32_t> copies_;
  int turn_ = 0;
};

// A node waits for a store that `distance` rounds before issued.
struct Guard {
  uint32_t store, node, distance;
};

// What keeps the bytes of stores from being in use for ever; see loopOf.
std::vector<Guard> guardsOf(const StepModel& model, const Order& order) {
  struct Issued {
    uint32_t store = kNone;
    uint32_t round = 0;
  };
  constexpr uint32_t kRounds = 3;
  std::vector<Guard> guards;
  std::map<uint32_t, Issued> latest;                    // by stream of stores
  std::map<std::pair<uint32_t, uint32_t>, Issued> due;  // by stream of stores and of who is to wait
  std::set<uint32_t> waiting;                           // streams of these
  for (const Node& node : model.nodes)
    if (node.stream == 0 || (node.kind == Node::Kind::kGather && joinsSpaces(node.unit))) waiting.insert(node.stream);
  for (uint32_t round = 0; round < kRounds; ++round)
    for (uint32_t i : order.nodes) {
      const Node& node = model.nodes[i];
      if (node.kind == Node::Kind::kStore) {
        Issued& before = latest[node.stream];
        if (before.store != kNone)
          for (uint32_t stream : waiting) due[{node.stream, stream}] = before;
        before = {i, round};
        continue;
      }
      if (latest.empty() || !waiting.contains(node.stream)) continue;
      for (auto& [streams, issued] : due) {
        if (streams.second != node.stream || issued.store == kNone) continue;
        if (round + 1 == kRounds) guards.push_back({issued.store, i, round - issued.round});
        issued.store = kNone;
      }
    }
  return guards;
}

}  // namespace

Loop StepModel::costs() const {
  Loop loop;
  loop.slowdown = slowdown;
  loop.networkSlowdown = networkSlowdown;
  loop.copySlowdown = copySlowdown, loop.fileSlowdown = fileSlowdown;
  for (const Node& node : nodes) loop.ops.push_back({node.unit, node.stream, node.seconds, node.hostLoad});
  return loop;
}

StepModel modelOf(const plan::Plan& plan, const profile::Profile& profile) {
  StepModel model;
  PlanLoop priced = loopOf(plan, profile);
  model.slowdown = priced.loop.slowdown;
  model.networkSlowdown = priced.loop.networkSlowdown;
  model.copySlowdown = priced.loop.copySlowdown, model.fileSlowdown = priced.loop.fileSlowdown;
  for (const plan::Buffer& buffer : plan.buffers())
    model.buffers.push_back({buffer.bytes(), buffer.persistent(), buffer.space() == plan::Buffer::DEVICE});
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  TurnStorage storage(plan, model);
  for (size_t i = 0; i < priced.instructions.size(); ++i) {
    const plan::Instruction& instruction = *step[static_cast<size_t>(priced.instructions[i])];
    Node node;
    node.instruction = priced.instructions[i];
    node.stream = instruction.stream();
    node.unit = priced.loop.ops[i].unit;
    node.seconds = priced.loop.ops[i].seconds;
    node.hostLoad = priced.loop.ops[i].hostLoad;
    if (plan::isOnHost(instruction)) node.kind = Node::Kind::kOther;
    if (instruction.has_transfer()) {
      const bool persistent = plan.buffers(static_cast<int>(plan::destinationOf(instruction).buffer())).persistent();
      node.kind = !plan::fetches(instruction.transfer().kind()) ? Node::Kind::kStore
                  : persistent                                  ? Node::Kind::kOther
                                                                : Node::Kind::kGather;
    }
    if (instruction.has_collective()) {
      const plan::Collective& collective = instruction.collective();
      bool passing = !plan.buffers(static_cast<int>(plan::destinationOf(instruction).buffer())).persistent();
      node.kind = collective.bucket().empty()           ? Node::Kind::kOther
                  : collective.op() != plan::ALL_GATHER ? Node::Kind::kReduce
                  : passing                             ? Node::Kind::kGather
                                                        : Node::Kind::kOther;
    }
    plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
      const uint32_t buffer = storage.of(operand.buffer(), static_cast<size_t>(node.instruction));
      node.accesses.push_back({buffer, operand.offset(), operand.offset() + operand.bytes(),
                               plan::stridesOf(plan, operand), plan::mostRankOffset(plan, operand),
                               operand.access() != plan::READ});
    });
    model.nodes.push_back(std::move(node));
  }
  model.dependences = Conflicts(model).find();
  markAfterReduction(model);
  return model;
}

Order orderOf(const StepModel& model) {
  Order order;
  order.carried.assign(model.nodes.size(), false);
  for (uint32_t i = 0; i < model.nodes.size(); ++i) order.nodes.push_back(i);
  return order;
}

Loop loopOf(const StepModel& model, const Order& order) {
  Loop loop = model.costs();
  loop.ops.clear();
  std::vector<uint32_t> place(model.nodes.size());
  uint32_t lastComputation = kNone;
  for (uint32_t i = 0; i < order.nodes.size(); ++i)
    if (model.nodes[order.nodes[i]].stream == 0) lastComputation = i;
  uint32_t computation = lastComputation, distance = 1;  // the one issued last, first of all by the round before
  for (uint32_t i = 0; i < order.nodes.size(); ++i) {
    const Node& node = model.nodes[order.nodes[i]];
    place[order.nodes[i]] = i;
    loop.ops.push_back({node.unit, node.stream, node.seconds, node.hostLoad});
    if (node.kind == Node::Kind::kGather && computation != kNone)
      loop.dependences.push_back({computation, i, distance});
    if (node.stream == 0) computation = i, distance = 0;
  }
  for (const Guard& guard : guardsOf(model, order))
    loop.dependences.push_back({place[guard.store], place[guard.node], guard.distance});
  for (const Dependence& d : model.dependences) {
    const int64_t shifted = int64_t(d.distance) + order.carried[d.from] - order.carried[d.to];
    loop.dependences.push_back({place[d.from], place[d.to], static_cast<uint32_t>(std::max<int64_t>(shifted, 0))});
  }
  return loop;
}

bool respects(const StepModel& model, const Order& order) {
  std::vector<int64_t> place(model.nodes.size(), -1);
  for (size_t i = 0; i < order.nodes.size(); ++i) {
    if (order.nodes[i] >= place.size() || place[order.nodes[i]] >= 0) return false;
    place[order.nodes[i]] = i;
  }
  if (order.nodes.size() != model.nodes.size()) return false;
  for (const Dependence& d : model.dependences) {
    int64_t distance = int64_t(d.distance) + order.carried[d.from] - order.carried[d.to];
    if (distance < 0 || (distance == 0 && place[d.from] >= place[d.to])) return false;
  }
  return true;
}

uint64_t liveBytes(const StepModel& model, const Order& order) {
  const int64_t length = order.nodes.size();
  std::vector<int64_t> place(model.nodes.size());
  for (int64_t i = 0; i < length; ++i) place[order.nodes[i]] = i;
  // Where the computing stream is known to be past a collective: at the first instruction that depends on it.
  std::vector<int64_t> known(model.nodes.size(), -1);
  auto position = [&](uint32_t node) { return place[node] - (order.carried[node] ? length : 0); };
  for (uint32_t node = 0; node < model.nodes.size(); ++node)
    if (model.nodes[node].stream == 0) known[node] = position(node);
  for (const Dependence& d : model.dependences) {
    if (model.nodes[d.from].stream == 0 || model.nodes[d.to].stream != 0) continue;
    int64_t at = position(d.to) + int64_t(d.distance) * length;
    if (known[d.from] < position(d.from) || at < known[d.from]) known[d.from] = at;
  }
  for (const Guard& guard : guardsOf(model, order)) {
    if (model.nodes[guard.node].stream != 0) continue;
    const int64_t at = place[guard.node] + int64_t(guard.distance) * length;
    if (known[guard.store] < place[guard.store] || at < known[guard.store]) known[guard.store] = at;
  }
  // What waits for a transfer to the device may be a collective: then computation is past both.
  for (const Dependence& d : model.dependences) {
    const Node &from = model.nodes[d.from], &to = model.nodes[d.to];
    if (!joinsSpaces(from.unit) || from.kind != Node::Kind::kGather || to.stream == 0 || joinsSpaces(to.unit)) continue;
    if (known[d.to] < position(d.to)) continue;
    const int64_t at = known[d.to] + int64_t(d.distance) * length;
    if (known[d.from] < position(d.from) || at < known[d.from]) known[d.from] = at;
  }
  struct Life {
    int64_t first = INT64_MAX, last = INT64_MIN;
  };
  std::vector<Life> lives(model.buffers.size());
  // A read before the first write of a body reads what the body before wrote.
  std::vector<int64_t> written(model.buffers.size(), INT64_MAX);
  for (uint32_t node = 0; node < model.nodes.size(); ++node)
    for (const Access& access : model.nodes[node].accesses)
      if (access.write) written[access.buffer] = std::min(written[access.buffer], position(node));
  for (uint32_t node = 0; node < model.nodes.size(); ++node)
    for (const Access& access : model.nodes[node].accesses) {
      Life& life = lives[access.buffer];
      if (position(node) < written[access.buffer]) {
        life.last = std::max(life.last, position(node) + length);
        continue;
      }
      life.first = std::min(life.first, position(node));
      // No computation depends on it within the round: the begin of the next round does.
      int64_t last = std::max(position(node), known[node] < position(node) ? length - 1 : known[node]);
      life.last = std::max(life.last, last);
    }
  uint64_t always = 0;
  std::vector<int64_t> change(length + 1, 0);
  for (size_t b = 0; b < lives.size(); ++b) {
    if (!model.buffers[b].onDevice) continue;
    uint64_t bytes = plan::aligned(model.buffers[b].bytes);
    const bool used = lives[b].first <= lives[b].last;
    if (model.buffers[b].persistent || (used && lives[b].last - lives[b].first + 1 >= length)) {
      always += bytes;
    } else if (used) {
      int64_t first = (lives[b].first % length + length) % length, last = first + lives[b].last - lives[b].first;
      change[first] += bytes;
      if (last < length) {
        change[last + 1] -= bytes;
      } else {
        change[length] -= bytes;
        change[0] += bytes;
        change[last - length + 1] -= bytes;
      }
    }
  }
  int64_t live = 0, most = 0;
  for (int64_t i = 0; i < length; ++i) most = std::max(most, live += change[i]);
  return always + most;
}

}  // namespace sheaf::schedule
