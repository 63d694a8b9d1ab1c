// Orders conflicting accesses of different streams by events, around the loop.
#include <set>

#include "passes/plan/Passes.h"
#include "passes/plan/Sequence.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_INSERTEVENTS
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf::plan_ir;

namespace {

struct InsertEvents : sheaf::plan_ir::impl::InsertEventsBase<InsertEvents> {
  using Base::Base;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) insert(program);
  }

  void insert(ProgramOp program) {
    Sequence sequence(program);
    int64_t ranks = program->getAttrOfType<IntegerAttr>("ranks").getInt();

    struct Seen {
      Operation* instruction;
      int64_t stream;
      Operand operand;
    };
    llvm::MapVector<Value, SmallVector<Seen>> history;
    // Producer -> the consumers that must wait for it, in the order found.
    llvm::MapVector<Operation*, llvm::SetVector<Operation*>> dependences;
    Operation* computed = nullptr;  // the latest instruction of the first stream
    for (Operation* instruction : sequence.instructions) {
      int64_t stream = streamOf(instruction);
      if (stream == 0) computed = instruction;
      // A gather must not run further ahead than it was scheduled, or all gathered buckets would be alive at once.
      if (computed && isa<AllGatherOp>(instruction) && !writesPersistent(instruction))
        dependences[computed].insert(instruction);
      for (const Operand& operand : operandsOf(instruction)) {
        SmallVector<Seen>& seen = history[operand.buffer];
        // The latest conflicting access of each other stream: earlier ones precede it in that stream.
        std::set<int64_t> done{stream};
        for (const Seen& earlier : llvm::reverse(seen)) {
          if (done.size() == sequence.streams) break;
          if (done.contains(earlier.stream) || (operand.access == kRead && earlier.operand.access == kRead)) continue;
          if (!overlap(operand, earlier.operand, ranks)) continue;
          done.insert(earlier.stream);
          dependences[earlier.instruction].insert(instruction);
        }
        seen.push_back({instruction, stream, operand});
      }
    }
    // After the epilogue the host touches all persistent state; the first stream stands for it.
    SmallVector<std::pair<Operation*, StringRef>> drains;
    for (auto& [buffer, seen] : history) {
      if (!buffer.getDefiningOp<BufferOp>().getPersistent()) continue;
      std::set<int64_t> done{0};
      for (const Seen& access : llvm::reverse(seen))
        if (done.insert(access.stream).second)
          drains.push_back({access.instruction, buffer.getDefiningOp<BufferOp>().getName()});
    }

    int64_t event = 0;
    OpBuilder builder(program.getContext());
    llvm::DenseMap<Operation*, int64_t> events;
    auto eventOf = [&](Operation* producer) {
      auto [it, fresh] = events.try_emplace(producer, event);
      if (fresh) {
        builder.setInsertionPointAfter(producer);
        RecordOp::create(builder, producer->getLoc(), event++, streamOf(producer), labelOf(producer));
      }
      return it->second;
    };
    for (auto& [producer, consumers] : dependences)
      for (Operation* consumer : consumers) {
        int64_t id = eventOf(producer);
        builder.setInsertionPoint(consumer);
        WaitOp::create(builder, consumer->getLoc(), id, streamOf(consumer), labelOf(producer));
      }
    for (auto [producer, name] : drains) {
      int64_t id = eventOf(producer);
      builder.setInsertionPointToEnd(&sequence.epilogueOp.getBody().front());
      WaitOp::create(builder, producer->getLoc(), id, 0, name);
    }
    program->setAttr("events", builder.getI64IntegerAttr(event));
  }

  static bool writesPersistent(Operation* gather) {
    return operandsOf(gather).back().buffer.getDefiningOp<BufferOp>().getPersistent();
  }

  static StringRef labelOf(Operation* instruction) {
    return instruction->getAttrOfType<StringAttr>("label").getValue();
  }
};

}  // namespace
