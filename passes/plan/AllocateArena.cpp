// Lays out the arena of each space: buffers share bytes only where happens-before orders all their accesses, around the
// loop.
#include <array>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/plan/Finish.h"
#include "passes/plan/PlacedBuffers.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan_ir {
namespace {

using plan::kAlignment;
using plan::kDeviceAlignment;
using plan::kFileAlignment;
constexpr int kSpaces = 3;

// First and last access of a buffer on each stream, as positions in the first two steps; -1: none. A buffer is written
// before it is read, so a read before the first write of a step belongs to the lifetime that began in the step before.
struct Lifetime {
  llvm::SmallVector<int64_t, 4> first, last;
  int64_t begin() const {
    int64_t least = INT64_MAX;
    for (int64_t at : first)
      if (at >= 0) least = std::min(least, at);
    return least;
  }
};
// Sorted by their beginnings. A buffer that only one part of the step uses has a lifetime in each of the part's turns,
// and is used in the same way in each.
using Lifetimes = llvm::SmallVector<Lifetime, 1>;

// Finds where lifetimes end.
class LifetimeEnds {
 public:
  LifetimeEnds(const plan::Unrolled& sequence, const plan::HappensBefore& order)
      : order(order), length(sequence.size()), instructions(sequence.streams()) {
    for (auto [i, issued] : llvm::enumerate(sequence.issued())) instructions[issued.stream].push_back(i);
  }

  // Buffers with several lifetimes, or across rounds, count as always live.
  LiveRange liveRange(const Lifetimes& lives, const plan::Unrolled::Round& round) const {
    LiveRange range;
    if (lives.size() != 1) return range;
    const int64_t begin = lives[0].begin(), until = orderedEnd(lives[0]), firstRound = int64_t(round.begin);
    const int64_t roundLength = int64_t(round.length());
    const int64_t first = (begin - firstRound) % roundLength, end = first + (until - begin);
    if (begin < firstRound || size_t(until) == length || end > roundLength) return range;
    range.begin = first, range.end = end;
    auto isUsed = [](int64_t at) { return at >= 0; };
    if (llvm::count_if(lives[0].last, isUsed) != 1) return range;
    const auto last = llvm::find_if(lives[0].last, isUsed);
    range.stream = last - lives[0].last.begin(), range.lastAccessEnd = first + (*last + 1 - begin);
    return range;
  }

 private:
  // Returns the first instruction from which on every instruction is ordered after the lifetime's last accesses; the
  // sequence's length if there is none.
  size_t orderedEnd(const Lifetime& life) const {
    size_t from = 0;
    for (int64_t last : life.last) {
      if (last < 0) continue;
      for (const std::vector<size_t>& stream : instructions) {
        auto after =
            llvm::partition_point(stream, [&](size_t i) { return int64_t(i) <= last || !order.ordered(last, i); });
        if (after == stream.end()) return length;
        if (after != stream.begin()) from = std::max(from, *std::prev(after) + 1);
      }
    }
    return from;
  }

  const plan::HappensBefore& order;
  size_t length;
  std::vector<std::vector<size_t>> instructions;  // by stream
};

// Finds when the buffers of a round are alive.
class LifetimeFinder {
 public:
  explicit LifetimeFinder(const plan::Unrolled& sequence) : sequence_(sequence) {}

  bool knows(uint32_t buffer) const { return lifetimes_.contains(buffer); }
  const Lifetimes& of(uint32_t buffer) { return lifetimes_[buffer]; }

  // Notes the accesses of a round: a step, or a batch of the evaluation. Lives may end in the next one.
  void visit(const plan::Unrolled::Round& round) {
    const llvm::DenseSet<uint32_t> shared = sharedIn(round);
    llvm::DenseSet<uint32_t> written;
    llvm::MapVector<uint32_t, llvm::SmallVector<size_t>> early;  // reads before the first write
    for (size_t i = round.begin; i < round.end; ++i)
      for (const plan::Operand& operand : sequence_[i].instruction->operands()) {
        const uint32_t buffer = operand.buffer();
        if (operand.access() != plan::READ) written.insert(buffer);
        if (written.contains(buffer))
          note(buffer, i, !shared.contains(buffer));
        else
          early[buffer].push_back(i);
      }
    for (auto& [buffer, reads] : early)
      for (size_t i : reads) note(buffer, i + round.length(), !shared.contains(buffer));
  }

