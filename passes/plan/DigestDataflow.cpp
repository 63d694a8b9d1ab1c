// Writes down what the step computes, before anything is decided about order and memory.
#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Dataflow.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_DIGESTDATAFLOW
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf::plan_ir;

namespace {

struct DigestDataflow : sheaf::plan_ir::impl::DigestDataflowBase<DigestDataflow> {
  using Base::Base;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      FailureOr<sheaf::plan::Plan> plan = toProto(program, Kernels::kAny);
      if (failed(plan)) return signalPassFailure();
      Block& block = program.getBody().front();
      for (auto digests : llvm::make_early_inc_range(block.getOps<DigestsOp>()))
        if (digests.getTable() == "dataflow") digests.erase();
      OpBuilder builder = OpBuilder::atBlockBegin(&block);
      for (auto prologue : block.getOps<PrologueOp>()) builder.setInsertionPoint(prologue);
      SmallVector<Attribute> entries;
      for (uint64_t digest : sheaf::plan::followDataflow(sheaf::plan::Places(*plan)).digests)
        entries.push_back(builder.getStringAttr(sheaf::hexText(digest)));
      DigestsOp::create(builder, program.getLoc(), "dataflow", builder.getArrayAttr(entries));
    }
  }
};

}  // namespace
