// Moves buffers to other spaces: what computes works on images of them on the device, which transfers fetch and store.
#include <array>

#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
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
    auto add = [&](Region& region, const plan::InstructionList& list) {
      Section& section = sections_.emplace_back();
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
      if (auto p = dyn_cast<PartOp>(op)) add(p.getBody(), plan.parts(part++).instructions());
      if (auto p = dyn_cast<StepOp>(op)) add(p.getBody(), plan.body());
      if (auto p = dyn_cast<EvaluationOp>(op)) add(p.getBody(), plan.evaluation());
    }
    for (Section& section : sections_)
      for (size_t i = 0; i < section.ops.size(); ++i)
        for (const Operand& operand : operandsOf(section.ops[i])) {
          std::vector<size_t>& uses = section.uses[operand.buffer];
          if (uses.empty() || uses.back() != i) uses.push_back(i);
        }
  }

  // What persists lies in the space from now on.
  void moveState(BufferOp home, Space space) {
    home.setSpace(space);
    for (Section& section : sections_)
      for (const Session& session : sessionsOf(section, home, space)) {
        Value image = imageOf(home);
        replace(section, session, home, image);
        if (!writesWholeFirst(section, session, image)) fetch(section, session, home, image, space);
        if (writes(section, session, image)) store(section, session, image, home, space);
      }
  }

  // What lives within a step lies there between uses that are far from each other. Returns whether it does.
  bool moveValue(BufferOp value, Space space) {
    Section* only = nullptr;
    for (Section& section : sections_) {
      if (!section.uses.contains(value.getResult())) continue;
      if (only) return false;
      only = &section;
    }
    if (!only) return false;
    const SmallVector<Session> sessions = sessionsOf(*only, value, space);
    // Of what is written in part, or with gaps, the rest must not be moved.
    if (sessions.size() < 2 || !isWritten(*only, sessions.front(), value)) return false;
    // What a session begins by overwriting need not be kept for it.
    auto needsOld = [&](size_t i) { return i < sessions.size() && !writesWholeFirst(*only, sessions[i], value); };
    if (llvm::none_of(llvm::seq<size_t>(1, sessions.size()), needsOld)) return false;
    builder_.setInsertionPointAfter(value);
    auto away = BufferOp::create(builder_, value.getLoc(), value.getType(),
                                 (value.getName() + "." + plan::word(space)).str(), value.getKind(), int64_t(0),
                                 value.getBytes(), false, SpaceAttr::get(builder_.getContext(), space));
    SmallVector<bool> kept;
    for (size_t i = 0; i <= sessions.size(); ++i) kept.push_back(i > 0 && needsOld(i));
    for (auto [i, session] : llvm::enumerate(sessions)) {
      Value image = i == 0 ? Value(value) : imageOf(value);
      if (i > 0) replace(*only, session, value, image);
      if (kept[i]) fetch(*only, session, away, image, space);
      if (kept[i + 1] && writes(*only, session, image)) store(*only, session, image, away, space);
    }
    return true;
  }

  ArrayRef<BufferOp> buffers() const { return buffers_; }

 private:
  struct Section {
    SmallVector<Operation*> ops;
    SmallVector<const plan::Instruction*> instructions;
    SmallVector<double> begin;  // of each instruction, if computation never waited
    llvm::DenseMap<Value, std::vector<size_t>> uses;
  };
  // Uses that find the buffer on the device without a transfer between them: indices of instructions.
  using Session = SmallVector<size_t>;

  SmallVector<Session> sessionsOf(const Section& section, BufferOp buffer, Space space) const {
    SmallVector<Session> sessions;
    auto uses = section.uses.find(buffer.getResult());
    if (uses == section.uses.end()) return sessions;
    const uint64_t bytes = static_cast<uint64_t>(buffer.getBytes());
    const double moving = profile_.seconds(kindOf(space, true), bytes) + profile_.seconds(kindOf(space, false), bytes);
    for (size_t i : uses->second) {
      const bool far =
          sessions.empty() || kWorthMoving * (section.begin[i] - section.begin[sessions.back().back() + 1]) > moving;
      if (far) sessions.emplace_back();
      sessions.back().push_back(i);
    }
    return sessions;
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
    moveKind(mover, "optimizer", *spaceNamed(optimizer), isState);
    moveKind(mover, "parameters", *spaceNamed(parameters), isParameter);
    moveKind(mover, "gradients", *spaceNamed(gradients), isGradient);
    moveKind(mover, "activations", *spaceNamed(activations), isValue);
    return success();
  }

  void moveKind(Mover& mover, StringRef kind, Space space, llvm::function_ref<bool(BufferOp)> belongs) {
    if (space == plan::Buffer::DEVICE) return;
    SmallVector<BufferOp> buffers;
    double left = 0;  // bytes to be moved
    for (BufferOp buffer : mover.buffers())
      if (belongs(buffer)) buffers.push_back(buffer), left += double(buffer.getBytes());
    if (StringRef(partOf) == kind) {
      left *= part;
      llvm::stable_sort(buffers, [](BufferOp a, BufferOp b) { return a.getBytes() > b.getBytes(); });
    }
    for (BufferOp buffer : buffers) {
      if (left <= 0) return;
      const bool moved =
          buffer.getPersistent() ? (mover.moveState(buffer, space), true) : mover.moveValue(buffer, space);
      if (moved) left -= double(buffer.getBytes());
    }
  }
};

}  // namespace
