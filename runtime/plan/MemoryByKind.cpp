#include "runtime/plan/MemoryByKind.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "runtime/plan/LiveRanges.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {
namespace {

// Walks the step backwards and keeps for every kind how much of it is alive. An operand that differs by rank is taken
// as rank 0's: all ranks' buffers live equally long.
class Liveness {
 public:
  Liveness(const Plan& plan, Buffer::Space space)
      : plan_(plan), space_(space), live_(static_cast<size_t>(plan.buffers_size())) {
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
    std::vector<uint32_t> touched;
    forEachOperand(instruction, [&](const Operand& operand) {
      const Buffer& buffer = plan_.buffers(static_cast<int>(operand.buffer()));
      if (buffer.persistent() || buffer.space() != space_) return;
      if (live_[operand.buffer()].empty() &&
          std::find(touched.begin(), touched.end(), operand.buffer()) == touched.end())
        count(operand.buffer(), true);
      touched.push_back(operand.buffer());
    });
    uint64_t all = 0;
    for (int kind = 0; kind <= CONSTANTS; ++kind) {
      most_[kind] = std::max(most_[kind], now_[kind]);
      all += now_[kind];
    }
    if (all > together_.bytes) together_ = {&instruction, all};
    forEachOperand(instruction, [&](const Operand& operand) {
      if (operand.access() == WRITE)
        live_[operand.buffer()].remove(operand.offset(), operand.offset() + operand.bytes());
    });
    forEachOperand(instruction, [&](const Operand& operand) {
      // Scratch is read and written, but nothing of it is there before or after.
      if (operand.access() != WRITE && !isScratch(instruction, operand))
        live_[operand.buffer()].add(operand.offset(), operand.offset() + operand.bytes());
    });
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (uint32_t buffer : touched)
      if (live_[buffer].empty()) count(buffer, false);
  }

  void count(uint32_t index, bool alive) {
    const Buffer& buffer = plan_.buffers(static_cast<int>(index));
    if (alive)
      now_[buffer.kind()] += buffer.bytes();
    else
      now_[buffer.kind()] -= buffer.bytes();
  }

  const Plan& plan_;
  const Buffer::Space space_;
  std::vector<LiveRanges> live_;
  MostBytes together_;
  uint64_t now_[CONSTANTS + 1] = {}, most_[CONSTANTS + 1] = {};
};

}  // namespace

std::map<BufferKind, uint64_t> memoryByKind(const Plan& plan, Buffer::Space space) {
  return Liveness(plan, space).run();
}

MostBytes mostBytes(const Plan& plan, Buffer::Space space) {
  Liveness liveness(plan, space);
  liveness.run();
  return liveness.together();
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
