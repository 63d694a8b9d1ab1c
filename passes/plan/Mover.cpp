#include "passes/plan/Mover.h"

#include <algorithm>

#include "passes/plan/Transfers.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan_ir {

using Space = plan::Buffer::Space;

Mover::Edited::Edited(plan::InstructionList& instructions) : list(instructions) {
  for (OpenList::Place at = list.begin(); at != list.end(); ++at) places.push_back(at);
}

Mover::Mover(plan::Plan& plan, const BufferUses& uses) : plan_(plan), uses_(uses), added_(plan) {
  for (plan::InstructionList* list : roundsOf(plan)) edited_.emplace_back(*list);
}

Mover::~Mover() {
  edited_.clear();
  added_.settle();
}

void Mover::move(uint32_t buffer, Space space, const Away& away) {
  uses_.at(buffer).persistent() ? moveState(buffer, space, away) : moveValue(buffer, space, away);
}

std::vector<Session> Mover::sessionsOf(const Section& section, uint32_t buffer, const Away& away) {
  return uses_.sessionsOf(section, buffer, [&](const Section& of, size_t before, size_t after) {
    return executorOf(instruction(of, before)) != executorOf(instruction(of, after)) || away(of, before, after);
  });
}

void Mover::replace(const Section& section, const Session& session, uint32_t from, uint32_t to) {
  for (size_t i : session)
    for (plan::Operand& operand : *instruction(section, i).mutable_operands())
      if (operand.buffer() == from) operand.set_buffer(to);
}

void Mover::moveState(uint32_t home, Space space, const Away& away) {
  plan_.mutable_buffers(static_cast<int>(home))->set_space(space);
  for (const Section& section : uses_.sections())
    for (const Session& session : sessionsOf(section, home, away)) {
      const Space executor = executorOf(instruction(section, session.front()));
      if (executor == space) continue;
      const uint32_t image = imageOf(home, executor);
      replace(section, session, home, image);
      if (!uses_.writesWholeFirst(section, session, home)) fetch(section, session, home, image, space);
      if (BufferUses::writes(section, session, home)) store(section, session, image, home, space);
    }
}

void Mover::moveValue(uint32_t value, Space space, const Away& away) {
  const Section* only = uses_.onlySectionOf(value);
  if (!only) return;
  const std::vector<Session> sessions = sessionsOf(*only, value, away);
  // Of what is written in part, or with gaps, the rest must not be moved.
  if (sessions.size() < 2 || !uses_.isWritten(*only, sessions.front(), value)) return;
  if (executorOf(instruction(*only, sessions.front().front())) != plan::Buffer::DEVICE) return;
  // What a launch on the host reads soon goes there without a detour.
  const std::vector<size_t>& uses = only->uses.at(value);
  bool far = false;
  for (size_t u = 1; u < uses.size(); ++u) far = far || away(*only, uses[u - 1], uses[u]);
  if (space == plan::Buffer::FILE && !far) return;
  // What a session begins by overwriting need not be kept for it.
  std::vector<bool> kept{false};
  for (size_t i = 1; i < sessions.size(); ++i) kept.push_back(!uses_.writesWholeFirst(*only, sessions[i], value));
  kept.push_back(false);
  if (std::find(kept.begin(), kept.end(), true) == kept.end()) return;
  const uint32_t home = added_.addLike(value, cat(uses_.at(value).name(), ".", plan::word(space)), space);
  for (size_t i = 0; i < sessions.size(); ++i) {
    const Session& session = sessions[i];
    const Space executor = executorOf(instruction(*only, session.front()));
    const uint32_t image = executor == space ? home : i == 0 ? value : imageOf(value, executor);
    if (i > 0) replace(*only, session, value, image);
    if (executor == space) continue;
    if (kept[i]) fetch(*only, session, home, image, space);
    if (kept[i + 1] && BufferUses::writes(*only, session, value)) store(*only, session, image, home, space);
  }
}

std::vector<HostUpdate> Mover::hostUpdates() const {
  std::vector<HostUpdate> updates;
  for (const Section& section : uses_.sections())
    for (size_t i = 0; i < section.size(); ++i) {
      const uint32_t bucket = section.at(i).updates_bucket();
      if (!section.at(i).has_kernel() || bucket == 0) continue;
      HostUpdate update{&section, i, {}};
      bool alone = true;
      for (const plan::State& state : uses_.plan().buckets(static_cast<int>(bucket) - 1).states()) {
        update.states.push_back(state.buffer());
        alone &= uses_.onlySectionOf(state.buffer()) == &section &&
                 section.uses.at(state.buffer()) == std::vector<size_t>{i};
      }
      if (alone && !update.states.empty()) updates.push_back(std::move(update));
    }
  return updates;
}

void Mover::runOnHost(const HostUpdate& update) {
  plan::Instruction& launch = instruction(*update.section, update.launch);
  launch.mutable_kernel()->set_on_host(true);
  launch.set_stream(streamNamed(plan_, kHostComputeStream));
}

// A buffer for a session, where its instructions are executed.
uint32_t Mover::imageOf(uint32_t home, Space executor) {
  const uint64_t number = images_[home]++;
  const std::string& name = uses_.at(home).name();
  return added_.addLike(home, number ? cat(name, ".image.", number) : cat(name, ".image"), executor);
}

void Mover::fetch(const Section& section, const Session& session, uint32_t home, uint32_t image, Space space) {
  Edited& of = edited(section);
  of.list.insert(of.places[session.front()], transfer(plan_, transferKind(space, true), home, image));
}

void Mover::store(const Section& section, const Session& session, uint32_t image, uint32_t home, Space space) {
  Edited& of = edited(section);
  of.list.insert(std::next(of.places[session.back()]), transfer(plan_, transferKind(space, false), image, home));
}

}  // namespace sheaf::plan_ir
