// Orders conflicting accesses of different streams by events, around the loop.
#include <map>
#include <set>

#include "passes/plan/Passes.h"
#include "passes/plan/Sequence.h"
#include "runtime/plan/AccessHistory.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_INSERTEVENTS
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf::plan_ir;

namespace {

struct InsertEvents : sheaf::plan_ir::impl::InsertEventsBase<InsertEvents> {
  using Base::Base;

  // Producer -> the consumers that must wait for it, in the order found; null: the host.
  using Dependences = llvm::MapVector<Operation*, llvm::SetVector<Operation*>>;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      erase(program);
      insert(program, findDependences(program));
    }
  }

  static void erase(ProgramOp program) {
    program.walk([](Operation* op) {
      if (isa<RecordOp, WaitOp>(op)) op->erase();
    });
  }

  // Where a buffer lies: at its offset in its space, or before it has one, apart from all others.
  llvm::DenseMap<Value, int64_t> basesOf(ProgramOp program) const {
    llvm::DenseMap<Value, int64_t> bases;
    int64_t top = 0;
    for (auto buffer : program.getBody().front().getOps<BufferOp>()) {
      const int64_t space = static_cast<int64_t>(spaceOf(buffer)) << sheaf::plan::kSpaceShift;
      bases[buffer.getResult()] = placed ? space + buffer.getOffset() : top;
      top += buffer.getBytes();
    }
    // As if there were one: whatever writes either is ordered with all other accesses to both, in this step and the
    // next, and so it does not matter which of the two is where.
    for (auto generation : program.getBody().front().getOps<GenerationOp>())
      bases[generation.getNext()] = bases[generation.getCurrent()];
    return bases;
  }

  Dependences findDependences(ProgramOp program) const {
    Sequence sequence(program);
    llvm::DenseMap<Value, int64_t> bases = basesOf(program);
    Dependences dependences;
    sheaf::plan::AccessHistory history;
    auto streamAt = [&](size_t i) { return sequence.issued[i].stream; };
    auto order = [&](size_t earlier, size_t later) {
      if (streamAt(earlier) != streamAt(later))
        dependences[sequence.instructions[earlier]].insert(sequence.instructions[later]);
    };
    auto access = [&](size_t i, int64_t begin, int64_t end, bool write) {
      auto conflict = [&](size_t earlier, uint64_t, uint64_t) { order(earlier, i); };
      if (write)
        history.write(begin, end, i, conflict);
      else
        history.read(begin, end, i, streamAt(i), conflict);
    };
    int64_t computed = -1;                         // the latest instruction of the first stream
    llvm::DenseMap<int64_t, size_t> communicated;  // the latest collective of each communicator
    // Stores' bytes are free for what is issued after the next store of their stream: see schedule::loopOf. By stream,
    // the latest store; by its stream and that of who is to wait, the one before.
    std::map<uint32_t, size_t> stored;
    std::map<std::pair<uint32_t, uint32_t>, size_t> freed;
    std::set<uint32_t> waiting{0};
    for (Operation* instruction : sequence.instructions)
      if (instruction && isFetch(instruction)) waiting.insert(static_cast<uint32_t>(streamOf(instruction)));
    for (auto [i, instruction] : llvm::enumerate(sequence.instructions)) {
      if (!instruction) {
        for (auto buffer : program.getBody().front().getOps<BufferOp>())
          if (int64_t base = bases[buffer.getResult()]; buffer.getPersistent())
            access(i, base, base + buffer.getBytes(), true);
        // The host issues nothing before all streams have drained.
        history.forget();
        computed = -1;
        communicated.clear();
        stored.clear(), freed.clear();
        continue;
      }
      // A gather must not run further ahead than it was scheduled, or all gathered buckets would be alive at once. Once
      // memory is laid out, what shares bytes with the bucket holds it back.
      if (!placed && computed >= 0 && (isa<AllGatherOp>(instruction) || isFetch(instruction)) &&
          !writesPersistent(instruction))
        order(computed, i);
      if (!placed && (streamAt(i) == 0 || isFetch(instruction)) && !isa<RecordOp, WaitOp>(instruction))
        std::erase_if(freed, [&, i = i](const auto& entry) {
          const bool waits = entry.first.second == streamAt(i);
          if (waits) order(entry.second, i);
          return waits;
        });
      if (isStore(instruction)) {
        auto [latest, first] = stored.try_emplace(streamAt(i), i);
        if (!first)
          for (uint32_t stream : waiting) freed[{streamAt(i), stream}] = latest->second;
        latest->second = i;
      }
      if (streamAt(i) == 0) computed = i;
      // Ranks must meet in one order.
      if (auto communicator = instruction->getAttrOfType<IntegerAttr>("communicator")) {
        auto [latest, first] = communicated.try_emplace(communicator.getInt(), i);
        if (!first) order(std::exchange(latest->second, i), i);
      }
      for (const Operand& operand : operandsOf(instruction)) {
        int64_t begin = bases[operand.buffer] + operand.offset;
        access(i, begin, begin + operand.bytes + operand.stride * (ranksOn(program, operand.axis) - 1),
               operand.access != kRead);
      }
    }
    return dependences;
  }

  static void insert(ProgramOp program, const Dependences& dependences) {
    OpBuilder builder(program.getContext());
    int64_t event = 0;
    for (auto& [producer, consumers] : dependences) {
      builder.setInsertionPointAfter(producer);
      RecordOp::create(builder, producer->getLoc(), event, streamOf(producer), labelOf(producer));
      for (Operation* consumer : consumers) {
        if (consumer)
          builder.setInsertionPoint(consumer);
        else  // the host is the first stream's
          builder.setInsertionPointToEnd(&lastBeforeHost(program, producer).front());
        WaitOp::create(builder, producer->getLoc(), event, consumer ? streamOf(consumer) : 0, labelOf(producer));
      }
      ++event;
    }
    program->setAttr("events", builder.getI64IntegerAttr(event));
  }

  // The epilogue, or the evaluation for what is done there.
  static Region& lastBeforeHost(ProgramOp program, Operation* producer) {
    if (auto evaluation = producer->getParentOfType<EvaluationOp>()) return evaluation.getBody();
    return (*program.getBody().front().getOps<EpilogueOp>().begin()).getBody();
  }

  static bool writesPersistent(Operation* gather) {
    return operandsOf(gather).back().buffer.getDefiningOp<BufferOp>().getPersistent();
  }

  static bool isFetch(Operation* instruction) {
    auto transfer = dyn_cast<TransferOp>(instruction);
    return transfer && sheaf::plan::fetches(transfer.getKind());
  }
  static bool isStore(Operation* instruction) {
    auto transfer = dyn_cast<TransferOp>(instruction);
    return transfer && !sheaf::plan::fetches(transfer.getKind());
  }

  static StringRef labelOf(Operation* instruction) {
    return instruction->getAttrOfType<StringAttr>("label").getValue();
  }
};

}  // namespace
