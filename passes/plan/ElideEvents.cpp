// Removes waits that other order implies, records that nothing waits for, and renumbers the events.
#include "passes/plan/Passes.h"
#include "passes/plan/Sequence.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_ELIDEEVENTS
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf::plan_ir;

namespace {

struct ElideEvents : sheaf::plan_ir::impl::ElideEventsBase<ElideEvents> {
  using Base::Base;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) elide(program);
  }

  void elide(ProgramOp program) {
    // A wait goes that is implied in every round of the loop.
    Sequence sequence(program);
    auto order = sequence.happensBefore();
    llvm::DenseSet<Operation*> needed;
    llvm::SetVector<Operation*> waits;
    for (size_t i = 0; i < sequence.instructions.size(); ++i)
      if (isa_and_present<WaitOp>(sequence.instructions[i])) {
        waits.insert(sequence.instructions[i]);
        if (order.needed(i)) needed.insert(sequence.instructions[i]);
      }
    llvm::DenseMap<int64_t, int64_t> numbers;
    SmallVector<WaitOp> kept;
    for (Operation* wait : waits)
      if (needed.contains(wait))
        kept.push_back(cast<WaitOp>(wait)), numbers.try_emplace(kept.back().getEvent(), 0);
      else
        wait->erase();
    int64_t next = 0;
    SmallVector<RecordOp> records;
    program.walk([&](RecordOp record) { records.push_back(record); });
    for (RecordOp record : records) {
      auto it = numbers.find(record.getEvent());
      if (it == numbers.end()) {
        record.erase();
        continue;
      }
      it->second = next;
      record.setEvent(next++);
    }
    for (WaitOp wait : kept) wait.setEvent(numbers[wait.getEvent()]);
    program->setAttr("events", Builder(program.getContext()).getI64IntegerAttr(next));
  }
};

}  // namespace
