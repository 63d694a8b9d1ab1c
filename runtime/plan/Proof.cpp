#include "runtime/plan/Proof.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/HappensBefore.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

constexpr int kNobody = -1;

// One step of the unrolled loop.
struct Issued {
  const Instruction* instruction;
  const char* section;
  int index;
};

// Bytes of the arena that were last written, and read since, by the same instructions.
struct Piece {
  uint64_t end = 0;
  int writer = kNobody;
  std::vector<int> readers;  // the latest of each stream since the write
  int owner = kNobody;       // the buffer through which the bytes were written
};

// Part of a buffer that every rank has written at a place of its own.
struct OwnPart {
  uint64_t offset, bytes, stride;
};

class Proof {
 public:
  explicit Proof(const Plan& plan) : plan_(plan), ranks_(static_cast<uint64_t>(plan.ranks())) {
    append("prologue", plan.prologue());
    append("body", plan.body());
    append("body", plan.body());
    append("epilogue", plan.epilogue());
    host_.set_label("the host, after the epilogue");
    sequence_.push_back({0, IssuedInstruction::kOther, 0});
    issued_.push_back({&host_, "epilogue", plan.epilogue_size()});
  }

  Status run() {
    SHEAF_RETURN_IF_ERROR(stage());
    SHEAF_RETURN_IF_ERROR(events());
    HappensBefore order(sequence_, std::max(plan_.streams_size(), 1), plan_.events());
    order_ = &order;
    SHEAF_RETURN_IF_ERROR(communicators());
    initialiseState();
    for (current_ = 0; current_ < static_cast<int>(issued_.size()); ++current_) {
      const Instruction& instruction = *issued_[current_].instruction;
      // What an instruction reads it reads before it writes: an operand may be written in place of another.
      SHEAF_RETURN_IF_ERROR(accesses(instruction, READ));
      SHEAF_RETURN_IF_ERROR(accesses(instruction, WRITE));
    }
    return drained();
  }

 private:
  using Section = google::protobuf::RepeatedPtrField<Instruction>;

  void append(const char* section, const Section& list) {
    for (int i = 0; i < list.size(); ++i) {
      const Instruction& instruction = list.Get(i);
      IssuedInstruction step{instruction.stream(), IssuedInstruction::kOther, 0};
      if (instruction.has_record())
        step = {instruction.stream(), IssuedInstruction::kRecord, instruction.record().event()};
      if (instruction.has_wait()) step = {instruction.stream(), IssuedInstruction::kWait, instruction.wait().event()};
      sequence_.push_back(step);
      issued_.push_back({&instruction, section, i});
    }
  }

  std::string name(int step) const {
    const Issued& issued = issued_[step];
    return describe(plan_, issued.section, issued.index, *issued.instruction);
  }
  const Buffer& buffer(const Operand& operand) const { return plan_.buffers(static_cast<int>(operand.buffer())); }

  Status stage() const {
    if (ranks_ == 1) return {};
    for (const Bucket& bucket : plan_.buckets()) {
      if (plan_.zero_stage() >= 3 && !bucket.parameters_sharded())
        return Status::error(cat("the plan breaks ZeRO stage ", plan_.zero_stage(), ": bucket '", bucket.name(),
                                 "' keeps whole parameters on every rank"));
      if (plan_.zero_stage() >= 1 && !bucket.states_sharded() && bucket.states_size() > 0)
        return Status::error(cat("the plan breaks ZeRO stage ", plan_.zero_stage(), ": bucket '", bucket.name(),
                                 "' keeps whole optimizer state on every rank"));
    }
    for (const Buffer& buffer : plan_.buffers())
      if (plan_.zero_stage() >= 2 && buffer.persistent() && buffer.kind() == GRADIENTS)
        return Status::error(cat("the plan breaks ZeRO stage ", plan_.zero_stage(), ": buffer '", buffer.name(),
                                 "' keeps gradients from step to step"));
    return {};
  }

