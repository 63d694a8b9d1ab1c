// Chooses which buffers move to other spaces, and which updates run on the host; Mover moves them.
#include "ir/Plan/PlanProto.h"
#include "passes/plan/Mover.h"
#include "passes/plan/Passes.h"
#include "passes/plan/Transfers.h"
#include "passes/schedule/Construct.h"
#include "passes/schedule/Placement.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Profile.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_OFFLOAD
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf;
using namespace sheaf::plan_ir;

namespace {

using Space = plan::Buffer::Space;

// Between two uses an image is stored and fetched again if that takes less than this part of the computation between.
constexpr double kWorthMoving = 0.5;
// Values of the step that are smaller stay.
constexpr int64_t kLeastActivation = 16 << 10;

// Two uses of a buffer that follow each other.
struct Inner {
  const Section* section = nullptr;
  size_t before = 0, after = 0;
};

// What is moved to stay within a limit: a problem of placement over the program's buffers, and its solution carried
// out.
class WithinLimit {
 public:
  WithinLimit(const plan::Plan& plan, const profile::Profile& profile, const BufferUses& uses, Mover& mover)
      : plan_(plan), profile_(profile), uses_(uses), mover_(mover) {}

  // Moves as much of these buffers as leaves `deviceBytes` alive on the device, by cost; state of `updates` all or
  // none of an update, which then runs on the host.
  void move(ArrayRef<BufferOp> movable, ArrayRef<HostUpdate> updates, uint64_t deviceBytes, uint64_t hostBytes) {
    schedule::PlacementProblem problem;
    problem.deviceBytes = deviceBytes, problem.hostBytes = hostBytes;
    problem.live = uses_.liveBytes();
    for (const Section& section : uses_.sections()) problem.computeSeconds += section.times * section.begin.back();
    llvm::DenseSet<Value> together;
    for (const HostUpdate& update : updates) {
      problem.movables.push_back(movableOf(update, problem.computeSeconds));
      for (BufferOp state : update.states) together.insert(state.getResult());
    }
    SmallVector<BufferOp> single;
    std::vector<std::vector<Inner>> inner;
    for (BufferOp buffer : movable) {
      if (together.contains(buffer.getResult())) continue;
      single.push_back(buffer);
      problem.movables.push_back(movableOf(buffer, problem.computeSeconds, inner.emplace_back()));
    }
    const schedule::Placement placement = schedule::choosePlacement(problem, profile_);
    const ArrayRef<schedule::Placed> placements = placement.placed;
    for (auto [update, placed] : llvm::zip(updates, placements)) {
      if (placed.space == plan::Buffer::DEVICE) continue;
      mover_.runOnHost(update.launch);
      for (BufferOp state : update.states)
        mover_.move(state, placed.space, [](const Section&, size_t, size_t) { return false; });
    }
    for (auto [moved, placed, gaps] : llvm::zip(single, placements.drop_front(updates.size()), inner)) {
      BufferOp buffer = moved;
      if (placed.space == plan::Buffer::DEVICE) continue;
      const size_t first = placed.gaps.size() - gaps.size();  // of what persists, the gap between steps comes first
      auto away = [&](const Section& section, size_t before, size_t after) {
        for (size_t g = 0; g < gaps.size(); ++g)
          if (gaps[g].section == &section && gaps[g].before == before && gaps[g].after == after)
            return bool{placed.gaps[first + g]};
        return false;
      };
      mover_.move(buffer, placed.space, away);
    }
  }

 private:
  // The state of an update, which stays where it is moved to: the gradient goes there, and the parameters come back.
  schedule::Movable movableOf(const HostUpdate& update, double stepSeconds) const {
    schedule::Movable movable;
    movable.persistent = true;
    llvm::DenseSet<Value> states;
    for (BufferOp state : update.states) {
      movable.bytes += static_cast<uint64_t>(state.getBytes());
      states.insert(BufferOp(state).getResult());
    }
    schedule::Gap home;
    home.between = stepSeconds;
    home.spans.emplace_back(0, uses_.positions());
    for (const Operand& operand : operandsOf(update.launch)) {
      if (states.contains(operand.buffer)) continue;
      const double part = static_cast<double>(operand.bytes) / static_cast<double>(movable.bytes);
      if (operand.access != kWrite) home.stores += part;
      if (operand.access != kRead) home.fetches += part;
    }
    movable.gaps.push_back(std::move(home));
    movable.updateSeconds = profile_.hostUpdateSeconds(profile::workOf(*update.instruction, plan_));
    return movable;
  }

