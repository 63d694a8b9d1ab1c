// Orders the instructions of the step, which repeats for ever: see passes/schedule.
#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
#include "passes/plan/Sequence.h"
#include "passes/schedule/Scheduler.h"
#include "passes/schedule/ShippedProfiles.h"
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
    schedule::StepModel model = schedule::modelOf(*plan, *scaled);
    schedule::SchedulerOptions options;
    options.memoryLimit = memoryLimit;
    options.prefetch = prefetch;
    schedule::Scheduled scheduled = schedule::schedule(model, options);

    Sequence sequence(program);
    SmallVector<Operation*> ops;
    for (Operation& op : sequence.stepOp.getBody().front()) ops.push_back(&op);
    Block& body = sequence.stepOp.getBody().front();
    OpBuilder prologue = OpBuilder::atBlockEnd(&sequence.prologueOp.getBody().front());
    for (uint32_t node : scheduled.order.nodes) {
      Operation* op = ops[model.nodes[node].instruction];
      op->moveBefore(&body, body.end());
      if (scheduled.order.carried[node]) prologue.clone(*op);
    }
    return success();
  }
};

}  // namespace
