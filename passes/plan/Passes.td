// The pass of the `plan` phase that works on a module. Finish.h has the steps that make a plan.
#ifndef SHEAF_PASSES_PLAN
#define SHEAF_PASSES_PLAN

include "mlir/Pass/PassBase.td"

class PlanPass<string name> : Pass<"plan-" # name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::sheaf::train::TrainDialect", "::sheaf::zero::ZeroDialect"];
}

def StateFloor : PlanPass<"state-floor"> {
  let summary = "states the least that any plan of this model at this stage does in a step";
  let description = [{
    Flops of the matrix products of forward and backward pass, bytes that the updates of a rank read and write, bytes
    that are reduced and gathered: the message StepWork of plan.proto, as the module's attribute `train.floor`, which
    `plan-lower` makes the plan's `floor`. Runs before recomputation, so that a plan cannot lower or raise its floor
    by what it issues.
  }];
  let options = [Option<"stage", "stage", "int64_t", "0", "ZeRO stage, 0 to 3; of the ranks of a node, if there are nodes">,
                 Option<"ranksPerNode", "ranks-per-node", "int64_t", "0", "Ranks of a node; 0: there are no nodes">,
                 Option<"networkStage", "network-stage", "int64_t", "-1",
                        "ZeRO stage of ranks of different nodes; negative: `stage`">];
}

#endif
