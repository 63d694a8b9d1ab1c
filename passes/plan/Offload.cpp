// Moves buffers to other spaces. Instructions then work on images of them, on the device or, for updates on the host,
// in host memory; transfers fetch and store the images.
#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
#include "passes/plan/Transfers.h"
#include "passes/schedule/Construct.h"
#include "passes/schedule/Placement.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Places.h"
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

// The work on one program. Its instructions are those of the plan, in their order.
class Mover {
 public:
  Mover(ProgramOp program, const plan::Plan& plan, const profile::Profile& profile)
      : program_(program), plan_(plan), profile_(profile), places_(plan), builder_(program.getContext()) {
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
        const auto turns =
            llvm::count_if(plan.turns(), [&](const plan::Turn& turn) { return int(turn.part()) == part; });
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

  // Between which two uses, by the indices of their instructions, a buffer is away.
  struct Section;
  using Away = llvm::function_ref<bool(const Section& section, size_t before, size_t after)>;

  // Where moving it takes little of the computation between.
  auto farApart(BufferOp buffer, Space space) const {
    const uint64_t bytes = static_cast<uint64_t>(buffer.getBytes());
    const double moving =
        profile_.seconds(transferKind(space, true), bytes) + profile_.seconds(transferKind(space, false), bytes);
    return [moving](const Section& section, size_t before, size_t after) {
      return kWorthMoving * section.between(before, after) > moving;
    };
  }

  // What persists lies in the space from now on.
  void moveState(BufferOp home, Space space, Away away) {
    home.setSpace(space);
    for (Section& section : sections_)
      for (const Session& session : sessionsOf(section, home, away)) {
        const Space executor = executorOf(section, session);
        if (executor == space) continue;
        Value image = imageOf(home, executor);
        replace(section, session, home, image);
        if (!writesWholeFirst(section, session, image)) fetch(section, session, home, image, space);
        if (writes(section, session, image)) store(section, session, image, home, space);
      }
  }

  // What lives within a step lies there between such uses, if all of it has been written.
  void moveValue(BufferOp value, Space space, Away away) {
    const Section* only = onlySectionOf(value);
    if (!only) return;
    const SmallVector<Session> sessions = sessionsOf(*only, value, away);
    // Of what is written in part, or with gaps, the rest must not be moved.
    if (sessions.size() < 2 || !isWritten(*only, sessions.front(), value)) return;
    if (executorOf(*only, sessions.front()) != plan::Buffer::DEVICE) return;
    // What a launch on the host reads soon goes there without a detour.
    const std::vector<size_t>& uses = only->uses.find(value.getResult())->second;
    const bool far =
        llvm::any_of(llvm::seq<size_t>(1, uses.size()), [&](size_t u) { return away(*only, uses[u - 1], uses[u]); });
    if (space == plan::Buffer::FILE && !far) return;
    // What a session begins by overwriting need not be kept for it.
    auto needsOld = [&](size_t i) { return i < sessions.size() && !writesWholeFirst(*only, sessions[i], value); };
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
      if (kept[i + 1] && writes(*only, session, image)) store(*only, session, image, home, space);
    }
  }

  // An update that can be made on the host, and the state that it alone uses.
  struct HostUpdate {
    LaunchOp launch;
    const plan::Instruction* instruction = nullptr;
    SmallVector<BufferOp> states;
  };

  SmallVector<HostUpdate> hostUpdates() {
    SmallVector<BucketOp> buckets(program_.getBody().front().getOps<BucketOp>());
    SmallVector<HostUpdate> updates;
    for (const Section& section : sections_)
      for (auto [i, op] : llvm::enumerate(section.ops)) {
        auto launch = dyn_cast<LaunchOp>(op);
        if (!launch || launch.getUpdatesBucket() == 0) continue;
        HostUpdate update{launch, section.instructions[i], {}};
        bool alone = true;
        for (Value state : buckets[launch.getUpdatesBucket() - 1].getStates()) {
          update.states.push_back(state.getDefiningOp<BufferOp>());
          alone &= onlySectionOf(update.states.back()) == &section &&
                   section.uses.find(state)->second == std::vector<size_t>{i};
        }
        if (alone && !update.states.empty()) updates.push_back(std::move(update));
      }
    return updates;
  }

  void runOnHost(LaunchOp update) {
    update.setOnHost(true);
    update.setStream(streamNamed(program_, kHostComputeStream));
  }

