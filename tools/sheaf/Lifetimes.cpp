#include "tools/sheaf/Lifetimes.h"

#include <algorithm>
#include <map>

#include "runtime/plan/Liveness.h"
#include "runtime/plan/Types.h"

namespace sheaf::tool {
namespace {

// Notes the lifetimes of one step, and walks the next one before.
class Walk {
 public:
  Walk(const plan::Plan& plan, const schedule::PlanLoop& loop, const schedule::Timeline& timeline)
      : plan_(plan),
        loop_(loop),
        timeline_(timeline),
        step_(plan::stepInstructions(plan)),
        liveness_(plan),
        open_(static_cast<size_t>(plan.buffers_size())) {
    double end = 0;
    for (double t : timeline.end) end = std::max(end, t);
    whole_ = {0, -1, static_cast<int64_t>(loop.instructions.size()), 0, end};
  }

  std::vector<Lifetime> run() {
    // What follows the last step may read more than a step does: the next step is walked first.
    for (int i = plan_.epilogue_size(); i-- > 0;) instruction(plan_.epilogue(i), nullptr);
    for (size_t op = loop_.instructions.size(); op-- > 0;) instruction(*step_[at(op)], nullptr);
    for (uint32_t buffer = 0; buffer < open_.size(); ++buffer)
      if (liveness_.isLive(buffer)) open_[buffer] = {buffer, 0, whole_.last, whole_.end, whole_.end};
    for (size_t op = loop_.instructions.size(); op-- > 0;) instruction(*step_[at(op)], &op);
    for (uint32_t buffer = 0; buffer < open_.size(); ++buffer) {
      const bool persistent = plan_.buffers(static_cast<int>(buffer)).persistent();
      Lifetime life = persistent ? whole_ : open_[buffer];
      life.buffer = buffer, life.first = -1, life.begin = 0;
      if (persistent || liveness_.isLive(buffer)) lifetimes_.push_back(life);
    }
    auto before = [](const Lifetime& a, const Lifetime& b) {
      return a.first != b.first ? a.first < b.first : a.buffer < b.buffer;
    };
    std::sort(lifetimes_.begin(), lifetimes_.end(), before);
    return std::move(lifetimes_);
  }

 private:
  size_t at(size_t op) const { return static_cast<size_t>(loop_.instructions[op]); }

  // `op`: the instruction's, where lifetimes are noted.
  void instruction(const plan::Instruction& instruction, const size_t* op) {
    const std::vector<plan::Liveness::Touched> touched = liveness_.visit(instruction);
    if (!op) return;
    const double begin = timeline_.begin[*op], end = timeline_.end[*op];
    for (const plan::Liveness::Touched& each : touched) {
      Lifetime& life = open_[each.buffer];
      if (!each.liveAfter) life = {each.buffer, 0, static_cast<int64_t>(*op), begin, end};
      life.begin = std::min(life.begin, begin);
      life.end = std::max(life.end, end);
      if (each.liveBefore) continue;
      life.first = static_cast<int64_t>(*op);
      lifetimes_.push_back(life);
    }
  }

  const plan::Plan& plan_;
  const schedule::PlanLoop& loop_;
  const schedule::Timeline& timeline_;
  const std::vector<const plan::Instruction*> step_;
  plan::Liveness liveness_;
  std::vector<Lifetime> open_;  // by buffer: the lifetime that is being walked
  std::vector<Lifetime> lifetimes_;
  Lifetime whole_;
};

}  // namespace

std::vector<Lifetime> lifetimesOf(const plan::Plan& plan, const schedule::PlanLoop& loop,
                                  const schedule::Timeline& timeline) {
  return Walk(plan, loop, timeline).run();
}

std::vector<MemoryUse> memoryUseOf(const plan::Plan& plan, const std::vector<Lifetime>& lifetimes,
                                   plan::Buffer::Space space) {
  std::map<double, std::map<plan::BufferKind, int64_t>> changes;
  double end = 0;
  for (const Lifetime& life : lifetimes) {
    const plan::Buffer& buffer = plan.buffers(static_cast<int>(life.buffer));
    end = std::max(end, life.end);
    if (buffer.space() != space) continue;
    const auto bytes = static_cast<int64_t>(buffer.bytes());
    changes[std::max(life.begin, 0.0)][buffer.kind()] += bytes;
    changes[std::max(life.end, 0.0)][buffer.kind()] -= bytes;
  }
  std::vector<MemoryUse> uses;
  std::vector<uint64_t> now(plan::CONSTANTS + 1, 0);
  for (const auto& [seconds, kinds] : changes) {
    if (seconds >= end) break;  // everything ends there
    for (const auto& [kind, bytes] : kinds) now[kind] += static_cast<uint64_t>(bytes);
    uses.push_back({seconds, now});
  }
  return uses;
}

}  // namespace sheaf::tool