  // `stepSeconds`: of computation, under any of which what persists can move between steps.
  schedule::Movable movableOf(BufferOp buffer, double stepSeconds, std::vector<Inner>& inner) const {
    schedule::Movable movable;
    movable.bytes = static_cast<uint64_t>(buffer.getBytes());
    movable.persistent = buffer.getPersistent();
    schedule::Gap home;
    home.between = stepSeconds;
    for (const Section& section : uses_.sections()) {
      const uint32_t end = section.first + static_cast<uint32_t>(section.ops.size());
      auto found = section.uses.find(buffer.getResult());
      if (found == section.uses.end()) {
        home.spans.emplace_back(section.first, end);
        continue;
      }
      const std::vector<size_t>& uses = found->second;
      const Session all(uses.begin(), uses.end());
      home.spans.emplace_back(section.first, section.first + static_cast<uint32_t>(uses.front()));
      home.spans.emplace_back(section.first + static_cast<uint32_t>(uses.back()) + 1, end);
      home.fetches += uses_.writesWholeFirst(section, all, buffer) ? 0 : section.times;
      home.stores += uses_.writes(section, all, buffer) ? section.times : 0;
    }
    if (movable.persistent) movable.gaps.push_back(std::move(home));
    const Section* only = uses_.onlySectionOf(buffer);
    for (const Section& section : uses_.sections()) {
      auto found = section.uses.find(buffer.getResult());
      if (found == section.uses.end() || (!movable.persistent && &section != only)) continue;
      const std::vector<size_t>& uses = found->second;
      bool changed = true;  // since it was last stored
      for (size_t u = 1; u < uses.size(); ++u) {
        const size_t before = uses[u - 1], after = uses[u];
        changed |= uses_.writes(section, {before}, buffer);
        if (section.between(before, after) <= 0) continue;
        if (!movable.persistent && !uses_.isWritten(section, Session(uses.begin(), uses.begin() + u), buffer)) continue;
        inner.push_back({&section, before, after});
        const uint32_t first = section.first + static_cast<uint32_t>(before) + 1;
        movable.gaps.push_back({{{first, section.first + static_cast<uint32_t>(after)}},
                                section.times,
                                changed ? section.times : 0,
                                section.between(before, after)});
        changed = false;
      }
    }
    return movable;
  }

  const plan::Plan& plan_;
  const profile::Profile& profile_;
  const BufferUses& uses_;
  Mover& mover_;
};

// Puts the instructions of a list into an order that keeps few bytes alive: the schedule's where memory is short.
void orderLeanly(plan::Plan plan, const plan::InstructionList& list, const profile::Profile& profile, Block& block) {
  if (block.empty()) return;
  *plan.mutable_body() = list;
  plan.clear_parts();
  plan.clear_turns();
  const schedule::StepModel model = schedule::modelOf(plan, profile);
  schedule::ConstructionOptions lean;
  lean.maxGathersAhead = 0;
  const schedule::Order order = schedule::Constructor(model).construct(lean);
  SmallVector<Operation*> ops, first;
  for (Operation& op : block) ops.push_back(&op);
  for (uint32_t node : order.nodes) {
    Operation* op = ops[model.nodes[node].instruction];
    op->moveBefore(&block, block.end());
    if (order.carried[node]) first.push_back(op);
  }
  for (Operation* op : llvm::reverse(first)) op->moveBefore(&block, block.begin());
}

struct Offload : plan_ir::impl::OffloadBase<Offload> {
  using Base::Base;