  // Moves as much of these buffers as leaves `deviceBytes` alive on the device, by cost; state of `updates` all or
  // none of an update, which then runs on the host.
  void moveWithin(ArrayRef<BufferOp> movable, ArrayRef<HostUpdate> updates, uint64_t deviceBytes, uint64_t hostBytes) {
    schedule::PlacementProblem problem;
    problem.deviceBytes = deviceBytes, problem.hostBytes = hostBytes;
    problem.live = liveBytes();
    for (const Section& section : sections_) problem.computeSeconds += section.times * section.begin.back();
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
      runOnHost(update.launch);
      for (BufferOp state : update.states)
        moveState(state, placed.space, [](const Section&, size_t, size_t) { return false; });
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
      if (buffer.getPersistent())
        moveState(buffer, placed.space, away);
      else
        moveValue(buffer, placed.space, away);
    }
  }

  ArrayRef<BufferOp> buffers() const { return buffers_; }

  struct Section {
    SmallVector<Operation*> ops;
    SmallVector<const plan::Instruction*> instructions;
    SmallVector<double> begin;  // of each instruction, if computation never waited
    llvm::DenseMap<Value, std::vector<size_t>> uses;
    uint32_t first = 0;  // position of the first instruction among those of all sections
    double times = 1;    // that a step runs it; 0: an evaluation's
    // Seconds of computation between two instructions.
    double between(size_t before, size_t after) const { return begin[after] - begin[before + 1]; }
  };

 private:
  // Uses that find the buffer on the device without a transfer between them: indices of instructions.
  using Session = SmallVector<size_t>;
  // Two uses of a buffer that follow each other.
  struct Inner {
    const Section* section = nullptr;
    size_t before = 0, after = 0;
  };

  SmallVector<Session> sessionsOf(const Section& section, BufferOp buffer, Away away) const {
    SmallVector<Session> sessions;
    auto uses = section.uses.find(buffer.getResult());
    if (uses == section.uses.end()) return sessions;
    for (size_t i : uses->second) {
      auto apart = [&](size_t before) {
        return plan_ir::executorOf(section.ops[before]) != plan_ir::executorOf(section.ops[i]) ||
               away(section, before, i);
      };
      if (sessions.empty() || apart(sessions.back().back())) sessions.emplace_back();
      sessions.back().push_back(i);
    }
    return sessions;
  }

  // Null if several use it, or none.
  const Section* onlySectionOf(BufferOp value) const {
    const Section* only = nullptr;
    for (const Section& section : sections_) {
      if (!section.uses.contains(value.getResult())) continue;
      if (only) return nullptr;
      only = &section;
    }
    return only;
  }

  // By position, with every buffer on the device: what persists always lives, the rest from its first to its last use.
  std::vector<uint64_t> liveBytes() const {
    const size_t positions = sections_.empty() ? 0 : sections_.back().first + sections_.back().ops.size();
    std::vector<uint64_t> change(positions + 1), live;
    for (BufferOp buffer : buffers_) {
      size_t begin = positions, end = 0;
      for (const Section& section : sections_)
        if (auto uses = section.uses.find(buffer.getResult()); uses != section.uses.end()) {
          begin = std::min(begin, section.first + uses->second.front());
          end = std::max(end, section.first + uses->second.back() + 1);
        }
      if (buffer.getPersistent()) begin = 0, end = positions;
      if (begin >= end || spaceOf(buffer) != plan::Buffer::DEVICE) continue;
      change[begin] += static_cast<uint64_t>(buffer.getBytes());
      change[end] -= static_cast<uint64_t>(buffer.getBytes());
    }
    uint64_t now = 0;
    for (size_t i = 0; i < positions; ++i) live.push_back(now += change[i]);
    return live;
  }

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
    home.spans.emplace_back(0, sections_.back().first + static_cast<uint32_t>(sections_.back().ops.size()));
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
    for (const Section& section : sections_) {
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
      home.fetches += writesWholeFirst(section, all, buffer) ? 0 : section.times;
      home.stores += writes(section, all, buffer) ? section.times : 0;
    }
    if (movable.persistent) movable.gaps.push_back(std::move(home));
    const Section* only = onlySectionOf(buffer);
    for (const Section& section : sections_) {
      auto found = section.uses.find(buffer.getResult());
      if (found == section.uses.end() || (!movable.persistent && &section != only)) continue;
      const std::vector<size_t>& uses = found->second;
      bool changed = true;  // since it was last stored
      for (size_t u = 1; u < uses.size(); ++u) {
        const size_t before = uses[u - 1], after = uses[u];
        changed |= writes(section, {before}, buffer);
        if (section.between(before, after) <= 0) continue;
        if (!movable.persistent && !isWritten(section, Session(uses.begin(), uses.begin() + u), buffer)) continue;
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

  // A buffer for a session, where its instructions are executed.
  Value imageOf(BufferOp home, Space executor) {
    const int64_t number = images_[home.getResult()]++;
    return createLike(builder_, home, home.getName() + (number ? ".image." + Twine(number) : Twine(".image")), executor)
        .getResult();
  }

  static Space executorOf(const Section& section, const Session& session) {
    return plan_ir::executorOf(section.ops[session.front()]);
  }

  static void replace(const Section& section, const Session& session, Value from, Value to) {
    for (size_t i : session) section.ops[i]->replaceUsesOfWith(from, to);
  }

  static bool writes(const Section& section, const Session& session, Value image) {
    return llvm::any_of(session, [&](size_t i) {
      return llvm::any_of(operandsOf(section.ops[i]),
                          [&](const Operand& operand) { return operand.buffer == image && operand.access != kRead; });
    });
  }

  // Whether nothing of what was there before can be found in the image.
  bool writesWholeFirst(const Section& section, const Session& session, Value image) const {
    const SmallVector<Operand> operands = operandsOf(section.ops[session.front()]);
    const bool reads = llvm::any_of(
        operands, [&](const Operand& operand) { return operand.buffer == image && operand.access != kWrite; });
    if (reads) return false;
    const std::vector<plan::Place>& places = places_.of(*section.instructions[session.front()]);
    for (auto [operand, place] : llvm::zip(operands, places))
      if (operand.buffer == image && place.part == plan::Share::kNone && covers(place.written, place.buffer))
        return true;
    return false;
  }

  uint64_t bytesOf(uint32_t buffer) const { return plan_.buffers(static_cast<int>(buffer)).bytes(); }

  bool covers(const std::vector<plan::Block>& written, uint32_t buffer) const {
    plan::BlockMap<bool> map;
    for (const plan::Block& block : written) map.visit(block, [](const plan::Block&, bool& known) { known = true; });
    return isFull(map, buffer);
  }
  bool isFull(plan::BlockMap<bool>& map, uint32_t buffer) const {
    bool full = true;
    for (const plan::Block& block : places_.blocks(buffer, 0, bytesOf(buffer)))
      map.visit(block, [&](const plan::Block&, bool& known) { full &= known; });
    return full;
  }

  // Whether a session writes all bytes of a buffer, as every rank finds it.
  bool isWritten(const Section& section, const Session& session, BufferOp buffer) const {
    plan::BlockMap<bool> map;
    std::optional<uint32_t> index;
    for (size_t i : session)
      for (auto [operand, place] : llvm::zip(operandsOf(section.ops[i]), places_.of(*section.instructions[i]))) {
        if (operand.buffer != buffer.getResult()) continue;
        index = place.buffer;
        if (!place.writes || place.scratch) continue;
        // A rank's part says nothing of the others.
        if (place.part != plan::Share::kNone) continue;
        for (const plan::Block& block : place.written)
          map.visit(block, [](const plan::Block&, bool& known) { known = true; });
      }
    return index && isFull(map, *index);
  }

  void fetch(const Section& section, const Session& session, Value home, Value image, Space space) {
    builder_.setInsertionPoint(section.ops[session.front()]);
    createTransfer(builder_, program_, transferKind(space, true), home, image);
  }
  void store(const Section& section, const Session& session, Value image, Value home, Space space) {
    builder_.setInsertionPointAfter(section.ops[session.back()]);
    createTransfer(builder_, program_, transferKind(space, false), image, home);
  }

  ProgramOp program_;
  const plan::Plan& plan_;
  const profile::Profile& profile_;
  const plan::Places places_;
  OpBuilder builder_;
  SmallVector<BufferOp> buffers_;
  std::vector<Section> sections_;
  llvm::DenseMap<Value, int64_t> images_;
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
    Mover mover(program, *plan, *scaled);
    SmallVector<Mover::HostUpdate> updates;
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
      for (BufferOp b : mover.buffers())
        if (isState(b) || isParameter(b) || isGradient(b) || isValue(b)) movable.push_back(b);
      mover.moveWithin(movable, updates, static_cast<uint64_t>(within),
                       hostBytes < 0 ? UINT64_MAX : uint64_t(hostBytes));
      return success();
    }
    if (*spaceNamed(optimizer) != plan::Buffer::DEVICE)
      for (const Mover::HostUpdate& update : updates) mover.runOnHost(update.launch);
    moveKind(mover, *spaceNamed(optimizer), isState);
    moveKind(mover, *spaceNamed(parameters), isParameter);
    moveKind(mover, *spaceNamed(gradients), isGradient);
    moveKind(mover, *spaceNamed(activations), isValue);
    return success();
  }

  static void moveKind(Mover& mover, Space space, llvm::function_ref<bool(BufferOp)> belongs) {
    if (space == plan::Buffer::DEVICE) return;
    for (BufferOp buffer : mover.buffers()) {
      if (!belongs(buffer)) continue;
      if (buffer.getPersistent())
        mover.moveState(buffer, space, mover.farApart(buffer, space));
      else
        mover.moveValue(buffer, space, mover.farApart(buffer, space));
    }
  }
};

}  // namespace