  // Waits look back in issue order only, so the graph of streams and events cannot have a cycle; but a wait for an
  // event that nothing records would order nothing.
  Status events() const {
    std::set<uint32_t> recorded;
    for (const IssuedInstruction& step : sequence_)
      if (step.kind == IssuedInstruction::kRecord) recorded.insert(step.event);
    for (size_t i = 0; i < sequence_.size(); ++i)
      if (sequence_[i].kind == IssuedInstruction::kWait && !recorded.contains(sequence_[i].event))
        return Status::error(cat("the plan is not proved: ", name(static_cast<int>(i)), " waits for event ",
                                 sequence_[i].event, ", which nothing records"));
    return {};
  }

  // Ranks meet in collectives. If those of a communicator are totally ordered, all ranks meet in the same order.
  Status communicators() const {
    std::map<uint32_t, int> latest;
    for (int i = 0; i < static_cast<int>(issued_.size()); ++i) {
      if (!issued_[i].instruction->has_collective()) continue;
      auto [entry, first] = latest.try_emplace(issued_[i].instruction->collective().communicator(), i);
      if (first) continue;
      if (!order_->ordered(entry->second, i))
        return Status::error(cat("the plan may deadlock: communicator ", entry->first, " has no order between ",
                                 name(entry->second), " and ", name(i)));
      entry->second = i;
    }
    return {};
  }

  // Parameters, states and constants are there before the first step.
  void initialiseState() {
    auto initialise = [&](uint32_t index) {
      const Buffer& b = plan_.buffers(static_cast<int>(index));
      forPieces(b.offset(), b.offset() + b.bytes(),
                [&](uint64_t, Piece& piece) { piece.owner = static_cast<int>(index); });
    };
    for (const Bucket& bucket : plan_.buckets()) {
      initialise(bucket.parameter_buffer());
      for (const State& state : bucket.states()) initialise(state.buffer());
    }
    for (const Constant& constant : plan_.constants()) initialise(constant.buffer());
  }

  // After the epilogue the host saves or loads all persistent state; the first stream stands for it.
  Status drained() {
    current_ = static_cast<int>(issued_.size()) - 1;
    for (int i = 0; i < plan_.buffers_size(); ++i) {
      if (!plan_.buffers(i).persistent()) continue;
      Operand whole;
      whole.set_buffer(static_cast<uint32_t>(i));
      whole.set_bytes(plan_.buffers(i).bytes());
      whole.set_access(WRITE);
      SHEAF_RETURN_IF_ERROR(write(whole));
    }
    return {};
  }

  // Cuts the arena at begin and end and visits the pieces between; visit may change them.
  template <typename Visit>
  void forPieces(uint64_t begin, uint64_t end, Visit visit) {
    if (begin >= end) return;
    cut(begin);
    cut(end);
    uint64_t at = begin;
    auto it = pieces_.lower_bound(begin);
    while (at < end) {
      if (it == pieces_.end() || it->first > at) {  // untouched so far
        uint64_t until = it == pieces_.end() ? end : std::min(end, it->first);
        it = pieces_.emplace_hint(it, at, Piece{until, kNobody, {}, kNobody});
      }
      visit(it->first, it->second);
      at = it->second.end;
      ++it;
    }
  }
  void cut(uint64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Piece right = it->second;
    it->second.end = at;
    pieces_.emplace(at, std::move(right));
  }

  Status accesses(const Instruction& instruction, Access access) {
    Status status;
    forEachOperand(instruction, [&](const Operand& operand) {
      if (!status.ok() || operand.bytes() == 0) return;
      if (access == READ && operand.access() != WRITE) status = read(operand);
      if (access == WRITE && operand.access() != READ) status = write(operand);
    });
    return status;
  }

  Status race(int earlier, uint64_t begin, uint64_t end, const Operand& operand) const {
    return Status::error(cat("the plan may race: ", name(earlier), " and ", name(current_), " access bytes [", begin,
                             ", ", end, ") of the arena (buffer '", buffer(operand).name(),
                             "') and nothing orders them: stream ", sequence_[current_].stream,
                             " must wait for an event that stream ", sequence_[earlier].stream, " records in between"));
  }
  bool ordered(int earlier) const {
    return earlier == kNobody || earlier == current_ || order_->ordered(earlier, current_);
  }

