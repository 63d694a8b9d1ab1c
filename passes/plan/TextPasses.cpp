// The passes of Finish.h as passes over the text of a plan, for `sheaf-opt`: each program becomes a draft, and the
// draft a program again.
#include "passes/StepModule.h"
#include "passes/plan/Finish.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_LOWERTOPLAN
#define GEN_PASS_DEF_DIGESTDATAFLOW
#define GEN_PASS_DEF_OFFLOAD
#define GEN_PASS_DEF_HOSTOPERANDS
#define GEN_PASS_DEF_SCHEDULE
#define GEN_PASS_DEF_GENERATIONS
#define GEN_PASS_DEF_INSERTEVENTS
#define GEN_PASS_DEF_ELIDEEVENTS
#define GEN_PASS_DEF_ALLOCATEARENA
#include "passes/plan/Passes.h.inc"

namespace {

using namespace mlir;

template <typename Base>
struct TextPass : Base {
  using Base::Base;

  // Runs the pass.
  virtual Status change(Draft& draft) = 0;

  void runOnOperation() override {
    for (ProgramOp program : llvm::make_early_inc_range(this->getOperation().template getOps<ProgramOp>())) {
      FailureOr<Draft> draft = draftOf(program);
      if (failed(draft)) return this->signalPassFailure();
      if (Status changed = change(*draft); !changed.ok()) {
        program.emitError(changed.message());
        return this->signalPassFailure();
      }
      OwningOpRef<ModuleOp> text = programOf(this->getContext(), *draft);
      (*text->getOps<ProgramOp>().begin())->moveBefore(program);
      program.erase();
    }
  }
};

struct LowerToPlan final : impl::LowerToPlanBase<LowerToPlan> {
  using LowerToPlanBase::LowerToPlanBase;
  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (zero::functionsOf(module).empty()) return;
    FailureOr<Draft> draft = lowerToPlan(module, {maxThreads, cpu, gpu});
    if (failed(draft)) return signalPassFailure();
    OwningOpRef<ModuleOp> text = programOf(getContext(), *draft);
    module.getBody()->clear();
    ProgramOp program = *text->getOps<ProgramOp>().begin();
    program->remove();
    module.push_back(program);
  }
};
struct DigestDataflow final : TextPass<impl::DigestDataflowBase<DigestDataflow>> {
  Status change(Draft& draft) override { return digestDataflow(draft); }
};
struct Offload final : TextPass<impl::OffloadBase<Offload>> {
  using TextPass::TextPass;
  Status change(Draft& draft) override {
    return offload(draft, {optimizer, parameters, gradients, activations, within, hostBytes, updateOn, profileName});
  }
};
struct HostOperands final : TextPass<impl::HostOperandsBase<HostOperands>> {
  Status change(Draft& draft) override { return copyHostOperands(draft); }
};
struct Schedule final : TextPass<impl::ScheduleBase<Schedule>> {
  using TextPass::TextPass;
  Status change(Draft& draft) override { return scheduleInstructions(draft, {profileName, memoryLimit, prefetch}); }
};
struct Generations final : TextPass<impl::GenerationsBase<Generations>> {
  using TextPass::TextPass;
  Status change(Draft& draft) override { return addGenerations(draft, generations); }
};
struct InsertEvents final : TextPass<impl::InsertEventsBase<InsertEvents>> {
  using TextPass::TextPass;
  Status change(Draft& draft) override { return insertEvents(draft, placed); }
};
struct ElideEvents final : TextPass<impl::ElideEventsBase<ElideEvents>> {
  Status change(Draft& draft) override { return elideEvents(draft); }
};
struct AllocateArena final : TextPass<impl::AllocateArenaBase<AllocateArena>> {
  Status change(Draft& draft) override { return allocateArena(draft); }
};

}  // namespace
}  // namespace sheaf::plan_ir
