// Passes of the `plan` phase.
#ifndef SHEAF_PASSES_PLAN
#define SHEAF_PASSES_PLAN

include "mlir/Pass/PassBase.td"

class PlanPass<string name> : Pass<"plan-" # name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::sheaf::train::TrainDialect", "::sheaf::zero::ZeroDialect", "::sheaf::plan_ir::PlanDialect"];
}

def Schedule : PlanPass<"schedule"> {
  let summary = "orders the step: gathers one bucket ahead, updates behind the next reduction";
  let description = [{
    Each gather is issued when the use of the bucket before it begins, so it runs under that use. The first gather of a
    step is issued at the end of the step before it (`carried`), the very first in the prologue. An update is issued
    after the next bucket's reduction has been, so that it need not wait for its own.
  }];
}
def LowerToPlan : PlanPass<"lower"> {
  let summary = "turns the step into instructions on buffers";
  let description = [{
    Values become buffers; reshapes and parameters become views. A gradient is written straight into its place in the
    bucket, a piece of a concatenation into its place there, and a fusion's result over an operand that nobody reads
    after it. Distinct fusions become `plan.kernel`s.
  }];
  let options = [Option<"maxThreads", "max-threads-per-rank", "int64_t", "8", "Threads that scratch is reserved for">];
}
def InsertEvents : PlanPass<"insert-events"> {
  let summary = "orders every two conflicting accesses of different streams by an event";
  let description = [{
    Over the unrolled loop, so dependences into the next step and on the host count. Before memory is laid out, accesses
    conflict in their buffer, and a gather into a buffer that shares its bytes also waits for the computation issued
    before it: it must not run further ahead than it was scheduled. With `placed`, accesses conflict in the bytes of the
    arena, and only they do. Collectives of one communicator are ordered too. Events that were there before are removed.
  }];
  let options = [Option<"placed", "placed", "bool", "false", "Buffers have their offsets">];
}
def ElideEvents : PlanPass<"elide-events"> {
  let summary = "removes waits that stream order and the other waits imply, and records nobody waits for";
  let description = [{
    What is left is the transitive reduction of the order: without any one wait some two accesses that conflict would not
    be ordered.
  }];
}
def AllocateArena : PlanPass<"allocate-arena"> {
  let summary = "gives every buffer its offset";
  let description = [{
    Two buffers share bytes only if every access to one happens before every access to the other, in this step and into
    the next. Largest first, at the lowest offset that is free.
  }];
}

#endif
