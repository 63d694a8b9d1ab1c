#include "runtime/plan/Contents.h"

#include <map>
#include <set>
#include <tuple>

#include "runtime/base/Text.h"
#include "runtime/plan/ByteMap.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

constexpr int kNobody = -1;

class Contents {
 public:
  explicit Contents(const Unrolled& steps) : steps_(steps), plan_(steps.plan()) {}

  Status run() {
    state();
    for (current_ = 0; current_ < steps_.size(); ++current_) {
      if (steps_.isHost(current_)) {
        bytes_.clear();
        ownParts_.clear();
        state();
        continue;
      }
      // An instruction reads before it writes: an operand may be written in place of another.
      const Instruction& instruction = *steps_[current_].instruction;
      Status status;
      forEachOperand(instruction, [&](const Operand& operand) {
        if (status.ok() && operand.access() != WRITE && !isScratch(instruction, operand)) status = read(operand);
      });
      SHEAF_RETURN_IF_ERROR(status);
      forEachOperand(instruction, [&](const Operand& operand) {
        if (isScratch(instruction, operand))
          spoil(operand);
        else if (operand.access() != READ)
          write(operand);
      });
    }
    return {};
  }

 private:
  struct Bytes {
    int owner = kNobody;   // the buffer through which every rank has written them
    int writer = kNobody;  // the step that wrote last
    int parts = kNobody;   // the buffer through which ranks have written parts of their own here
  };
  // A part of a buffer that every rank has written at a place of its own: offset, bytes, stride.
  using OwnPart = std::tuple<uint64_t, uint64_t, uint64_t>;

  const Buffer& buffer(const Operand& operand) const { return plan_.buffers(static_cast<int>(operand.buffer())); }

  // Parameters, states and constants are there before the first step.
  void state() {
    auto fill = [&](uint32_t index) {
      const Buffer& b = plan_.buffers(static_cast<int>(index));
      bytes_.visit(b.offset(), b.offset() + b.bytes(),
                   [&](uint64_t, uint64_t, Bytes& bytes) { bytes.owner = static_cast<int>(index); });
    };
    for (const Bucket& bucket : plan_.buckets()) {
      fill(bucket.parameter_buffer());
      for (const State& state : bucket.states()) fill(state.buffer());
    }
    for (const Constant& constant : plan_.constants()) fill(constant.buffer());
  }

  Status read(const Operand& operand) {
    if (ownPartsCover(operand)) return {};
    Status status;
    ArenaRange range = arenaRange(plan_, operand);
    int index = static_cast<int>(operand.buffer());
    bytes_.visit(range.begin, range.end, [&](uint64_t begin, uint64_t end, const Bytes& bytes) {
      if (!status.ok() || bytes.owner == index) return;
      const Buffer& from = buffer(operand);
      status = Status::error(cat("the plan reads what was not written: ", steps_.name(current_), " reads bytes [",
                                 begin - from.offset(), ", ", end - from.offset(), ") of buffer '",
                                 from.name().substr(0, 120), "' ([", begin, ", ", end, ") of the arena), which ",
                                 bytes.writer == kNobody ? "nothing has written"
                                 : bytes.parts == index  ? cat(steps_.name(bytes.writer), " has written in part")
                                                         : cat(steps_.name(bytes.writer), " has overwritten")));
    });
    return status;
  }

  void write(const Operand& operand) {
    int index = static_cast<int>(operand.buffer());
    bool strided = operand.shard_stride() != 0;
    ArenaRange range = arenaRange(plan_, operand);
    bytes_.visit(range.begin, range.end, [&](uint64_t, uint64_t, Bytes& bytes) {
      // Own parts of a buffer whose bytes another buffer takes are gone.
      if (bytes.parts != kNobody && bytes.parts != index) ownParts_.erase(bytes.parts);
      // A rank that writes its own part leaves the others' as they were.
      bool kept = !strided || bytes.owner == index;
      bytes = {kept ? index : kNobody, static_cast<int>(current_), strided || bytes.parts == index ? index : kNobody};
    });
    if (strided) ownParts_[index].insert({operand.offset(), operand.bytes(), operand.shard_stride()});
  }

  // Scratch has no defined contents after the call.
  void spoil(const Operand& operand) {
    ArenaRange range = arenaRange(plan_, operand);
    bytes_.visit(range.begin, range.end, [&](uint64_t, uint64_t, Bytes& bytes) {
      if (bytes.parts != kNobody) ownParts_.erase(bytes.parts);
      bytes = {kNobody, static_cast<int>(current_), kNobody};
    });
  }

  // Whether the rank's own part was written as such: consecutive parts of the same stride count together.
  bool ownPartsCover(const Operand& operand) const {
    auto parts = ownParts_.find(static_cast<int>(operand.buffer()));
    if (operand.shard_stride() == 0 || parts == ownParts_.end()) return false;
    uint64_t at = operand.offset();
    for (auto [offset, bytes, stride] : parts->second)
      if (stride == operand.shard_stride() && offset <= at) at = std::max(at, offset + bytes);
    return at >= operand.offset() + operand.bytes();
  }

  const Unrolled& steps_;
  const Plan& plan_;
  size_t current_ = 0;
  ByteMap<Bytes> bytes_;
  std::map<int, std::set<OwnPart>> ownParts_;  // by buffer
};

}  // namespace

Status checkContents(const Unrolled& steps) {
  return Contents(steps).run();
}

}  // namespace sheaf::plan
