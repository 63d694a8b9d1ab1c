// Orders conflicting accesses of different streams by events, around the loop.
#include <map>
#include <set>

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "passes/plan/Edits.h"
#include "passes/plan/Finish.h"
#include "runtime/plan/Conflicts.h"

namespace sheaf::plan_ir {
namespace {

struct Consumers {
  plan::Part part;                                // the producer's
  llvm::SetVector<const plan::Instruction*> all;  // that must wait for it, in the order found; null: the host
};
// By producer.
using Dependences = llvm::MapVector<const plan::Instruction*, Consumers>;

void eraseEvents(plan::Plan& plan) {
  for (plan::InstructionList* of : listsOf(plan)) {
    OpenList list(*of);
    for (OpenList::Place at = list.begin(); at != list.end();)
      at = (*at)->has_record() || (*at)->has_wait() ? list.erase(at) : std::next(at);
  }
}

// The address of each buffer, in all of the run.
struct Bases {
  std::vector<uint64_t> of;
  uint64_t operator()(size_t, uint32_t buffer) const { return of[buffer]; }
};

// Each buffer's offset in its space or, before it has one, apart from all others.
Bases basesOf(const plan::Plan& plan, bool placed) {
  std::vector<uint64_t> bases;
  uint64_t top = 0;
  for (const plan::Buffer& buffer : plan.buffers()) {
    bases.push_back(placed ? plan::addressOf(buffer) : top);
    top += buffer.bytes();
  }
  // Both generations get one address, so that accesses to either are ordered with accesses to both. Which of the two
  // places each has in a step does not matter then.
  for (const plan::Generation& generation : plan.generations()) bases[generation.next()] = bases[generation.current()];
  return {std::move(bases)};
}

bool isFetch(const plan::Instruction& instruction) {
  return instruction.has_transfer() && plan::fetches(instruction.transfer().kind());
}
bool isStore(const plan::Instruction& instruction) {
  return instruction.has_transfer() && !isFetch(instruction);
}
bool isGather(const plan::Instruction& instruction) {
  return instruction.has_collective() && instruction.collective().op() == plan::ALL_GATHER;
}

// Follows the accesses of the unrolled loop.
class DependenceFinder {
 public:
  DependenceFinder(const plan::Plan& plan, bool placed)
      : plan_(plan), placed_(placed), sequence_(plan), conflicts_(sequence_, basesOf(plan, placed)) {
    for (size_t i = 0; i < sequence_.size(); ++i)
      if (!sequence_.isHost(i) && isFetch(*sequence_[i].instruction)) waiting_.insert(streamAt(i));
  }

  Dependences find() {
    for (size_t i = 0; i < sequence_.size(); ++i)
      if (sequence_.isHost(i))
        visitHost(i);
      else
        visit(i, *sequence_[i].instruction);
    return std::move(dependences_);
  }

 private:
  uint32_t streamAt(size_t i) const { return sequence_.issued()[i].stream; }

  void order(size_t earlier, size_t later) {
    if (streamAt(earlier) == streamAt(later)) return;
    Consumers& consumers = dependences_[sequence_[earlier].instruction];
    consumers.part = sequence_[earlier].part;
    consumers.all.insert(sequence_[later].instruction);
  }

  void access(size_t i) {
    conflicts_.visit(i, [&](size_t earlier, uint32_t, uint64_t, uint64_t, plan::Conflict) { order(earlier, i); });
  }

  // The host issues nothing before all streams have drained.
  void visitHost(size_t i) {
    access(i);
    computed_.reset();
    communicated_.clear();
    stored_.clear(), freed_.clear();
  }

  void visit(size_t i, const plan::Instruction& instruction) {
    if (!placed_) orderForMemory(i, instruction);
    if (isStore(instruction)) {
      auto [latest, first] = stored_.try_emplace(streamAt(i), i);
      if (!first)
        for (uint32_t stream : waiting_) freed_[{streamAt(i), stream}] = latest->second;
      latest->second = i;
    }
    if (streamAt(i) == 0) computed_ = i;
    // Ranks must meet in one order.
    if (const std::optional<uint32_t> communicator = plan::communicatorOf(plan_, instruction)) {
      auto [latest, first] = communicated_.try_emplace(*communicator, i);
      if (!first) order(std::exchange(latest->second, i), i);
    }
    access(i);
  }

