#include "runtime/plan/MemoryByKind.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "runtime/plan/Liveness.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

// Keeps for every kind of buffer how much of it is alive, and the most of it.
class LiveBytes {
 public:
  LiveBytes(const Plan& plan, Buffer::Space space) : plan_(plan), space_(space), liveness_(plan) {
    for (const Buffer& buffer : plan.buffers())
      if (buffer.persistent() && buffer.space() == space) now_[buffer.kind()] += buffer.bytes();
    std::copy(std::begin(now_), std::end(now_), std::begin(most_));
  }

  const MostBytes& together() const { return together_; }

  std::map<BufferKind, uint64_t> run() {
    walk(plan_.evaluation());
    walk(plan_.epilogue());
    const std::vector<StepTurn> step = stepOf(plan_);
    for (int round = 0; round < 2; ++round)
      for (size_t part = step.size(); part-- > 0;) walk(*step[part].list);
    walk(plan_.prologue());
    std::map<BufferKind, uint64_t> result;
    for (int kind = PARAMETERS; kind <= CONSTANTS; ++kind) result[static_cast<BufferKind>(kind)] = most_[kind];
    return result;
  }

 private:
  void walk(const InstructionList& list) {
    for (int i = list.size(); i-- > 0;) instruction(list.Get(i));
  }

  // While an instruction runs, what it touches and what is read after it are alive together.
  void instruction(const Instruction& instruction) {
    const std::vector<Liveness::Touched> touched = liveness_.visit(instruction);
    for (const Liveness::Touched& each : touched)
      if (!each.liveAfter) add(each.buffer);
    uint64_t all = 0;
    for (int kind = 0; kind <= CONSTANTS; ++kind) {
      most_[kind] = std::max(most_[kind], now_[kind]);
      all += now_[kind];
    }
    if (all > together_.bytes) together_ = {&instruction, all};
    for (const Liveness::Touched& each : touched)
      if (!each.liveBefore) remove(each.buffer);
  }

  void add(uint32_t buffer) { live(buffer) += at(buffer).bytes(); }
  void remove(uint32_t buffer) { live(buffer) -= at(buffer).bytes(); }
  const Buffer& at(uint32_t buffer) const { return plan_.buffers(static_cast<int>(buffer)); }
  // The live bytes that the buffer counts under.
  uint64_t& live(uint32_t buffer) { return at(buffer).space() == space_ ? now_[at(buffer).kind()] : elsewhere_; }

  const Plan& plan_;
  const Buffer::Space space_;
  Liveness liveness_;
  MostBytes together_;
  uint64_t elsewhere_ = 0;  // in other spaces
  uint64_t now_[CONSTANTS + 1] = {}, most_[CONSTANTS + 1] = {};
};

}  // namespace

std::map<BufferKind, uint64_t> memoryByKind(const Plan& plan, Buffer::Space space) {
  return LiveBytes(plan, space).run();
}

MostBytes mostBytes(const Plan& plan, Buffer::Space space) {
  LiveBytes live(plan, space);
  live.run();
  return live.together();
}

void declareMemoryByKind(Plan& plan) {
  auto declare = [&](Buffer::Space space, google::protobuf::RepeatedPtrField<KindBytes>& list) {
    std::set<BufferKind> kinds;
    for (const Buffer& buffer : plan.buffers())
      if (buffer.space() == space) kinds.insert(buffer.kind());
    list.Clear();
    for (const auto& [kind, bytes] : memoryByKind(plan, space)) {
      if (space != Buffer::DEVICE && !kinds.contains(kind)) continue;
      KindBytes* held = list.Add();
      held->set_kind(kind);
      held->set_bytes(bytes);
    }
  };
  declare(Buffer::DEVICE, *plan.mutable_memory()->mutable_by_kind());
  for (SpaceMemory& memory : *plan.mutable_memory()->mutable_spaces())
    declare(memory.space(), *memory.mutable_by_kind());
}

}  // namespace sheaf::plan
