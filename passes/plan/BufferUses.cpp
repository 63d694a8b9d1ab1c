#include "passes/plan/BufferUses.h"

#include "passes/plan/Transfers.h"

using namespace mlir;

namespace sheaf::plan_ir {
namespace {

void mark(plan::BlockMap<bool>& map, const plan::Place& place) {
  for (const plan::Block& block : place.written)
    map.visit(block, [](const plan::Block&, bool& known) { known = true; });
}

}  // namespace

BufferUses::BufferUses(ProgramOp program, const plan::Plan& plan, const profile::Profile& profile)
    : plan_(plan), places_(plan) {
  Block& block = program.getBody().front();
  for (BufferOp buffer : block.getOps<BufferOp>()) buffers_.push_back(buffer);
  uint32_t positions = 0;
  auto add = [&](Region& region, const plan::InstructionList& list, double times) {
    Section& section = sections_.emplace_back();
    section.first = positions, section.times = times;
    positions += static_cast<uint32_t>(list.size());
    double before = 0;
    for (auto [op, instruction] : llvm::zip(region.front(), list)) {
      section.ops.push_back(&op);
      section.instructions.push_back(&instruction);
      section.begin.push_back(before);
      if (streamOf(&op) == 0) before += profile.seconds(profile::workOf(instruction, plan));
    }
    section.begin.push_back(before);
  };
  int part = 0;
  for (Operation& op : block) {
    if (auto p = dyn_cast<PartOp>(op)) {
      const auto turns = llvm::count_if(plan.turns(), [&](const plan::Turn& turn) { return int(turn.part()) == part; });
      add(p.getBody(), plan.parts(part++).instructions(), static_cast<double>(turns));
    }
    if (auto p = dyn_cast<StepOp>(op)) add(p.getBody(), plan.body(), 1);
    if (auto p = dyn_cast<EvaluationOp>(op)) add(p.getBody(), plan.evaluation(), 0);
  }
  for (Section& section : sections_)
    for (size_t i = 0; i < section.ops.size(); ++i)
      for (const Operand& operand : operandsOf(section.ops[i])) {
        std::vector<size_t>& uses = section.uses[operand.buffer];
        if (uses.empty() || uses.back() != i) uses.push_back(i);
      }
}

uint32_t BufferUses::positions() const {
  return sections_.empty() ? 0 : sections_.back().first + static_cast<uint32_t>(sections_.back().ops.size());
}

const Section* BufferUses::onlySectionOf(BufferOp buffer) const {
  const Section* only = nullptr;
  for (const Section& section : sections_) {
    if (!section.uses.contains(buffer.getResult())) continue;
    if (only) return nullptr;
    only = &section;
  }
  return only;
}

std::vector<Session> BufferUses::sessionsOf(const Section& section, BufferOp buffer, Away away) const {
  std::vector<Session> sessions;
  auto uses = section.uses.find(buffer.getResult());
  if (uses == section.uses.end()) return sessions;
  for (size_t i : uses->second) {
    auto apart = [&](size_t before) {
      return executorOf(section.ops[before]) != executorOf(section.ops[i]) || away(section, before, i);
    };
    if (sessions.empty() || apart(sessions.back().back())) sessions.emplace_back();
    sessions.back().push_back(i);
  }
  return sessions;
}

bool BufferUses::writes(const Section& section, const Session& session, Value buffer) {
  return llvm::any_of(session, [&](size_t i) {
    return llvm::any_of(operandsOf(section.ops[i]),
                        [&](const Operand& operand) { return operand.buffer == buffer && operand.access != kRead; });
  });
}

bool BufferUses::writesWholeFirst(const Section& section, const Session& session, Value buffer) const {
  const SmallVector<Operand> operands = operandsOf(section.ops[session.front()]);
  const bool reads = llvm::any_of(
      operands, [&](const Operand& operand) { return operand.buffer == buffer && operand.access != kWrite; });
  if (reads) return false;
  const std::vector<plan::Place>& places = places_.of(*section.instructions[session.front()]);
  for (auto [operand, place] : llvm::zip(operands, places)) {
    if (operand.buffer != buffer || place.part != plan::Share::kNone) continue;
    plan::BlockMap<bool> map;
    mark(map, place);
    if (isFull(map, place.buffer)) return true;
  }
  return false;
}

bool BufferUses::isWritten(const Section& section, const Session& session, BufferOp buffer) const {
  plan::BlockMap<bool> map;
  std::optional<uint32_t> index;
  for (size_t i : session)
    for (auto [operand, place] : llvm::zip(operandsOf(section.ops[i]), places_.of(*section.instructions[i]))) {
      if (operand.buffer != buffer.getResult()) continue;
      index = place.buffer;
      if (!place.writes || place.scratch) continue;
      // A rank's part says nothing of the others.
      if (place.part != plan::Share::kNone) continue;
      mark(map, place);
    }
  return index && isFull(map, *index);
}

bool BufferUses::isFull(plan::BlockMap<bool>& map, uint32_t buffer) const {
  bool full = true;
  for (const plan::Block& block : places_.blocks(buffer, 0, plan_.buffers(static_cast<int>(buffer)).bytes()))
    map.visit(block, [&](const plan::Block&, bool& known) { full &= known; });
  return full;
}

std::vector<uint64_t> BufferUses::liveBytes() const {
  std::vector<uint64_t> change(positions() + 1), live;
  for (BufferOp buffer : buffers()) {
    size_t begin = positions(), end = 0;
    for (const Section& section : sections_)
      if (auto uses = section.uses.find(buffer.getResult()); uses != section.uses.end()) {
        begin = std::min(begin, section.first + uses->second.front());
        end = std::max(end, section.first + uses->second.back() + 1);
      }
    if (buffer.getPersistent()) begin = 0, end = positions();
    if (begin >= end || spaceOf(buffer) != plan::Buffer::DEVICE) continue;
    change[begin] += static_cast<uint64_t>(buffer.getBytes());
    change[end] -= static_cast<uint64_t>(buffer.getBytes());
  }
  uint64_t now = 0;
  for (size_t i = 0; i < positions(); ++i) live.push_back(now += change[i]);
  return live;
}

}  // namespace sheaf::plan_ir