 private:
  // Buffers that several parts use, or that are used from one turn to another.
  llvm::DenseSet<uint32_t> sharedIn(const plan::Unrolled::Round& round) const {
    llvm::DenseMap<uint32_t, std::string_view> parts;  // the list that uses a buffer
    llvm::DenseMap<uint32_t, uint32_t> writtenIn;
    llvm::DenseSet<uint32_t> shared;
    for (size_t i = round.begin; i < round.end; ++i)
      for (const plan::Operand& operand : sequence_[i].instruction->operands()) {
        const uint32_t buffer = operand.buffer(), turn = sequence_[i].run;
        const std::string_view part = sequence_[i].list;
        const bool fresh = parts.try_emplace(buffer, part).first->second == part;
        if (operand.access() != plan::READ) writtenIn.try_emplace(buffer, 0).first->second = turn;
        auto written = writtenIn.find(buffer);
        if (!fresh || written == writtenIn.end() || written->second != turn) shared.insert(buffer);
      }
    return shared;
  }

  void note(uint32_t buffer, size_t i, bool onePart) {
    Lifetimes& lives = lifetimes_[buffer];
    const uint32_t turn = onePart ? sequence_[i].run : 0;
    if (lives.empty() || turnOfLife_[buffer] != turn) lives.emplace_back(), turnOfLife_[buffer] = turn;
    Lifetime& life = lives.back();
    life.first.resize(sequence_.streams(), -1);
    life.last.resize(sequence_.streams(), -1);
    const uint32_t stream = sequence_.issued()[i].stream;
    if (life.first[stream] < 0) life.first[stream] = static_cast<int64_t>(i);
    life.last[stream] = static_cast<int64_t>(i);
  }

  const plan::Unrolled& sequence_;
  llvm::DenseMap<uint32_t, Lifetimes> lifetimes_;
  llvm::DenseMap<uint32_t, uint32_t> turnOfLife_;  // in which the latest life of a buffer of one part began
};

// Gives buffers places.
class ArenaLayout {
 public:
  explicit ArenaLayout(plan::Plan& plan)
      // A life begins in the first step and ends there or in the second; one step more for what comes after it.
      : plan_(plan),
        sequence_(plan, 1),
        order_(sequence_.happensBefore()),
        ends_(sequence_, order_),
        lives_(sequence_) {}

  void run() {
    setAlignments();
    lives_.visit(sequence_.stepRound());
    // The evaluation runs where nothing of the step is alive, so its buffers lie where the step's do.
    const plan::Unrolled::Round evaluation = sequence_.evaluationRound();
    llvm::DenseSet<uint32_t> evaluated;
    for (size_t i = evaluation.begin; i < evaluation.end; ++i)
      for (const plan::Operand& operand : sequence_[i].instruction->operands())
        if (!lives_.knows(operand.buffer())) evaluated.insert(operand.buffer());
    std::vector<uint32_t> ofStep, ofEvaluation;
    for (uint32_t buffer = 0; buffer < static_cast<uint32_t>(plan_.buffers_size()); ++buffer) {
      const bool persistent = bufferAt(buffer).persistent();
      if (!persistent && evaluated.contains(buffer))
        ofEvaluation.push_back(buffer);
      else if (persistent || !lives_.knows(buffer))
        place(buffer, aligned(peaks_[bufferAt(buffer).space()], buffer));
      else
        ofStep.push_back(buffer);
    }
    const auto floors = std::to_array(peaks_);
    placeAll(ofStep, sequence_.stepRound(), floors);
    lives_.visit(evaluation);
    placeAll(ofEvaluation, evaluation, floors);
    declarePeaks();
  }

 private:
  const plan::Buffer& bufferAt(uint32_t buffer) const { return plan_.buffers(static_cast<int>(buffer)); }

  // Some buffers need a larger alignment than others.
  void setAlignments() {
    auto atLeast = [&](const plan::Operand& operand, uint64_t alignment) {
      uint64_t& known = alignments_[operand.buffer()];
      known = std::max(known, alignment);
    };
    plan::forEachInstruction(plan_, [&](const plan::Instruction& instruction) {
      // The scratch of a call on a GPU is cuBLASLt's workspace, among others.
      if (instruction.call().device_scratch() > 0 && instruction.operands_size() > 0)
        atLeast(*instruction.operands().rbegin(), kDeviceAlignment);
      // Direct input and output takes whole blocks, in memory as in the file.
      const plan::Transfer::Kind kind = instruction.transfer().kind();
      if (kind == plan::Transfer::READ_FILE || kind == plan::Transfer::WRITE_FILE)
        for (const plan::Operand& operand : instruction.operands()) atLeast(operand, kFileAlignment);
    });
  }

