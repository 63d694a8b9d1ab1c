#include "passes/plan/Mover.h"

#include "passes/plan/Transfers.h"
#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {
namespace {

using Space = plan::Buffer::Space;

Space executorOf(const Section& section, const Session& session) {
  return plan_ir::executorOf(section.ops[session.front()]);
}

void replace(const Section& section, const Session& session, Value from, Value to) {
  for (size_t i : session) section.ops[i]->replaceUsesOfWith(from, to);
}

}  // namespace

void Mover::move(BufferOp buffer, Space space, Away away) {
  buffer.getPersistent() ? moveState(buffer, space, away) : moveValue(buffer, space, away);
}

void Mover::moveState(BufferOp home, Space space, Away away) {
  home.setSpace(space);
  for (const Section& section : uses_.sections())
    for (const Session& session : uses_.sessionsOf(section, home, away)) {
      const Space executor = executorOf(section, session);
      if (executor == space) continue;
      Value image = imageOf(home, executor);
      replace(section, session, home, image);
      if (!uses_.writesWholeFirst(section, session, image)) fetch(section, session, home, image, space);
      if (uses_.writes(section, session, image)) store(section, session, image, home, space);
    }
}

void Mover::moveValue(BufferOp value, Space space, Away away) {
  const Section* only = uses_.onlySectionOf(value);
  if (!only) return;
  const std::vector<Session> sessions = uses_.sessionsOf(*only, value, away);
  // Of what is written in part, or with gaps, the rest must not be moved.
  if (sessions.size() < 2 || !uses_.isWritten(*only, sessions.front(), value)) return;
  if (executorOf(*only, sessions.front()) != plan::Buffer::DEVICE) return;
  // What a launch on the host reads soon goes there without a detour.
  const std::vector<size_t>& uses = only->uses.find(value.getResult())->second;
  const bool far =
      llvm::any_of(llvm::seq<size_t>(1, uses.size()), [&](size_t u) { return away(*only, uses[u - 1], uses[u]); });
  if (space == plan::Buffer::FILE && !far) return;
  // What a session begins by overwriting need not be kept for it.
  auto needsOld = [&](size_t i) { return i < sessions.size() && !uses_.writesWholeFirst(*only, sessions[i], value); };
  if (llvm::none_of(llvm::seq<size_t>(1, sessions.size()), needsOld)) return;
  BufferOp home = createLike(builder_, value, value.getName() + "." + plan::word(space), space);
  SmallVector<bool> kept;
  for (size_t i = 0; i <= sessions.size(); ++i) kept.push_back(i > 0 && needsOld(i));
  for (auto [i, session] : llvm::enumerate(sessions)) {
    const Space executor = executorOf(*only, session);
    const Value image = executor == space ? home.getResult() : i == 0 ? Value(value) : imageOf(value, executor);
    if (i > 0) replace(*only, session, value, image);
    if (executor == space) continue;
    if (kept[i]) fetch(*only, session, home, image, space);
    if (kept[i + 1] && uses_.writes(*only, session, image)) store(*only, session, image, home, space);
  }
}

SmallVector<HostUpdate> Mover::hostUpdates() const {
  SmallVector<BucketOp> buckets(ProgramOp(program_).getBody().front().getOps<BucketOp>());
  SmallVector<HostUpdate> updates;
  for (const Section& section : uses_.sections())
    for (auto [i, op] : llvm::enumerate(section.ops)) {
      auto launch = dyn_cast<LaunchOp>(op);
      if (!launch || launch.getUpdatesBucket() == 0) continue;
      HostUpdate update{launch, section.instructions[i], {}};
      bool alone = true;
      for (Value state : buckets[launch.getUpdatesBucket() - 1].getStates()) {
        update.states.push_back(state.getDefiningOp<BufferOp>());
        alone &= uses_.onlySectionOf(update.states.back()) == &section &&
                 section.uses.find(state)->second == std::vector<size_t>{i};
      }
      if (alone && !update.states.empty()) updates.push_back(std::move(update));
    }
  return updates;
}

void Mover::runOnHost(LaunchOp update) {
  update.setOnHost(true);
  update.setStream(streamNamed(program_, kHostComputeStream));
}

// A buffer for a session, where its instructions are executed.
Value Mover::imageOf(BufferOp home, Space executor) {
  const int64_t number = images_[home.getResult()]++;
  return createLike(builder_, home, home.getName() + (number ? ".image." + Twine(number) : Twine(".image")), executor)
      .getResult();
}

void Mover::fetch(const Section& section, const Session& session, Value home, Value image, Space space) {
  builder_.setInsertionPoint(section.ops[session.front()]);
  createTransfer(builder_, program_, transferKind(space, true), home, image);
}

void Mover::store(const Section& section, const Session& session, Value image, Value home, Space space) {
  builder_.setInsertionPointAfter(section.ops[session.back()]);
  createTransfer(builder_, program_, transferKind(space, false), image, home);
}

}  // namespace sheaf::plan_ir
