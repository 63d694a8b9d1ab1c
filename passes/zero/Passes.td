// Passes of the `zero` phase: one family for all stages.
#ifndef SHEAF_PASSES_ZERO
#define SHEAF_PASSES_ZERO

include "mlir/Pass/PassBase.td"

class ZeroPass<string name> : Pass<"zero-" # name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::sheaf::train::TrainDialect", "::sheaf::zero::ZeroDialect"];
}

def FormBuckets : ZeroPass<"form-buckets"> {
  let summary = "groups parameters, in order of first use, into flat padded buckets";
  let description = [{
    The layout does not depend on the stage: that is why all stages give the same bits. A bucket is closed when it has
    reached `bucket-bytes`; 0 means a sixteenth of all parameters, between `least-bytes` and 64 MiB.
  }];
  let options = [Option<"stage", "stage", "int64_t", "0", "ZeRO stage, 0 to 3; of the ranks of a node, if there are nodes">,
                 Option<"ranksPerNode", "ranks-per-node", "int64_t", "0", "Ranks of a node; 0: there are no nodes">,
                 Option<"networkStage", "network-stage", "int64_t", "-1",
                        "ZeRO stage of ranks of different nodes, at most `stage`; negative: `stage`">,
                 Option<"bucketBytes", "bucket-bytes", "int64_t", "0", "Size at which a bucket is closed">,
                 Option<"leastBytes", "least-bytes", "int64_t", "65536", "Least size that is chosen; at most 64 MiB">];
}
def GatherParameters : ZeroPass<"gather-parameters"> {
  let summary = "makes reads of parameters views into their bucket: replicated, or gathered before use at stage 3";
  let description = [{
    At stage 3 the uses of a bucket fall into *visits*: a gather before the first use of each, a release after the last.
    Two uses belong to one visit if at most two other buckets are used between them, so a bucket stays gathered where
    backward follows forward closely.
  }];
  let options = [
    Option<"keepPart", "keep-part", "double", "0", "Part of the buckets, those used last, that have one visit only">,
    Option<"keep", "keep", "std::string", "\"\"", "Regular expression: so have buckets with a parameter it matches">,
    Option<"secondaryPart", "secondary-part", "double", "0",
           "Part of the other buckets, those used last, of which the backward pass gathers what the first hop of the "
           "forward pass has left in the node">];
}
def ReduceGradients : ZeroPass<"reduce-gradients"> {
  let summary = "reduces each bucket's gradient over the ranks as soon as it is complete";
}
def PlaceUpdates : ZeroPass<"place-updates"> {
  let summary = "places the gradient norm and the updates, on the whole bucket or the shard";
  let description = [{
    An update follows its bucket's reduction, unless its optimizer reads the clip scale or `finite`: then all wait for
    the global norm.
  }];
}
def SplitMicroBatches : ZeroPass<"split-micro-batches"> {
  let summary = "cuts a step of several micro-batches into the functions that its turns run";
  let description = [{
    The step is that of one micro-batch; the module's `train.micro_batches` says how many there are: M = p 2^j with p odd.
    @accumulate0, @accumulate1, ... are copies without norm and updates. In each of p groups of 2^j micro-batches, after
    the m-th runs the one whose number is that of m's trailing ones, which adds as many levels of a binary counter to the
    micro-batch's gradients and keeps the sum. @step is the last micro-batch's: it adds all levels, and updates. With p > 1
    @accumulate<j> is of the last micro-batch of the first group, whose sum starts a chain, @accumulate<j+1> of that of each
    later group but the last one, which adds the group's sum to the chain, as @step does. So gradients are added up in the
    order of the tree that M times as many leaves on one rank have.

    A sum over the global batch in the forward pass, the count of labels, say, must be known before the first
    micro-batch: @count0, @count1, ... compute it from the inputs of all micro-batches, and frozen parameters.

    `each`: every micro-batch is reduced over the ranks and what is reduced is kept; `last`: each rank keeps whole
    gradients, which are reduced once for each group. Groups of one micro-batch are reduced after it in either case.
  }];
  let options = [Option<"reduce", "reduce", "std::string", "\"auto\"",
                        "When gradients are reduced: after each micro-batch, or once after the last; auto: each from "
                        "stage 2 on, where the numbers of ranks allow it">];
}
def OrderGatheredRows : ZeroPass<"order-gathered-rows"> {
  let summary = "puts rows that are gathered over several nodes into the order of the ranks";
  let description = [{
    The hops of a gather give the values of ranks with one local number side by side: [local, node, rows]. After each
    `train.gather_rows` this pass transposes them to [node, local, rows].
  }];
}
def VerifyStage : ZeroPass<"verify-stage"> {
  let summary = "checks that a stage holds no state that it must not hold and updates every parameter once";
}

#endif
