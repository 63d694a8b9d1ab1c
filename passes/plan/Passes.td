// Passes of the `plan` phase.
#ifndef SHEAF_PASSES_PLAN
#define SHEAF_PASSES_PLAN

include "mlir/Pass/PassBase.td"

class PlanPass<string name> : Pass<"plan-" # name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::sheaf::train::TrainDialect", "::sheaf::zero::ZeroDialect", "::sheaf::plan_ir::PlanDialect"];
}

def LowerToPlan : PlanPass<"lower"> {
  let summary = "turns the step into instructions on buffers";
  let description = [{
    Values become buffers; reshapes and parameters become views. A gradient is written straight into its place in the
    bucket, a piece of a concatenation into its place there, and a fusion's result over an operand that is not read
    after it. Distinct fusions become `plan.kernel`s.
  }];
  let options = [Option<"maxThreads", "max-threads-per-rank", "int64_t", "8", "Threads that scratch is reserved for">,
                 Option<"cpu", "cpu", "bool", "true", "Reserve the scratch that calls need on the CPU">,
                 Option<"gpu", "gpu", "bool", "false", "Reserve the scratch that calls need on a GPU">];
}
def StateFloor : PlanPass<"state-floor"> {
  let summary = "states the least that any plan of this model at this stage does in a step";
  let description = [{
    Flops of the matrix products of forward and backward pass, bytes that the updates of a rank read and write, bytes
    that are reduced and gathered: the message StepWork of plan.proto, as the module's attribute `train.floor`, which
    `plan-lower` makes the program's `floor`. Runs before recomputation, so that a plan cannot lower or raise its floor
    by what it issues.
  }];
  let options = [Option<"stage", "stage", "int64_t", "0", "ZeRO stage, 0 to 3; of the ranks of a node, if there are nodes">,
                 Option<"ranksPerNode", "ranks-per-node", "int64_t", "0", "Ranks of a node; 0: there are no nodes">,
                 Option<"networkStage", "network-stage", "int64_t", "-1",
                        "ZeRO stage of ranks of different nodes; negative: `stage`">];
}
def DigestDataflow : PlanPass<"digest-dataflow"> {
  let summary = "writes digests of what outputs and state are computed from into the plan";
  let description = [{
    See runtime/plan/Dataflow.h. Schedule, events and memory leave them as they are, and the proof of the finished plan
    checks that they did.
  }];
}
def Offload : PlanPass<"offload"> {
  let summary = "moves optimizer state, parameters, gradients and activations to host memory or files";
  let description = [{
    What persists gets its home in another space. Each use elsewhere is one of an image where it is used, a buffer of the same
    size that lives from a transfer before the use to one after it. Uses share an image unless moving it away and back
    takes less than half of the computation between them. What lives within a step is moved between such uses if all of
    it has been written. No value is changed: `dataflow` stays as it is.

    With `within`, buffers of any kind are moved, and between which of their uses, by what their transfers cost for
    the bytes that they free, until no more are alive: see passes/schedule/Placement.h.

    With `update-on=host`, an update whose state has been moved is launched on the host, unless something else uses the
    state: it works on it in the host's memory, where it is or into which it is read from files. What else it uses is
    still on the device: see plan-host-operands.
  }];
  let options = [
    Option<"optimizer", "optimizer", "std::string", "\"device\"", "Space of optimizer state and master weights">,
    Option<"parameters", "parameters", "std::string", "\"device\"", "Space of parameters">,
    Option<"gradients", "gradients", "std::string", "\"device\"", "Space of gradients until their update">,
    Option<"activations", "activations", "std::string", "\"device\"", "Space of activations until the backward pass">,
    Option<"within", "within", "int64_t", "-1", "Bytes of the device; negative: each kind as its option says">,
    Option<"hostBytes", "host-bytes", "int64_t", "-1", "Most bytes to host memory, then to files; negative: all">,
    Option<"updateOn", "update-on", "std::string", "\"device\"",
           "Where buckets whose optimizer state has been moved are updated: device or host">,
    Option<"profileName", "profile", "std::string", "\"cpu\"", "Hardware profile: a name or a file">];
}
def HostOperands : PlanPass<"host-operands"> {
  let summary = "copies to host memory what launches on the host read of device buffers, and back what they write";
  let description = [{
    Each such buffer gets an image in the host's memory. The bytes that the launch reads are copied there as soon as they
    have been written, once for all launches that only read them, and those that it writes are copied back after it.
  }];
}
def Schedule : PlanPass<"schedule"> {
  let summary = "orders the step's instructions: computation, gathers, reductions and updates in one loop";
  let description = [{
    The order that takes the least time in the steady state, by the costs of a hardware profile, and among those the one
    that keeps the fewest bytes alive. The evaluation is ordered in the same way, as a loop of batches. It respects every dependence of the bytes accessed, so it changes no bit. Gathers
    that the next step needs first may stand at the end of the body; then they stand in the prologue as well.
  }];
  let options = [
    Option<"profileName", "profile", "std::string", "\"cpu\"", "Hardware profile: a name or a file">,
    Option<"memoryLimit", "memory-limit", "uint64_t", "0", "Most bytes of a rank's arena; 0: no limit">,
    Option<"prefetch", "prefetch", "int64_t", "-1", "Gathers under way beyond those in use; negative: what is best">];
}
def Generations : PlanPass<"generations"> {
  let summary = "gives state in files two places that take turns, and persists every step";
  let description = [{
    A step reads the current generation of what it stores and writes the next one; at its end `plan.persist` makes that
    durable and the two change roles. So the files are a state to go on from after every step. Only where files hold all
    state: otherwise, and with one generation, nothing is changed and the program's `decisions` say why. Runs after the
    schedule, which is the same for one place and for two.
  }];
  let options = [Option<"generations", "generations", "int64_t", "2", "Places of each state, 1 or 2">];
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
  let summary = "removes waits that stream order and the other waits imply, and records that nothing waits for";
  let description = [{
    What is left is the transitive reduction of the order: without any one wait some two accesses that conflict would not
    be ordered.
  }];
}
def AllocateArena : PlanPass<"allocate-arena"> {
  let summary = "gives every buffer its offset in the arena of its space";
  let description = [{
    Two buffers share bytes only if every access to one happens before every access to the other, in this step and into
    the next. Largest first, at the lowest offset that is free. The evaluation's buffers are laid out by themselves, over
    the step's: the two never run together.
  }];
}

#endif
