// Orders the instructions of the step, which repeats for ever: see passes/schedule.
#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
#include "passes/plan/Sequence.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/Scheduler.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/plan/Types.h"
#include "runtime/profile/Profile.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_SCHEDULE
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf;
using namespace sheaf::plan_ir;

namespace {

struct Schedule : plan_ir::impl::ScheduleBase<Schedule> {
  using Base::Base;

  void runOnOperation() override {
    auto profile = schedule::loadProfile(profileName);
    if (!profile.ok()) {
      getOperation().emitError(profile.status().message());
      return signalPassFailure();
    }
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(order(program, *profile))) return signalPassFailure();
  }

  LogicalResult order(ProgramOp program, const profile::Profile& profile) {
    FailureOr<plan::Plan> plan = toProto(program, Kernels::kAny);
    if (failed(plan)) return failure();
    Expected<profile::Profile> scaled = profile.withRanks(plan->ranks());
    if (!scaled.ok()) return program.emitError(scaled.status().message());
    if (Status known = schedule::checkCosts(*plan, *scaled); !known.ok()) return program.emitError(known.message());
    Sequence sequence(program);
    // Each list is ordered as if it alone were the step.
    const plan::InstructionList body = plan->body();
    std::vector<plan::InstructionList> parts;
    for (const plan::StepPart& part : plan->parts()) parts.push_back(part.instructions());
    plan->clear_parts();
    plan->clear_turns();
    // What a list needs first stands at its own beginning, where it does not follow itself or a batch may be the last.
    auto orderAlone = [&](const plan::InstructionList& list, Block& block) {
      *plan->mutable_body() = list;
      SmallVector<Operation*> first;
      orderRound(*plan, *scaled, block, [&](Operation* carried) { first.push_back(carried); });
      for (Operation* op : llvm::reverse(first)) op->moveBefore(&block, block.begin());
    };
    OpBuilder prologue = OpBuilder::atBlockEnd(&sequence.prologueOp.getBody().front());
    for (auto [list, part] : llvm::zip(parts, sequence.partOps)) orderAlone(list, part.getBody().front());
    if (parts.empty())
      orderRound(*plan, *scaled, sequence.stepOp.getBody().front(),
                 [&](Operation* carried) { prologue.clone(*carried); });
    else
      orderAlone(body, sequence.stepOp.getBody().front());
    if (sequence.evaluationOp) orderAlone(plan->evaluation(), sequence.evaluationOp.getBody().front());
    return success();
  }

  // Orders the block of the instructions that are the plan's body; those that are carried into the next round are
  // handed over in their order.
  void orderRound(const plan::Plan& plan, const profile::Profile& profile, Block& block,
                  llvm::function_ref<void(Operation*)> carry) {
    if (block.empty()) return;
    schedule::StepModel model = schedule::modelOf(plan, profile);
    schedule::SchedulerOptions options;
    options.memoryLimit = memoryLimit;
    options.prefetch = prefetch;
    schedule::Scheduled scheduled = schedule::schedule(model, options);
    SmallVector<Operation*> ops;
    for (Operation& op : block) ops.push_back(&op);
    for (uint32_t node : scheduled.order.nodes) {
      Operation* op = ops[model.nodes[node].instruction];
      op->moveBefore(&block, block.end());
      if (scheduled.order.carried[node]) carry(op);
    }
  }
};

}  // namespace
