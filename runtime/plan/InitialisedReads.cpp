#include "runtime/plan/InitialisedReads.h"

#include "runtime/base/Text.h"
#include "runtime/plan/ByteMap.h"

namespace sheaf::plan {
namespace {

constexpr int kNone = -1;

class InitialisedReads {
 public:
  InitialisedReads(const Unrolled& sequence, const Places& places)
      : sequence_(sequence), plan_(sequence.plan()), places_(places), written_(places.spaces()) {}

  Status run() {
    state();
    for (current_ = 0; current_ < sequence_.size(); ++current_) {
      if (sequence_.isHost(current_)) {
        arena_.clear();
        state();
        continue;
      }
      // Reads come before writes: no result lies on another operand of its instruction, except in place.
      const std::vector<Place>& list = places_.of(*sequence_[current_].instruction);
      for (const Place& place : list)
        if (place.reads && !place.scratch) SHEAF_RETURN_IF_ERROR(read(place));
      for (const Place& place : list)
        if (place.writes) write(place);
      if (sequence_[current_].instruction->has_persist()) exchange();
    }
    return {};
  }

 private:
  // An arena byte is owned by the buffer whose operand was last written there; gaps of a strided write count, so both
  // buffers lose them.
  struct Owner {
    int buffer = kNone;
    int writer = kNone;  // the entry that wrote last
  };

  const Buffer& buffer(uint32_t index) const { return plan_.buffers(static_cast<int>(index)); }

  // Parameters, states, the loss scale and constants are there before the first step.
  void state() {
    auto fill = [&](uint32_t index) {
      const uint64_t begin = addressOf(buffer(index)), bytes = buffer(index).bytes();
      arena_.visit(begin, begin + bytes, [&](uint64_t, uint64_t, Owner& owner) {
        owner = {static_cast<int>(index), kNone};
      });
      mark(places_.spacesOf(index), places_.blocks(index, 0, bytes), true);
    };
    for (const Bucket& bucket : plan_.buckets()) {
      fill(bucket.parameter_buffer());
      for (const State& state : bucket.states()) fill(state.buffer());
    }
    if (plan_.has_loss_scale_buffer()) fill(plan_.loss_scale_buffer());
    for (const Constant& constant : plan_.constants()) fill(constant.buffer());
  }

  void mark(Places::Spaces spaces, const std::vector<Block>& blocks, bool written) {
    for (size_t space = spaces.begin; space < spaces.end; ++space)
      for (const Block& block : blocks)
        written_[space].visit(block, [&](const Block&, bool& known) { known = written; });
  }

  Status read(const Place& place) {
    Status status;
    const int index = static_cast<int>(place.buffer);
    ArenaRange range = arenaRange(plan_, *place.operand);
    arena_.visit(range.begin, range.end, [&](uint64_t begin, uint64_t end, const Owner& owner) {
      if (!status.ok() || owner.buffer == index) return;
      status =
          wrong(place, begin - addressOf(buffer(place.buffer)), end - addressOf(buffer(place.buffer)),
                owner.writer == kNone ? "nothing has written" : cat(sequence_.name(owner.writer), " has overwritten"));
    });
    const Places::Spaces spaces = places_.spacesOf(place);
    for (size_t space = spaces.begin; space < spaces.end; ++space)
      for (const Block& block : place.accessed)
        written_[space].visit(block, [&](const Block& piece, bool written) {
          if (!status.ok() || written) return;
          const uint64_t base = addressOf(buffer(place.buffer)), first = base + places_.firstByte(place.buffer, piece);
          arena_.visit(first, first + piece.width, [&](uint64_t begin, uint64_t end, const Owner& owner) {
            if (!status.ok()) return;
            status = wrong(place, begin - base, end - base,
                           owner.writer == kNone ? "nothing has written"
                                                 : cat(sequence_.name(owner.writer), " has written in part"));
          });
        });
    return status;
  }

  // The current generation has what was written as the next one, of which nothing is left. Both have been found to be
  // written as a whole. Buffers stand for their places here: what a place holds moves to where its new role's buffer
  // is.
  void exchange() {
    for (const Generation& generation : plan_.generations()) {
      auto own = [&](uint32_t index, int owner, bool written) {
        const uint64_t begin = addressOf(buffer(index)), bytes = buffer(index).bytes();
        arena_.visit(begin, begin + bytes, [&](uint64_t, uint64_t, Owner& piece) {
          piece = {owner, static_cast<int>(current_)};
        });
        mark(places_.spacesOf(index), places_.blocks(index, 0, bytes), written);
      };
      own(generation.current(), static_cast<int>(generation.current()), true);
      own(generation.next(), kNone, false);
    }
  }

  Status wrong(const Place& place, uint64_t begin, uint64_t end, const std::string& why) const {
    const uint64_t base = addressOf(buffer(place.buffer));
    const Instruction& reader = *sequence_[current_].instruction;
    const size_t operand = static_cast<size_t>(&place - places_.of(reader).data());
    return Status::error(cat("the plan reads what was not written: ", sequence_.name(current_), " reads bytes [", begin,
                             ", ", end, ") of buffer '", shortName(buffer(place.buffer).name()), "' (",
                             arenaText(base + begin, base + end), ") as ", Places::name(reader, operand), ", which ",
                             why));
  }

  void write(const Place& place) {
    const uint64_t base = addressOf(buffer(place.buffer));
    // Scratch has no defined contents after the call.
    const int index = place.scratch ? kNone : static_cast<int>(place.buffer);
    ArenaRange range = arenaRange(plan_, *place.operand);
    arena_.visit(range.begin, range.end, [&](uint64_t begin, uint64_t end, Owner& owner) {
      // Of what the buffer has lost, or never had, nothing is written.
      if (index != kNone && owner.buffer != index)
        mark(places_.spacesOf(place.buffer), places_.blocks(place.buffer, begin - base, end - base), false);
      owner = {index, static_cast<int>(current_)};
    });
    if (index != kNone) mark(places_.spacesOf(place), place.written, true);
  }

  const Unrolled& sequence_;
  const Plan& plan_;
  const Places& places_;
  size_t current_ = 0;
  ByteMap<Owner> arena_;
  std::vector<BlockMap<bool>> written_;  // of each space, where the arena's bytes are the buffer's
};

}  // namespace

Status checkInitialisedReads(const Unrolled& sequence, const Places& places) {
  return InitialisedReads(sequence, places).run();
}

}  // namespace sheaf::plan
