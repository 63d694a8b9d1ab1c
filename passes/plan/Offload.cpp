// Moves buffers to other spaces: what computes works on images of them on the device, which transfers fetch and store.
#include <array>

#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
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

plan::Transfer::Kind kindOf(Space space, bool fetch) {
  if (space == plan::Buffer::HOST) return fetch ? plan::Transfer::TO_DEVICE : plan::Transfer::TO_HOST;
  return fetch ? plan::Transfer::READ_FILE : plan::Transfer::WRITE_FILE;
}

StringRef streamNameOf(plan::Transfer::Kind kind) {
  switch (kind) {
    case plan::Transfer::TO_DEVICE:
      return "to_device";
    case plan::Transfer::TO_HOST:
      return "to_host";
    case plan::Transfer::READ_FILE:
      return "file_in";
    default:
      return "file_out";
  }
}

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
    const double moving = profile_.seconds(kindOf(space, true), bytes) + profile_.seconds(kindOf(space, false), bytes);
    return [moving](const Section& section, size_t before, size_t after) {
      return kWorthMoving * section.between(before, after) > moving;
    };
  }

  // What persists lies in the space from now on.
  void moveState(BufferOp home, Space space, Away away) {
    home.setSpace(space);
    for (Section& section : sections_)
      for (const Session& session : sessionsOf(section, home, away)) {
        Value image = imageOf(home);
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
    // What a session begins by overwriting need not be kept for it.
    auto needsOld = [&](size_t i) { return i < sessions.size() && !writesWholeFirst(*only, sessions[i], value); };
    if (llvm::none_of(llvm::seq<size_t>(1, sessions.size()), needsOld)) return;
    builder_.setInsertionPointAfter(value);
    auto home = BufferOp::create(builder_, value.getLoc(), value.getType(),
                                 (value.getName() + "." + plan::word(space)).str(), value.getKind(), int64_t(0),
                                 value.getBytes(), false, SpaceAttr::get(builder_.getContext(), space));
    SmallVector<bool> kept;
    for (size_t i = 0; i <= sessions.size(); ++i) kept.push_back(i > 0 && needsOld(i));
    for (auto [i, session] : llvm::enumerate(sessions)) {
      Value image = i == 0 ? Value(value) : imageOf(value);
      if (i > 0) replace(*only, session, value, image);
      if (kept[i]) fetch(*only, session, home, image, space);
      if (kept[i + 1] && writes(*only, session, image)) store(*only, session, image, home, space);
    }
  }

  // Moves as much of these buffers as leaves `deviceBytes` alive on the device, by cost.
  void moveWithin(ArrayRef<BufferOp> movable, uint64_t deviceBytes, uint64_t hostBytes) {
    schedule::PlacementProblem problem;
    problem.deviceBytes = deviceBytes, problem.hostBytes = hostBytes;
    problem.live = liveBytes();
    for (const Section& section : sections_) problem.computeSeconds += section.times * section.begin.back();
    std::vector<std::vector<Inner>> inner;
    for (BufferOp buffer : movable)
      problem.movables.push_back(movableOf(buffer, problem.computeSeconds, inner.emplace_back()));
    const schedule::Placement placement = schedule::choosePlacement(problem, profile_);
    for (auto [moved, placed, gaps] : llvm::zip(movable, placement.placed, inner)) {
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
      if (sessions.empty() || away(section, sessions.back().back(), i)) sessions.emplace_back();
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

  // A buffer on the device for a session.
  Value imageOf(BufferOp home) {
    builder_.setInsertionPointAfter(home);
    const int64_t number = images_[home.getResult()]++;
    return BufferOp::create(builder_, home.getLoc(), home.getType(),
                            (home.getName() + (number ? ".image." + Twine(number) : ".image")).str(), home.getKind(),
                            int64_t(0), home.getBytes(), false, SpaceAttr());
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
    transfer(kindOf(space, true), home, image);
  }
  void store(const Section& section, const Session& session, Value image, Value home, Space space) {
    builder_.setInsertionPointAfter(section.ops[session.back()]);
    transfer(kindOf(space, false), image, home);
  }

  void transfer(plan::Transfer::Kind kind, Value source, Value destination) {
    auto buffer = source.getDefiningOp<BufferOp>();
    const int64_t bytes = buffer.getBytes();
    const std::array<int64_t, 2> none{0, 0}, both{bytes, bytes}, access{kRead, kWrite};
    const BufferOp away = spaceOf(source) == plan::Buffer::DEVICE ? destination.getDefiningOp<BufferOp>() : buffer;
    TransferOp::create(builder_, buffer.getLoc(), streamOfKind(kind), BufferOp(away).getName(),
                       ValueRange{source, destination}, none, both, none, none, access, kind);
  }

  // Appends the kind's stream if the program has none.
  int64_t streamOfKind(plan::Transfer::Kind kind) {
    SmallVector<Attribute> streams;
    if (auto known = program_->getAttrOfType<ArrayAttr>("streams")) streams.append(known.begin(), known.end());
    auto name = builder_.getStringAttr(streamNameOf(kind));
    const auto* found = llvm::find(streams, Attribute(name));
    const int64_t index = found - streams.begin();
    if (found == streams.end()) {
      streams.push_back(name);
      program_->setAttr("streams", builder_.getArrayAttr(streams));
    }
    return index;
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
      mover.moveWithin(movable, static_cast<uint64_t>(within), hostBytes < 0 ? UINT64_MAX : uint64_t(hostBytes));
      return success();
    }
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
