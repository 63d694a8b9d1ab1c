#include "runtime/plan/Summary.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "runtime/plan/LiveRanges.h"
#include "runtime/plan/StepWork.h"
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

StageNeeds stageNeeds(const Plan& plan, int32_t within, int32_t between) {
  StageNeeds needs;
  auto part = [&](uint64_t bytes, int32_t least) {
    const int64_t parts = within < least ? 1 : between < least ? ranksPerNode(plan) : plan.ranks();
    return bytes / static_cast<uint64_t>(parts);
  };
  for (const Bucket& bucket : plan.buckets()) {
    needs.parameters += part(bucket.elements() * elementBytes(bucket.type()), 3);
    if (!bucket.trainable()) continue;
    needs.optimizer += part(bucket.elements() * sizeof(float) * static_cast<uint64_t>(bucket.states_size()), 1);
    needs.gradients += part(bucket.elements() * elementBytes(gradientType(bucket)), 2);
  }
  return needs;
}

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

Summary summarize(const Plan& plan) {
  Summary summary;
  for (const Parameter& parameter : plan.parameters())
    (parameter.trainable() ? summary.parameters : summary.frozenParameters) +=
        elementCount(shapeOf(parameter)).value_or(0);
  summary.peakBytes = plan.memory().peak_bytes();
  summary.libraryBytes = plan.memory().library_bytes();
  summary.byKind = memoryByKind(plan);
  for (const SpaceMemory& memory : plan.memory().spaces()) {
    SpaceSummary& space = summary.spaces[memory.space()];
    space.peakBytes = memory.peak_bytes();
    for (const KindBytes& kind : memory.by_kind()) space.byKind[kind.kind()] = kind.bytes();
  }
  for (const Instruction* instruction : stepInstructions(plan))
    summary.updates += instruction->updates_bucket() > 0, summary.updatesOnHost += isOnHost(*instruction);
  for (const Instruction* instruction : stepInstructions(plan))
    if (instruction->has_transfer()) {
      Moved& moved = summary.transfers[instruction->transfer().kind()];
      ++moved.count;
      moved.bytes += sourceOf(*instruction).bytes();
    }
  for (const Instruction* instruction : stepInstructions(plan))
    if (instruction->has_collective()) {
      const Collective& collective = instruction->collective();
      const uint64_t bytes = collectiveBytes(plan, collective),
                     members = static_cast<uint64_t>(ranksOf(plan, collective));
      const uint64_t hops = collective.op() == ALL_REDUCE ? 2 : 1;
      summary.communication.push_back({collective.op(), collective.bucket(), collective.phase(), bytes,
                                       axisOf(plan, collective), hops * (bytes * (members - 1) / members),
                                       networkBytes(plan, collective)});
    }
  for (int32_t stage = 0; stage < 4; ++stage)
    summary.stages[static_cast<size_t>(stage)] = stageNeeds(plan, stage, stage);
  const bool nodes = plan.ranks_per_node() > 0;
  summary.own = stageNeeds(plan, plan.zero_stage(), nodes ? plan.network_stage() : plan.zero_stage());
  if (plan.has_floor()) summary.floor = plan.floor();
  summary.issued = issuedWork(plan);
  return summary;
}

}  // namespace sheaf::plan