  void runOnOperation() override {
    const auto spaces = {spaceNamed(optimizer), spaceNamed(parameters), spaceNamed(gradients), spaceNamed(activations)};
    if (llvm::is_contained(spaces, std::nullopt)) {
      getOperation().emitError("a kind can lie in one of these spaces: ")
          << listText(plan::words<plan::Buffer::Space>(), SIZE_MAX);
      return signalPassFailure();
    }
    if (updateOn != "device" && updateOn != "host") {
      getOperation().emitError("updates are made on one of: device, host");
      return signalPassFailure();
    }
    auto profile = schedule::loadProfile(profileName);
    if (!profile.ok()) {
      getOperation().emitError(profile.status().message());
      return signalPassFailure();
    }
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(move(program, *profile))) return signalPassFailure();
  }

  static std::optional<Space> spaceNamed(const std::string& word) { return plan::valueOf<plan::Buffer::Space>(word); }

  LogicalResult move(ProgramOp program, const profile::Profile& profile) {
    FailureOr<plan::Plan> plan = toProto(program, Kernels::kAny);
    if (failed(plan)) return failure();
    Expected<profile::Profile> scaled = profile.withRanks(plan->ranks());
    if (!scaled.ok()) return program.emitError(scaled.status().message());
    if (within >= 0) {
      int part = 0;
      for (Operation& op : program.getBody().front()) {
        if (auto p = dyn_cast<PartOp>(op))
          orderLeanly(*plan, plan->parts(part++).instructions(), *scaled, p.getBody().front());
        if (auto p = dyn_cast<StepOp>(op)) orderLeanly(*plan, plan->body(), *scaled, p.getBody().front());
        if (auto p = dyn_cast<EvaluationOp>(op)) orderLeanly(*plan, plan->evaluation(), *scaled, p.getBody().front());
      }
      plan = toProto(program, Kernels::kAny);
      if (failed(plan)) return failure();
    }
    const BufferUses uses(program, *plan, *scaled);
    Mover mover(program, uses);
    SmallVector<HostUpdate> updates;
    if (updateOn == "host") updates = mover.hostUpdates();
    llvm::DenseSet<Value> states, parameterBuffers;
    for (auto bucket : program.getBody().front().getOps<BucketOp>()) {
      parameterBuffers.insert(bucket.getParameters());
      states.insert(bucket.getStates().begin(), bucket.getStates().end());
    }
    auto isState = [&](BufferOp b) { return states.contains(b.getResult()); };
    auto isParameter = [&](BufferOp b) { return parameterBuffers.contains(b.getResult()); };
    auto isGradient = [](BufferOp b) { return !b.getPersistent() && b.getKind() == plan::GRADIENTS; };
    auto isValue = [](BufferOp b) {
      return !b.getPersistent() && b.getKind() == plan::ACTIVATIONS && int64_t(b.getBytes()) >= kLeastActivation;
    };
    if (within >= 0) {
      SmallVector<BufferOp> movable;
      for (BufferOp b : uses.buffers())
        if (isState(b) || isParameter(b) || isGradient(b) || isValue(b)) movable.push_back(b);
      WithinLimit(*plan, *scaled, uses, mover)
          .move(movable, updates, static_cast<uint64_t>(within), hostBytes < 0 ? UINT64_MAX : uint64_t(hostBytes));
      return success();
    }
    if (*spaceNamed(optimizer) != plan::Buffer::DEVICE)
      for (const HostUpdate& update : updates) mover.runOnHost(update.launch);
    auto moveKind = [&](Space space, llvm::function_ref<bool(BufferOp)> belongs) {
      if (space == plan::Buffer::DEVICE) return;
      for (BufferOp buffer : uses.buffers()) {
        if (!belongs(buffer)) continue;
        const uint64_t bytes = static_cast<uint64_t>(buffer.getBytes());
        const double moving =
            scaled->seconds(transferKind(space, true), bytes) + scaled->seconds(transferKind(space, false), bytes);
        auto farApart = [moving](const Section& section, size_t before, size_t after) {
          return kWorthMoving * section.between(before, after) > moving;
        };
        mover.move(buffer, space, farApart);
      }
    };
    moveKind(*spaceNamed(optimizer), isState);
    moveKind(*spaceNamed(parameters), isParameter);
    moveKind(*spaceNamed(gradients), isGradient);
    moveKind(*spaceNamed(activations), isValue);
    return success();
  }
};

}  // namespace
