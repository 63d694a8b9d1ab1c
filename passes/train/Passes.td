// Passes of the `import` and `train` phases and of `fuse`.
#ifndef SHEAF_PASSES_TRAIN
#define SHEAF_PASSES_TRAIN

include "mlir/Pass/PassBase.td"

class TrainPass<string name> : Pass<"train-" # name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::sheaf::train::TrainDialect"];
}

//===--- import: clean up what exporters write ---------------------------------------------------------------------===//

def FoldConstants : TrainPass<"fold-constants"> {
  let summary = "evaluates ops whose operands are all constant";
  let description = [{
    Uses the reference evaluator. Parameters are never constants. What repeats along a dimension is computed and stored
    once: a splat stays one element, and other repetitions become a `train.broadcast` of what they repeat. An op stays
    if folding it takes more than `max-bytes`: an operand or its result so stored, and what is computed at a time.
  }];
  let options = [Option<"maxBytes", "max-bytes", "int64_t", "8388608", "Largest constant to create">];
}
def LiftNormalization : TrainPass<"lift-normalization"> {
  let summary = "recognises layer norm and RMS norm written in elementwise ops";
  let description = [{
    (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean(x^2) + epsilon), over one or more trailing dimensions, with
    or without scale and bias, the operands of products and sums in any order, with reshapes, broadcasts and casts in
    between. Other users of a value in between keep it alive.
  }];
}
def LiftGelu : TrainPass<"lift-gelu"> {
  let summary = "recognises GELU in its erf and tanh forms";
  let description = [{
    x (1 + erf(x / sqrt 2)) / 2 and x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, however the products and the
    polynomial are associated.
  }];
}
def LiftAttention : TrainPass<"lift-attention"> {
  let summary = "recognises softmax attention with its scale, mask and grouped keys and values";
  let description = [{
    From the product of weights and values backwards: a guard against NaN, the softmax, masks that are added or select,
    scales anywhere, the product of queries and keys. All layouts become [B, S, H, D]: transposes around the attention
    cancel, through a rotary embedding too; keys and values that are repeated for several query heads are read as they
    were before. A mask of constants is evaluated: a causal one becomes the attribute, its sliding window another,
    one that hides nothing goes.
    Attention stays as written, and `train.decisions` says so, if its weights are dropped out, if what is added to its
    scores is trained, or if one mask operand cannot express how its masks hide all keys of a row.
  }];
}
def LiftCrossEntropy : TrainPass<"lift-cross-entropy"> {
  let summary = "recognises the negative log-likelihood of a log-softmax as cross entropy";
  let description = [{
    The label's column is picked by a one-hot select or product, or by a gather from the flattened log-probabilities,
    with or without a label to ignore. The sign, weights and the mean around it stay. Where labels outside of the
    classes give 0 and are not checked at run time, they become the label to ignore.
  }];
}

//===--- train: loss, backward, optimizer --------------------------------------------------------------------------===//