  // A gather must not run further ahead than it was scheduled, or all gathered buckets would be alive at once. Once
  // memory is laid out, what shares bytes with the bucket holds it back.
  void orderForMemory(size_t i, const plan::Instruction& instruction) {
    if (computed_ && (isGather(instruction) || isFetch(instruction)) && !writesPersistent(instruction))
      order(*computed_, i);
    if (streamAt(i) == 0 || isFetch(instruction))
      std::erase_if(freed_, [&](const auto& entry) {
        const bool waits = entry.first.second == streamAt(i);
        if (waits) order(entry.second, i);
        return waits;
      });
  }

  bool writesPersistent(const plan::Instruction& gather) const {
    return plan_.buffers(static_cast<int>(gather.operands().rbegin()->buffer())).persistent();
  }

  const plan::Plan& plan_;
  const bool placed_;
  const plan::Unrolled sequence_;
  plan::Conflicts<Bases> conflicts_;
  Dependences dependences_;
  std::optional<size_t> computed_;           // the latest instruction of the first stream
  std::map<uint32_t, size_t> communicated_;  // the latest collective of each communicator
  // When a stream issues a second store, computation and fetches issued after it wait for the first one, whose bytes
  // are then free. schedule::loopOf(model, order) has the same rule.
  std::map<uint32_t, size_t> stored_;                      // the latest store of each stream
  std::map<std::pair<uint32_t, uint32_t>, size_t> freed_;  // by streams of store and waiter: the store to wait for
  std::set<uint32_t> waiting_{0};                          // streams that wait for stores
};

plan::Instruction eventOf(const plan::Instruction& producer, uint32_t stream) {
  plan::Instruction instruction;
  instruction.set_stream(stream);
  instruction.set_label(producer.label());
  return instruction;
}

void insert(plan::Plan& plan, const Dependences& dependences) {
  using Instructions = std::vector<plan::Instruction>;
  llvm::DenseMap<const plan::Instruction*, plan::Instruction> after;  // the record of a producer
  llvm::DenseMap<const plan::Instruction*, Instructions> before;      // the waits of a consumer
  Instructions atEnd, atEndOfEvaluation;                              // the waits of the host
  uint32_t event = 0;
  for (const auto& [producer, consumers] : dependences) {
    plan::Instruction& record = after[producer] = eventOf(*producer, producer->stream());
    record.mutable_record()->set_event(event);
    for (const plan::Instruction* consumer : consumers.all) {
      Instructions& waits = consumer                                    ? before[consumer]
                            : consumers.part == plan::Part::kEvaluation ? atEndOfEvaluation
                                                                        : atEnd;
      // The host waits on stream 0.
      waits.push_back(eventOf(*producer, consumer ? consumer->stream() : 0));
      waits.back().mutable_wait()->set_event(event);
    }
    ++event;
  }
  for (plan::InstructionList* of : listsOf(plan)) {
    OpenList list(*of);
    auto insertAll = [&](OpenList::Place place, Instructions& instructions) {
      for (plan::Instruction& instruction : instructions) list.insert(place, std::move(instruction));
    };
    for (OpenList::Place at = list.begin(); at != list.end(); ++at) {
      const plan::Instruction* instruction = at->get();
      if (auto waits = before.find(instruction); waits != before.end()) insertAll(at, waits->second);
      if (auto record = after.find(instruction); record != after.end())
        at = list.insert(std::next(at), std::move(record->second));
    }
    if (of == plan.mutable_epilogue()) insertAll(list.end(), atEnd);
    if (of == plan.mutable_evaluation()) insertAll(list.end(), atEndOfEvaluation);
  }
  plan.set_events(event);
}

}  // namespace

Status insertEvents(Draft& draft, bool placed) {
  eraseEvents(draft.plan);
  insert(draft.plan, DependenceFinder(draft.plan, placed).find());
  return {};
}

}  // namespace sheaf::plan_ir
