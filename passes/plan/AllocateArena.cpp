// Lays out the arena of each space: buffers share bytes only where happens-before orders all their accesses, around the
// loop.
#include <array>

#include "passes/plan/Passes.h"
#include "passes/plan/PlacedBuffers.h"
#include "passes/plan/Sequence.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_ALLOCATEARENA
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf::plan_ir;

namespace {

using sheaf::plan::kAlignment;
using sheaf::plan::kDeviceAlignment;
using sheaf::plan::kFileAlignment;
using Space = sheaf::plan::Buffer;
constexpr int kSpaces = 3;

// First and last access of a buffer on each stream, as positions in the first two steps; -1: none. A buffer is written
// before it is read, so what comes before the first write of a step belongs to the life that began in the step before.
struct Lifetime {
  SmallVector<int64_t, 4> first, last;
  int64_t begin() const {
    int64_t least = INT64_MAX;
    for (int64_t at : first)
      if (at >= 0) least = std::min(least, at);
    return least;
  }
};
// In the order of their beginnings. A buffer that one part of the step alone uses lives again in each of its turns, and
// is used in the same way there.
using Lifetimes = SmallVector<Lifetime, 1>;

// Finds where lifetimes end.
class LifetimeEnds {
 public:
  LifetimeEnds(const Sequence& sequence, const sheaf::plan::HappensBefore& order)
      : order(order), length(sequence.issued.size()), instructions(sequence.streams) {
    for (auto [i, instruction] : llvm::enumerate(sequence.issued)) instructions[instruction.stream].push_back(i);
  }

  // Buffers with several lifetimes, or across rounds, count as always live.
  LiveRange liveRange(const Lifetimes& lives, size_t firstRound, int64_t roundLength) const {
    LiveRange range;
    if (lives.size() != 1) return range;
    const int64_t begin = lives[0].begin(), until = orderedEnd(lives[0]);
    const int64_t first = (begin - int64_t(firstRound)) % roundLength, end = first + (until - begin);
    if (begin < int64_t(firstRound) || size_t(until) == length || end > roundLength) return range;
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

  const sheaf::plan::HappensBefore& order;
  size_t length;
  std::vector<std::vector<size_t>> instructions;  // by stream
};

struct AllocateArena : sheaf::plan_ir::impl::AllocateArenaBase<AllocateArena> {
  using Base::Base;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) allocate(program);
  }

