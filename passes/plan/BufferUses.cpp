#include "passes/plan/BufferUses.h"

#include <algorithm>

namespace sheaf::plan_ir {
namespace {

void mark(plan::BlockMap<bool>& map, const plan::Place& place) {
  for (const plan::Block& block : place.written)
    map.visit(block, [](const plan::Block&, bool& known) { known = true; });
}

}  // namespace

BufferUses::BufferUses(const plan::Plan& plan, const profile::Profile& profile) : plan_(plan), places_(plan) {
  uint32_t positions = 0;
  auto add = [&](const plan::InstructionList& list, double times) {
    Section& section = sections_.emplace_back();
    section.list = &list;
    section.first = positions, section.times = times;
    positions += static_cast<uint32_t>(list.size());
    double before = 0;
    for (const plan::Instruction& instruction : list) {
      const size_t i = section.begin.size();
      section.begin.push_back(before);
      if (instruction.stream() == 0) before += profile.seconds(profile::workOf(instruction, plan));
      for (const plan::Operand& operand : instruction.operands()) {
        std::vector<size_t>& uses = section.uses[operand.buffer()];
        if (uses.empty() || uses.back() != i) uses.push_back(i);
      }
    }
    section.begin.push_back(before);
  };
  for (int part = 0; part < plan.parts_size(); ++part) {
    auto isOfPart = [&](const plan::Turn& turn) { return static_cast<int>(turn.part()) == part; };
    const auto turns = std::count_if(plan.turns().begin(), plan.turns().end(), isOfPart);
    add(plan.parts(part).instructions(), static_cast<double>(turns));
  }
  add(plan.body(), 1);
  add(plan.evaluation(), 0);
}

uint32_t BufferUses::positions() const {
  return sections_.back().first + static_cast<uint32_t>(sections_.back().size());
}

const Section* BufferUses::onlySectionOf(uint32_t buffer) const {
  const Section* only = nullptr;
  for (const Section& section : sections_) {
    if (!section.uses.contains(buffer)) continue;
    if (only) return nullptr;
    only = &section;
  }
  return only;
}

std::vector<Session> BufferUses::sessionsOf(const Section& section, uint32_t buffer, const Away& apart) const {
  std::vector<Session> sessions;
  auto uses = section.uses.find(buffer);
  if (uses == section.uses.end()) return sessions;
  for (size_t i : uses->second) {
    if (sessions.empty() || apart(section, sessions.back().back(), i)) sessions.emplace_back();
    sessions.back().push_back(i);
  }
  return sessions;
}

bool BufferUses::writes(const Section& section, const Session& session, uint32_t buffer) {
  for (size_t i : session)
    for (const plan::Operand& operand : section.at(i).operands())
      if (operand.buffer() == buffer && operand.access() != plan::READ) return true;
  return false;
}

bool BufferUses::writesWholeFirst(const Section& section, const Session& session, uint32_t buffer) const {
  const plan::Instruction& first = section.at(session.front());
  for (const plan::Operand& operand : first.operands())
    if (operand.buffer() == buffer && operand.access() != plan::WRITE) return false;
  for (const plan::Place& place : places_.of(first)) {
    if (place.buffer != buffer || place.part != plan::Share::kNone) continue;
    plan::BlockMap<bool> map;
    mark(map, place);
    if (isFull(map, buffer)) return true;
  }
  return false;
}

bool BufferUses::isWritten(const Section& section, const Session& session, uint32_t buffer) const {
  plan::BlockMap<bool> map;
  bool used = false;
  for (size_t i : session)
    for (const plan::Place& place : places_.of(section.at(i))) {
      if (place.buffer != buffer) continue;
      used = true;
      if (!place.writes || place.scratch) continue;
      // A rank's part says nothing of the others.
      if (place.part != plan::Share::kNone) continue;
      mark(map, place);
    }
  return used && isFull(map, buffer);
}

bool BufferUses::isFull(plan::BlockMap<bool>& map, uint32_t buffer) const {
  bool full = true;
  for (const plan::Block& block : places_.blocks(buffer, 0, at(buffer).bytes()))
    map.visit(block, [&](const plan::Block&, bool& known) { full &= known; });
  return full;
}

std::vector<uint64_t> BufferUses::liveBytes() const {
  std::vector<uint64_t> change(positions() + 1), live;
  for (uint32_t buffer = 0; buffer < buffers(); ++buffer) {
    size_t begin = positions(), end = 0;
    for (const Section& section : sections_)
      if (auto uses = section.uses.find(buffer); uses != section.uses.end()) {
        begin = std::min(begin, section.first + uses->second.front());
        end = std::max(end, section.first + uses->second.back() + 1);
      }
    if (at(buffer).persistent()) begin = 0, end = positions();
    if (begin >= end || at(buffer).space() != plan::Buffer::DEVICE) continue;
    change[begin] += at(buffer).bytes();
    change[end] -= at(buffer).bytes();
  }
  uint64_t now = 0;
  for (size_t i = 0; i < positions(); ++i) live.push_back(now += change[i]);
  return live;
}

}  // namespace sheaf::plan_ir