  // All ranks' places together: what is ordered for the union is ordered for each.
  uint64_t begin(const Operand& operand) const { return buffer(operand).offset() + operand.offset(); }
  uint64_t end(const Operand& operand) const {
    return begin(operand) + operand.bytes() + operand.shard_stride() * (ranks_ - 1);
  }

  Status read(const Operand& operand) {
    Status status;
    // Scratch is read by the call that has written it: the call answers for what is in it.
    bool initialised = buffer(operand).kind() == WORKSPACE || ownPartCovers(operand);
    forPieces(begin(operand), end(operand), [&](uint64_t at, Piece& piece) {
      if (!status.ok()) return;
      if (!ordered(piece.writer)) status = race(piece.writer, at, piece.end, operand);
      if (status.ok() && !initialised && piece.owner != static_cast<int>(operand.buffer()))
        status = Status::error(cat("the plan reads what was not written: ", name(current_), " reads bytes [",
                                   at - buffer(operand).offset(), ", ", piece.end - buffer(operand).offset(),
                                   ") of buffer '", buffer(operand).name(), "', ",
                                   piece.writer == kNobody ? "which nothing has written"
                                                           : cat("which ", name(piece.writer), " has overwritten")));
      remember(piece);
    });
    return status;
  }

  void remember(Piece& piece) const {
    for (int& reader : piece.readers)
      if (sequence_[reader].stream == sequence_[current_].stream) {
        reader = current_;
        return;
      }
    piece.readers.push_back(current_);
  }

  Status write(const Operand& operand) {
    Status status;
    int owner = static_cast<int>(operand.buffer());
    bool strided = operand.shard_stride() != 0;
    forPieces(begin(operand), end(operand), [&](uint64_t at, Piece& piece) {
      if (!status.ok()) return;
      if (!ordered(piece.writer)) status = race(piece.writer, at, piece.end, operand);
      for (int reader : piece.readers)
        if (status.ok() && !ordered(reader)) status = race(reader, at, piece.end, operand);
      // A rank that writes its own part leaves the others' as they were.
      if (!strided) {
        piece.owner = owner;
      } else if (piece.owner != owner) {
        piece.owner = kNobody;
      }
      piece.writer = current_;
      piece.readers.clear();
    });
    // Own parts of a buffer whose bytes another buffer has taken are gone.
    std::erase_if(ownParts_, [&](const auto& entry) {
      if (entry.first == owner) return false;
      const Buffer& other = plan_.buffers(entry.first);
      return other.offset() < end(operand) && begin(operand) < other.offset() + other.bytes();
    });
    if (strided) ownParts_.emplace(owner, OwnPart{operand.offset(), operand.bytes(), operand.shard_stride()});
    return status;
  }

  // Whether the rank's own part was written as such: consecutive parts of the same stride count together.
  bool ownPartCovers(const Operand& operand) const {
    if (operand.shard_stride() == 0) return false;
    auto [first, last] = ownParts_.equal_range(static_cast<int>(operand.buffer()));
    std::vector<OwnPart> parts;
    for (auto it = first; it != last; ++it)
      if (it->second.stride == operand.shard_stride()) parts.push_back(it->second);
    std::sort(parts.begin(), parts.end(), [](const OwnPart& a, const OwnPart& b) { return a.offset < b.offset; });
    uint64_t at = operand.offset();
    for (const OwnPart& part : parts)
      if (part.offset <= at) at = std::max(at, part.offset + part.bytes);
    return at >= operand.offset() + operand.bytes();
  }

  const Plan& plan_;
  uint64_t ranks_;
  Instruction host_;
  std::vector<IssuedInstruction> sequence_;
  std::vector<Issued> issued_;
  const HappensBefore* order_ = nullptr;
  int current_ = 0;
  std::map<uint64_t, Piece> pieces_;  // by first byte; they do not overlap
  std::multimap<int, OwnPart> ownParts_;
};

}  // namespace

Status provePlan(const Plan& plan) {
  return Proof(plan).run();
}

}  // namespace sheaf::plan