  int64_t aligned(int64_t offset, uint32_t buffer) const {
    const uint64_t least = bufferAt(buffer).space() == plan::Buffer::FILE ? kFileAlignment : kAlignment;
    return static_cast<int64_t>(
        llvm::alignTo(static_cast<uint64_t>(offset), std::max(alignments_.lookup(buffer), least)));
  }

  void place(uint32_t buffer, int64_t offset) {
    plan::Buffer& placed = *plan_.mutable_buffers(static_cast<int>(buffer));
    placed.set_offset(static_cast<uint64_t>(offset));
    int64_t& peak = peaks_[placed.space()];  // the last byte in use
    peak = std::max(peak, offset + static_cast<int64_t>(placed.bytes()));
  }

  // All of `a` before all of `b`; `shift` moves b into the next round.
  bool before(const Lifetime& a, const Lifetime& b, int64_t shift) const {
    for (int64_t last : a.last)
      for (int64_t first : b.first)
        if (last >= 0 && first >= 0 && !order_.ordered(static_cast<size_t>(last), static_cast<size_t>(first + shift)))
          return false;
    return true;
  }

  // Each life of `a` lies between two of `b`, around the loop. It is enough to look at these two: on every stream the
  // others of `b` come before the one or after the other.
  bool mayShare(const Lifetimes& as, const Lifetimes& bs, int64_t roundLength) const {
    for (const Lifetime& a : as) {
      const Lifetime* next = llvm::find_if(bs, [&](const Lifetime& b) { return b.begin() > a.begin(); });
      if (!(next == bs.end() ? before(a, bs.front(), roundLength) : before(a, *next, 0))) return false;
      if (!(next == bs.begin() ? before(bs.back(), a, roundLength) : before(*std::prev(next), a, 0))) return false;
    }
    return true;
  }

  // Places buffers of one round, the largest first, from the end of what persists on.
  void placeAll(std::vector<uint32_t>& together, const plan::Unrolled::Round& round,
                const std::array<int64_t, kSpaces>& floors) {
    llvm::stable_sort(together, [&](uint32_t a, uint32_t b) { return bufferAt(a).bytes() > bufferAt(b).bytes(); });
    PlacedBuffers ofSpace[kSpaces];
    std::vector<const Lifetimes*> livesOf;
    const auto roundLength = static_cast<int64_t>(round.length());
    for (auto [i, buffer] : llvm::enumerate(together)) {
      const plan::Buffer::Space space = bufferAt(buffer).space();
      const Lifetimes& lives = *livesOf.emplace_back(&lives_.of(buffer));
      const auto size = static_cast<int64_t>(
          llvm::alignTo(bufferAt(buffer).bytes(), space == plan::Buffer::FILE ? kFileAlignment : kAlignment));
      const LiveRange alive = ends_.liveRange(lives, round);
      const int64_t at = ofSpace[space].find(
          aligned(floors[space], buffer), size, alive,
          [&](size_t other) { return !mayShare(lives, *livesOf[other], roundLength); },
          [&, buffer = buffer](int64_t offset) { return aligned(offset, buffer); });
      place(buffer, at);
      ofSpace[space].insert({at, at + size, alive, i});
    }
  }

  void declarePeaks() {
    plan::Memory& memory = *plan_.mutable_memory();
    memory.set_peak_bytes(static_cast<uint64_t>(peaks_[plan::Buffer::DEVICE]));
    memory.clear_spaces();
    for (plan::Buffer::Space space : {plan::Buffer::HOST, plan::Buffer::FILE}) {
      if (peaks_[space] == 0) continue;
      plan::SpaceMemory& declared = *memory.add_spaces();
      declared.set_space(space);
      declared.set_peak_bytes(static_cast<uint64_t>(peaks_[space]));
    }
  }

  plan::Plan& plan_;
  const plan::Unrolled sequence_;
  const plan::HappensBefore order_;
  const LifetimeEnds ends_;
  LifetimeFinder lives_;
  llvm::DenseMap<uint32_t, uint64_t> alignments_;
  int64_t peaks_[kSpaces] = {};
};

}  // namespace

Status allocateArena(Draft& draft) {
  ArenaLayout(draft.plan).run();
  return {};
}

}  // namespace sheaf::plan_ir