def WidenFloats : TrainPass<"widen-floats"> {
  let summary = "has the step compute in f32 where the graph says bf16 or f16";
  let description = [{
    Tensors of 16-bit floats become f32, and casts between the two go. Parameters keep the type of their initial bytes in
    the attribute `train.source_type`. What memory holds is decided by `train-set-precision`, for all models alike.
  }];
}
def Partition : TrainPass<"partition"> {
  let summary = "makes of the step of the global batch that of one leaf";
  let description = [{
    Data inputs have all rows of the batch, and get those of one of the `train.ranks` leaves. Values that are divided
    among leaves get a leaf's shape. If a leaf needs its own number, the pass adds the input `train.row_index`: the
    numbers of its rows. The step of a module with `train.one_row`, which the pass removes, is one leaf's already.

    Every op of the step is tried: it and the op that a leaf computes for it are evaluated at small sizes, and must agree
    as the partition claims. An op that cannot be tried, and one whose results would look the same under another claim,
    is named in `train.decisions`.
  }];
  let options = [
    Option<"check", "check", "bool", "true", "Try every op.">,
    Option<"fault", "fault", "int64_t", "-1",
           "Make a claim wrong before it is tried: a number that goes through all claims and what could stand for them, or "
           "-1. A remark says which claim it was.">
  ];
}
def ChannelsLast : TrainPass<"channels-last"> {
  let summary = "keeps images as [N, H, W, C] between convolutions";
  let description = [{
    For plans of CPUs: there convolutions and poolings are fastest with the channels last, and a batch norm's sums are
    over columns. Convolutions and poolings are always turned; elementwise ops, batch norms, reductions, concatenations,
    slices and padding are if their operands are already. What is in between is transposed; filters stay as they are.
    Runs before differentiation, so that gradients have the layout too.
  }];
}
def Differentiate : TrainPass<"differentiate"> {
  let summary = "appends the backward pass: one gradient per trainable parameter the loss depends on";
  let options = [
    Option<"scaled", "scaled", "bool", "false", "The gradients of the loss times `train.loss_scale`">];
}
def AddOptimizer : TrainPass<"add-optimizer"> {
  let summary = "declares the optimizer that the updates name";
  let description = [{
    An empty `optimizer` keeps the optimizers that came with the model, and is adamw where there are none. With a value,
    NAME is sgd, adam or adamw with PyTorch's formulas and defaults, or lion (Chen et al., 2023), and replaces the model's
    own. The initial learning rate becomes the module attribute `train.lr`, in f64.

    Each of `groups` changes hyperparameters of the parameters whose names match, the last match wins; `no-decay` takes the
    weight decay from parameters of rank 0 and 1 and from tables that are read only by `train.gather`, unless their group
    sets it. Every group has an optimizer of its own, and the module attribute `train.groups` lists them: name, optimizer,
    settings, and the learning rate if it has its own. The first, `default`, is of the parameters that no group matches.
  }];
  let options = [
    Option<"optimizer", "optimizer", "std::string", "\"\"", "NAME[:key=value,...] as on the command line">,
    ListOption<"groups", "groups", "std::string", "REGEX:key=value,... as on the command line">,
    Option<"noDecay", "no-decay", "bool", "false", "No weight decay for vectors and embeddings">,
    Option<"clip", "clip", "bool", "false", "Scale gradients by the clip scale">,
    Option<"skip", "skip", "bool", "false", "Leave the state as it was where the gradient norm is not finite">,
    Option<"scaled", "scaled", "bool", "false", "Divide gradients by the loss scale, and skip">];
}
def MergePads : TrainPass<"merge-pads"> {
  let summary = "writes a sum of zero-padded pieces that tile a tensor as a concatenation";
  let description = [{ The backward of a split: x + 0 is x, so no bit changes but the sign of a zero. }];
}
def FuseGemmEpilogues : TrainPass<"fuse-gemm-epilogues"> {
  let summary = "gives matrix products the epilogues of GPU libraries: bias, GELU, its gradient, bias gradients";
  let description = [{
    A bias and a GELU (in its tanh form) after a product become `train.matmul_epilogue`, and so does the gradient of
    that GELU. The gradient of a bias is summed together with that of its weight unless a fused kernel can sum it at no extra cost.
    Decided before kernels and precision are, since it changes where results are rounded; only plans that name a GPU
    have it, or those that ask for it.
  }];
}
def Decompose : TrainPass<"decompose"> {
  let summary = "rewrites norms, softmax, cross entropy and activations into elementwise ops and reductions";
}
def AssignFusions : TrainPass<"assign-fusions"> {
  let summary = "decides which ops become one kernel, and makes them neighbours";
  let description = [{
    Every grouped op gets the attribute `train.group`; members of a group stand next to each other. Decided from the
    train ops alone, so that neither stage nor schedule nor clipping changes a bit of the result.
  }];
}

def RecordOrigin : TrainPass<"record-origin"> {
  let summary = "records a hash of the program of one leaf, which everything that decides bits has been decided on";
  let description = [{
    The module gets `train.origin = {leaves, names, hashes}`: of each input, optimizer and parameter, and of the ops of each
    node in program order, the name and a hash. It covers ops, attributes, types, values used and the groups of kernels; not
    locations, and of a parameter not where its initial bytes lie. Plans of one origin compute the same bits, however
    their leaves are divided among ranks and micro-batches: `sheaf same` compares them.
  }];
}