  void allocate(ProgramOp program) {
    // A life begins in the first step and ends there or in the second; one step more for what comes after it.
    Sequence sequence(program, 1);
    auto order = sequence.happensBefore();

    llvm::DenseMap<Value, Lifetimes> lifetimes;
    llvm::DenseMap<Value, uint32_t> turnOfLife;  // in which the latest life of a buffer of one part began
    auto note = [&](Value buffer, size_t i, bool onePart) {
      Lifetimes& lives = lifetimes[buffer];
      const uint32_t turn = onePart ? sequence.turns[i] : 0;
      if (lives.empty() || turnOfLife[buffer] != turn) lives.emplace_back(), turnOfLife[buffer] = turn;
      Lifetime& life = lives.back();
      life.first.resize(sequence.streams, -1);
      life.last.resize(sequence.streams, -1);
      uint32_t stream = sequence.issued[i].stream;
      if (life.first[stream] < 0) life.first[stream] = i;
      life.last[stream] = i;
    };
    // Of a step or of a batch of the evaluation, and the next one.
    auto noteRound = [&](size_t begin, size_t end) {
      llvm::DenseMap<Value, Operation*> parts;
      llvm::DenseSet<Value> shared;  // by several parts, or from one turn to another
      llvm::DenseMap<Value, uint32_t> writtenIn;
      for (size_t i = begin; i < end; ++i)
        for (const Operand& operand : operandsOf(sequence.instructions[i])) {
          Operation* part = sequence.instructions[i]->getParentOp();
          const bool fresh = parts.try_emplace(operand.buffer, part).first->second == part;
          if (operand.access != kRead) writtenIn.try_emplace(operand.buffer, 0).first->second = sequence.turns[i];
          auto written = writtenIn.find(operand.buffer);
          if (!fresh || written == writtenIn.end() || written->second != sequence.turns[i])
            shared.insert(operand.buffer);
        }
      llvm::DenseSet<Value> written;
      llvm::MapVector<Value, SmallVector<size_t>> early;  // reads before the first write
      for (size_t i = begin; i < end; ++i)
        for (const Operand& operand : operandsOf(sequence.instructions[i])) {
          if (operand.access != kRead) written.insert(operand.buffer);
          if (written.contains(operand.buffer))
            note(operand.buffer, i, !shared.contains(operand.buffer));
          else
            early[operand.buffer].push_back(i);
        }
      for (auto& [buffer, reads] : early)
        for (size_t i : reads) note(buffer, i + (end - begin), !shared.contains(buffer));
    };
    noteRound(sequence.firstBody, sequence.secondBody);
    // All of `a` before all of `b`; `shift` moves b into the next round.
    auto before = [&](const Lifetime& a, const Lifetime& b, int64_t shift) {
      for (int64_t last : a.last)
        for (int64_t first : b.first)
          if (last >= 0 && first >= 0 && !order.ordered(last, first + shift)) return false;
      return true;
    };
    int64_t roundLength = sequence.secondBody - sequence.firstBody;
    // Each life of `a` lies between two of `b`, around the loop. It is enough to look at these two: on every stream the
    // others of `b` come before the one or after the other.
    auto mayShare = [&](const Lifetimes& as, const Lifetimes& bs) {
      for (const Lifetime& a : as) {
        const Lifetime* next = llvm::find_if(bs, [&](const Lifetime& b) { return b.begin() > a.begin(); });
        if (!(next == bs.end() ? before(a, bs.front(), roundLength) : before(a, *next, 0))) return false;
        if (!(next == bs.begin() ? before(bs.back(), a, roundLength) : before(*std::prev(next), a, 0))) return false;
      }
      return true;
    };

    llvm::DenseMap<Value, uint64_t> alignments;  // of buffers that need more than others
    // The scratch of a call on a GPU is cuBLASLt's workspace, among others.
    program.walk([&](CallOp call) {
      if (call.getDeviceScratch() > 0 && !call.getBuffers().empty())
        alignments[call.getBuffers().back()] = kDeviceAlignment;
    });
    // Direct input and output takes whole blocks, in memory as in the file.
    program.walk([&](TransferOp transfer) {
      for (Value buffer : transfer.getBuffers())
        if (llvm::is_contained({sheaf::plan::Transfer::READ_FILE, sheaf::plan::Transfer::WRITE_FILE},
                               transfer.getKind()))
          alignments[buffer] = kFileAlignment;
    });
    auto alignmentOf = [&](BufferOp buffer) -> uint64_t {
      return std::max(alignments.lookup(buffer.getResult()),
                      spaceOf(buffer) == Space::FILE ? kFileAlignment : kAlignment);
    };
    auto aligned = [&](int64_t offset, BufferOp buffer) -> int64_t {
      return llvm::alignTo(offset, alignmentOf(buffer));
    };

    SmallVector<BufferOp> buffers(program.getBody().front().getOps<BufferOp>());
    int64_t peaks[kSpaces] = {};  // the last byte in use
    Builder builder(program.getContext());
    auto place = [&](BufferOp buffer, int64_t offset) {
      buffer.setOffset(offset);
      int64_t& peak = peaks[spaceOf(buffer)];
      peak = std::max<int64_t>(peak, offset + buffer.getBytes());
    };
    // The evaluation runs where nothing of the step is alive, so its buffers lie where the step's do.
    llvm::DenseSet<Value> evaluated;
    for (size_t i = sequence.firstEvaluation; i < sequence.secondEvaluation; ++i)
      for (const Operand& operand : operandsOf(sequence.instructions[i]))
        if (!lifetimes.contains(operand.buffer)) evaluated.insert(operand.buffer);
    SmallVector<BufferOp> shared, ofEvaluation;
    for (BufferOp buffer : buffers)
      if (!buffer.getPersistent() && evaluated.contains(buffer.getResult()))
        ofEvaluation.push_back(buffer);
      else if (buffer.getPersistent() || !lifetimes.contains(buffer.getResult()))
        place(buffer, aligned(peaks[spaceOf(buffer)], buffer));
      else
        shared.push_back(buffer);
    const auto floors = std::to_array(peaks);

    const LifetimeEnds ends(sequence, order);
    auto placeAll = [&](SmallVector<BufferOp>& together, size_t firstRound) {
      llvm::stable_sort(together, [](BufferOp a, BufferOp b) { return a.getBytes() > b.getBytes(); });
      PlacedBuffers ofSpace[kSpaces];
      std::vector<const Lifetimes*> livesOf;
      for (auto [i, buffer] : llvm::enumerate(together)) {
        const auto space = spaceOf(buffer);
        const Lifetimes& lives = *livesOf.emplace_back(&lifetimes[buffer.getResult()]);
        const int64_t size = llvm::alignTo(buffer.getBytes(), space == Space::FILE ? kFileAlignment : kAlignment);
        const LiveRange alive = ends.liveRange(lives, firstRound, roundLength);
        const int64_t at = ofSpace[space].find(
            aligned(floors[space], buffer), size, alive,
            [&](size_t other) { return !mayShare(lives, *livesOf[other]); },
            [&, buffer = buffer](int64_t place) { return aligned(place, buffer); });
        place(buffer, at);
        ofSpace[space].insert({at, at + size, alive, i});
      }
    };
    placeAll(shared, sequence.firstBody);
    noteRound(sequence.firstEvaluation, sequence.secondEvaluation);
    roundLength = sequence.secondEvaluation - sequence.firstEvaluation;
    placeAll(ofEvaluation, sequence.firstEvaluation);
    program->setAttr("peak_bytes", builder.getI64IntegerAttr(peaks[Space::DEVICE]));
    SmallVector<NamedAttribute> spaces;
    for (Space::Space space : {Space::HOST, Space::FILE})
      if (peaks[space] > 0)
        spaces.push_back(builder.getNamedAttr(
            sheaf::plan::word(space),
            builder.getDictionaryAttr(builder.getNamedAttr("peak_bytes", builder.getI64IntegerAttr(peaks[space])))));
    if (!spaces.empty()) program->setAttr("spaces", builder.getDictionaryAttr(spaces));
  }
};

}  // namespace