def WidenLeaves : TrainPass<"widen-leaves"> {
  let summary = "makes the program of one leaf that of a rank with several";
  let description = [{
    A leaf is a fixed piece of the batch. The program comes with the shapes of one leaf and `train.ranks` as if each leaf
    were a rank; `train.widen_to` is the number of ranks, or of pieces where `train.micro_batches` says that a rank has several. What has rows gets those of all leaves of a rank.
    Products are computed leaf by leaf, sums over rows too, and the leaves' sums are added by a balanced binary tree: the
    same bits, however the leaves are divided among ranks. What is neither row by row nor such a sum is computed for each
    leaf by itself, and so is what follows from it. `train.leaves` is then the number of leaves of a rank.
  }];
  let options = [
    Option<"check", "check", "bool", "true", "Try every op that has the rows of all leaves, as train-partition does.">,
    Option<"fault", "fault", "int64_t", "-1", "As of train-partition.">
  ];
}
def Recompute : TrainPass<"recompute"> {
  let summary = "computes activations again in the backward pass instead of keeping them";
  let description = [{
    The forward pass is divided into segments where all later computation goes through one value, which is kept.
    `none` recomputes nothing; `kernels` what fused kernels make of matrix products and kept values; `all` everything
    within a segment. Whole groups are cloned, so that each value is rounded and stored as it was the first time and no bit of
    the result changes. A clone stands before the first use that the backward pass has for it.
  }];
  let options = [
    Option<"what", "what", "std::string", "\"none\"", "a word of Train_Recomputation">,
    Option<"every", "every", "int64_t", "2", "Kept values from one end of a segment to the next">,
    Option<"segments", "segments", "int64_t", "-1", "Segments that are recomputed, from the first on; negative: all">];
}
def SetPrecision : TrainPass<"set-precision"> {
  let summary = "decides what memory holds in bf16 or f16: parameters, activations, gradients";
  let description = [{
    Kernels compute in f32 whatever the precision. With `bf16`, a kernel widens what it loads and rounds once, to nearest
    even, what it stores; matrix products and attention take and give bf16. With `f16` the same in f16. Statistics of rows, sums on their way, the
    loss, constants, data inputs and what is computed from these alone stay f32, and so does what a function takes in f32
    only (convolution, pooling, dropout, running sums) and what reaches a sine, a cosine, a tangent or a running sum through
    elementwise ops and moves; products read rounded copies. Masks of few values that 16 bits hold exactly are narrowed.
    An evaluation narrows the parameters that the training step has narrowed (`train.held_type`). Parameters are narrowed, with the f32 of their files in `train.source_type`; f32 copies of
    those that are trained belong to the optimizer's state (`zero.bucket`). `reduce-precision` f32 widens gradients
    before they are summed over ranks. With `tf32` memory holds f32, and products and convolutions get `train.tf32`:
    tensor cores of GPUs may round their operands to TF32 (eight bits of exponent, ten of fraction).
  }];
  let options = [
    Option<"precision", "precision", "std::string", "\"f32\"", "a word of Train_Precision">,
    Option<"reducePrecision", "reduce-precision", "std::string", "\"\"", "of gradients under bf16 and f16: f32 or, as when empty, the same">];
}

//===--- fuse ------------------------------------------------------------------------------------------------------===//

def Fuse : TrainPass<"fuse"> {
  let summary = "outlines each group of `train-assign-fusions` into a `train.fusion`";
}

def PitchRows : TrainPass<"pitch-rows"> {
  let summary = "pads the rows of matrices whose rows would start anywhere";
  let description = [{
    Rows of 50,257 bf16 start at multiples of two bytes, for which there are neither fast matrix products nor vector
    loads. A matrix that comes from a product or a kernel and goes, also through reshapes that keep its rows, only into
    products and kernels gets the pitch of `runtime/plan/RowPitch.h`: products in the attribute `train.pitch` (of the
    result), kernels in `pitches`. Only memory is padded; no value changes. Parameters, inputs and whatever else reads
    or writes stay dense, and so does a matrix that may share its memory with one of these.

    ```mlir
    %y = train.matmul %x, %w : tensor<8x64xbf16>, tensor<64x5001xbf16> -> tensor<8x5001xbf16>
    %z = train.fusion(%y) rows 8 columns 5001 block 1 {elementwise = array<i64: 0>} : ... -> tensor<8x5001xbf16>
    %g = train.matmul %z, %w {transpose_b} : ...
    // becomes
    %y = train.matmul %x, %w {train.pitch = 5056 : i64} : ...
    %z = train.fusion(%y) rows 8 columns 5001 block 1 {..., pitches = array<i64: 5056, 5056>} : ...
    %g = train.matmul %z, %w {transpose_b} : ...
    ```
  }];
}

#endif
