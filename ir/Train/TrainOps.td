// Operations of the `train` dialect. Order: structure, elementwise, shape, reduction and products, composites, ranks.
#ifndef SHEAF_TRAIN_OPS
#define SHEAF_TRAIN_OPS

include "ir/Train/ElementwiseOps.td"
include "ir/Train/TrainBase.td"

//===--------------------------------------------------------------------------------------------------------------===//
// Structure: parameters, optimizer, the step's effects
//===--------------------------------------------------------------------------------------------------------------===//

def Train_ParameterOp : Train_Op<"parameter", [Symbol]> {
  let summary = "a parameter of the model";
  let description = [{
    Declares a parameter of the given tensor type. `trainable` decides whether the optimizer updates it. Initial bytes:
    `source` (in a file), or `value` (computed at import), or neither (a graph without weights names a missing file).
    `permutation`: the parameter holds the named tensor transposed so, dimension i being the named tensor's
    permutation[i] (folded exports); files always hold the named layout.

    ```mlir
    train.parameter @"fc1.weight" : tensor<256x64xf32> {trainable = true, source = #train.source<"mlp.onnx", 120, 65536>}
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<Train_Tensor>:$type, BoolAttr:$trainable,
      OptionalAttr<Train_SourceAttr>:$source, OptionalAttr<ElementsAttr>:$value,
      OptionalAttr<DenseI64ArrayAttr>:$permutation);
  let assemblyFormat = "$sym_name `:` $type attr-dict";
}

def Train_ReadOp : Train_Op<"read", [Pure]> {
  let summary = "the value of a parameter at the start of the step";
  let arguments = (ins FlatSymbolRefAttr:$parameter);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

def Train_ScalarArrayAttr : TypedArrayAttrBase<Train_ScalarAttr, "step scalars">;

def Train_OptimizerOp : Train_Op<"optimizer", [Symbol, IsolatedFromAbove]> {
  let summary = "an elementwise update rule";
  let description = [{
    The update of one element, as ops on `tensor<f32>` in a region with arguments (parameter, gradient, states...,
    scalars...) that yields (parameter, states...). `states` names the optimizer state kept per element; every state
    starts at zero. `scalars` lists the step scalars, `#train.scalar<KIND, v>`: numbers that the runtime computes for
    every step in f64 and rounds to f32. The kinds, with the learning rate lr and the 1-based number t of the update:
    `constant` v, `lr_times` lr*v, `one_minus_lr_times` 1-lr*v, `lr_over_bias_correction` lr/(1-v^t),
    `bias_correction` 1-v^t, `sqrt_bias_correction` sqrt(1-v^t), `step` t, `first_step` (1 if t is 1, else 0),
    `clip_scale` (1 or max_norm/(norm+1e-6), divided by the loss scale if the loss is multiplied by one), `finite` (1 if
    the gradient norm is finite, else 0). With a loss scale t counts the updates that were not skipped.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, StrArrayAttr:$states, Train_ScalarArrayAttr:$scalars);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `states` $states `scalars` $scalars attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Train_YieldOp : Train_Op<"yield", [Pure, Terminator]> {
  let summary = "ends the region of an optimizer or a fusion";
  let arguments = (ins Variadic<AnyType>:$values);
  let builders = [OpBuilder<(ins), [{ (void)$_state; }]>];
  let assemblyFormat = "($values^ `:` type($values))? attr-dict";
}

def Train_UpdateOp : Train_Op<"update"> {
  let summary = "gives a parameter its gradient, summed over all ranks, to be applied by an optimizer";
  let description = [{
    `gradient` is this rank's share: the gradient of the global batch is the sum over ranks. Every trainable parameter
    has exactly one update.
  }];
  let arguments = (ins FlatSymbolRefAttr:$parameter, FlatSymbolRefAttr:$optimizer, Train_FloatTensor:$gradient);
  let assemblyFormat = "$parameter `by` $optimizer `,` $gradient attr-dict `:` type($gradient)";
}

def Train_LossOp : Train_Op<"loss"> {
  let summary = "the step's loss: this rank's share, whose sum over all ranks is the global loss";
  let arguments = (ins Train_FloatTensor:$value);
  let assemblyFormat = "$value attr-dict `:` type($value)";
}

def Train_LossScaleOp : Train_Op<"loss_scale", [Pure]> {
  let summary = "what this step multiplies the loss by: the gradient that the backward pass starts from";
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def Train_ConstantOp : Train_PureOp<"constant", [ConstantLike, Infer]> {
  let summary = "a constant tensor";
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "attr-dict $value";
  let hasFolder = 1;
}

//===--------------------------------------------------------------------------------------------------------------===//
// Elementwise, written out by train-decompose; the others are in ElementwiseOps.td
//===--------------------------------------------------------------------------------------------------------------===//

def Train_GeluOp : Train_DiffOp<"gelu", [Elementwise, SameOperandsAndResultType]> {
  let summary = "Gaussian error linear unit, by erf, or by tanh where `approximate`";
  let arguments = (ins Train_FloatTensor:$operand, UnitAttr:$approximate);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
}

def Train_GeluGradOp : Train_PureOp<"gelu_grad", [Elementwise, SameOperandsAndResultType]> {
  let summary = "the gradient times the derivative of a GELU at its operand";
  let arguments = (ins Train_FloatTensor:$operand, Train_FloatTensor:$gradient, UnitAttr:$approximate);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand `,` $gradient attr-dict `:` type($result)";
}

def Train_IotaOp : Train_PureOp<"iota"> {
  let summary = "the element's own index along `axis`";
  let arguments = (ins I64Attr:$axis);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$axis attr-dict `:` type($result)";
}

//===--------------------------------------------------------------------------------------------------------------===//
// Shape
//===--------------------------------------------------------------------------------------------------------------===//

def Train_ReshapeOp : Train_DiffOp<"reshape"> {
  let summary = "same elements in row-major order under another shape";
  let arguments = (ins Train_Tensor:$operand);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}
def Train_BroadcastOp : Train_DiffOp<"broadcast"> {
  let summary = "repeats size-1 dimensions; the rank stays";
  let arguments = (ins Train_Tensor:$operand);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}
def Train_TransposeOp : Train_DiffOp<"transpose", [Infer]> {
  let summary = "result dimension i is the operand's dimension permutation[i]";
  let arguments = (ins Train_Tensor:$operand, DenseI64ArrayAttr:$permutation);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand $permutation attr-dict `:` type($operand) `->` type($result)";
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}
def Train_SliceOp : Train_DiffOp<"slice", [Infer]> {
  let summary = "element i of a dimension is the operand's start + i * step, `sizes` of them; steps may be negative";
  let arguments = (ins Train_Tensor:$operand, DenseI64ArrayAttr:$starts, DenseI64ArrayAttr:$sizes, DenseI64ArrayAttr:$steps);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand `starts` $starts `sizes` $sizes `steps` $steps attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}
def Train_PadOp : Train_DiffOp<"pad", [Infer]> {
  let summary = "zeros around and between elements: the adjoint of slice";
  let description = [{ Size of a dimension: low + (n - 1) * (interior + 1) + 1 + high. }];
  let arguments = (ins Train_Tensor:$operand, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high, DenseI64ArrayAttr:$interior);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand `low` $low `high` $high `interior` $interior attr-dict `:` type($operand) `->` type($result)";
}
def Train_ReverseOp : Train_DiffOp<"reverse", [SameOperandsAndResultType]> {
  let summary = "reverses the order of the elements along the axes";
  let arguments = (ins Train_Tensor:$operand, DenseI64ArrayAttr:$axes);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand $axes attr-dict `:` type($result)";
}
def Train_ConcatOp : Train_DiffOp<"concat", [Infer]> {
  let summary = "operands one after the other along `axis`";
  let arguments = (ins Variadic<Train_Tensor>:$operands, I64Attr:$axis);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operands `axis` $axis attr-dict `:` functional-type($operands, $result)";
  let hasCanonicalizer = 1;
}

//===--------------------------------------------------------------------------------------------------------------===//
// Reduction, products, indexing
//===--------------------------------------------------------------------------------------------------------------===//

def Train_ReduceOp : Train_DiffOp<"reduce", [Infer]> {
  let summary = "reduces `axes`, which stay as size 1; a maximum's gradient is shared among ties";
  let description = [{
    `first`: of a maximum or minimum along one axis the first element has the whole gradient.

    With several `leaves` the first dimension larger than 1, which must be summed, is as many equal parts, and the result
    has one more dimension in front: the sums of each part.
  }];
  let arguments = (ins Train_ReduceKindAttr:$kind, Train_Tensor:$operand, DenseI64ArrayAttr:$axes,
      DefaultValuedAttr<I64Attr, "1">:$leaves, UnitAttr:$first);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$kind $operand $axes attr-dict `:` type($operand) `->` type($result)";
}
def Train_CumSumOp : Train_DiffOp<"cumsum", [SameOperandsAndResultType]> {
  let summary = "running sum along `axis`";
  let arguments = (ins Train_Tensor:$operand, I64Attr:$axis, UnitAttr:$exclusive, UnitAttr:$reverse);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand `axis` $axis attr-dict `:` type($result)";
}
def Train_MatMulOp : Train_DiffOp<"matmul", [Infer]> {
  let summary = "matrix product, accumulated in f32 (f64 for f64)";
  let description = [{
    Both operands have rank 2 ([M,K] x [K,N]) or rank 3 with equal leading dimension ([B,M,K] x [B,K,N]).
    `transpose_a`: the first is stored [.., K, M]; `transpose_b`: the second is stored [.., N, K].
  }];
  let arguments = (ins Train_FloatTensor:$lhs, Train_FloatTensor:$rhs, UnitAttr:$transpose_a, UnitAttr:$transpose_b);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)";
}
def Train_MatMulEpilogueOp : Train_PureOp<"matmul_epilogue", [Infer]> {
  let summary = "a matrix product and what its library function does besides: bias, GELU, sums";
  let description = [{
    c = op(lhs) op(rhs), rank 2, [M,K] x [K,N], as in `train.matmul`, and by `epilogue`:

    - `bias`: the result is c + `side`, a vector [N];
    - `gelu`, `bias_gelu`: the result is the tanh form of GELU of c, or of c + `side` [N]; `also` [M,N] is what it was
      applied to, which the backward pass reads;
    - `gelu_grad`: the result is c times the derivative of that GELU at `side` [M,N];
    - `sum_lhs`, `sum_rhs`: the result is c; `also` [M] or [N] is the sum of op(lhs) or op(rhs) over K, where they are
      stored with K first: the gradient of a bias together with that of its weight.

    A library may apply the epilogue to the product before it rounds it.
  }];
  let arguments = (ins Train_MatMulEpilogueAttr:$epilogue, Train_FloatTensor:$lhs, Train_FloatTensor:$rhs,
      Optional<Train_FloatTensor>:$side, UnitAttr:$transpose_a, UnitAttr:$transpose_b);
  let results = (outs Train_FloatTensor:$result, Optional<Train_FloatTensor>:$also);
  let assemblyFormat = "$epilogue $lhs `,` $rhs (`side` $side^)? attr-dict `:` functional-type(operands, results)";
}
def Train_GatherOp : Train_DiffOp<"gather", [Infer]> {
  let summary = "ONNX Gather: replaces dimension `axis` of the data by the shape of the indices";
  let description = [{
    Indices may be negative (from the end); one outside [-n, n) is an error at run time. With axis 0 on a matrix this is
    an embedding.
  }];
  let arguments = (ins Train_Tensor:$data, Train_IndexTensor:$indices, I64Attr:$axis);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$data `[` $indices `]` `axis` $axis attr-dict `:` type($data) `,` type($indices) `->` type($result)";
}
def Train_ScatterAddOp : Train_DiffOp<"scatter_add"> {
  let summary = "the adjoint of gather: adds each slice of the update to the slice of a zero tensor that its index names";
  let description = [{ The order of summation is that of the indices: deterministic. }];
  let arguments = (ins Train_FloatTensor:$update, Train_IndexTensor:$indices, I64Attr:$axis);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$update `[` $indices `]` `axis` $axis attr-dict `:` type($update) `,` type($indices) `->` type($result)";
}

def Train_GatherElementsOp : Train_DiffOp<"gather_elements", [Infer]> {
  let summary = "ONNX GatherElements: result[.., j, ..] = data[.., indices[.., j, ..], ..] along `axis`";
  let description = [{
    The indices have the data's rank. Before the axis their dimensions are the data's, or all 1: then all entries use the
    same indices. The same goes for the dimensions after it. Negative indices count from the end; one outside [-n, n) is an
    error at run time.
  }];
  let arguments = (ins Train_Tensor:$data, Train_IndexTensor:$indices, I64Attr:$axis);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$data `[` $indices `]` `axis` $axis attr-dict `:` type($data) `,` type($indices) `->` type($result)";
}
def Train_ScatterOp : Train_DiffOp<"scatter"> {
  let summary = "ONNX ScatterElements: result[.., indices[.., j, ..], ..] is combined with update[.., j, ..] along `axis`";
  let description = [{
    The result starts as the data, or as zeros without data, and takes the updates of an element in the order of j:
    where `replace` meets an element several times, the last update stays, and floating-point sums have one order.
    `replace` and `add` may do without data. Indices are as in `train.gather_elements`; the update has the result's shape
    but along the axis.

    Of the updates that replace an element only the last has a gradient. A minimum's or maximum's gradient is shared among
    ties, the data included.
  }];
  let arguments = (ins Train_ScatterKindAttr:$kind, Train_IndexTensor:$indices, Train_Tensor:$update,
      Optional<Train_Tensor>:$data, I64Attr:$axis);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$kind $update `[` $indices `]` (`into` $data^)? `axis` $axis attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
}
def Train_TopKOp : Train_PureOp<"top_k", [Infer]> {
  let summary = "the indices of the `k` largest (else smallest) elements along `axis`, in their order";
  let description = [{
    Among equal elements the lower index comes first; zeros of both signs are equal; a NaN is greater than any number,
    as in PyTorch. The elements themselves, with their gradient, are those that `train.gather_elements` finds there.
  }];
  let arguments = (ins Train_NumberTensor:$operand, I64Attr:$axis, I64Attr:$k, UnitAttr:$largest);
  let results = (outs Train_IndexTensor:$result);
  let assemblyFormat = "$operand `axis` $axis `k` $k attr-dict `:` type($operand) `->` type($result)";
}

//===--------------------------------------------------------------------------------------------------------------===//
// Composites: ops that deserve their own gradient and kernel
//===--------------------------------------------------------------------------------------------------------------===//

def Train_SoftmaxOp : Train_DiffOp<"softmax", [SameOperandsAndResultType]> {
  let summary = "softmax over the last dimension";
  let arguments = (ins Train_FloatTensor:$operand);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
}
def Train_LogSoftmaxOp : Train_DiffOp<"log_softmax", [SameOperandsAndResultType]> {
  let summary = "logarithm of the softmax over the last dimension";
  let arguments = (ins Train_FloatTensor:$operand);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
}
def Train_LayerNormOp : Train_DiffOp<"layer_norm", [AllTypesMatch<["operand", "result"]>]> {
  let summary = "(x - mean) / sqrt(variance + epsilon) * scale + bias over the last dimension";
  let arguments = (ins Train_FloatTensor:$operand, Train_FloatTensor:$scale, Optional<Train_FloatTensor>:$bias, F64Attr:$epsilon);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand `,` $scale (`,` $bias^)? `epsilon` $epsilon attr-dict `:` functional-type(operands, $result)";
}
def Train_RmsNormOp : Train_DiffOp<"rms_norm", [AllTypesMatch<["operand", "result"]>]> {
  let summary = "x / sqrt(mean(x^2) + epsilon) * scale over the last dimension";
  let arguments = (ins Train_FloatTensor:$operand, Train_FloatTensor:$scale, F64Attr:$epsilon);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand `,` $scale `epsilon` $epsilon attr-dict `:` functional-type(operands, $result)";
}
def Train_AttentionOp : Train_DiffOp<"attention", [Infer]> {
  let summary = "softmax(scale * Q K^T + mask) V, never materialising the scores";
  let description = [{
    query [B, S, H, D], key [B, T, G, D], value [B, T, G, E]; G divides H and head h reads key/value head h / (H/G)
    (grouped-query attention). `causal`: query i sees keys j <= i + T - S, and with `window` only the
    last `window` of these, j > i + T - S - window. `mask`: additive, float [b, h, S, T] with
    b in {1, B}, h in {1, H}; it has no gradient. Results: [B, S, H, E] and each row's log-sum-exp [B, H, S] in f32.
    If the largest mask value among the keys that a row sees is finite and at most -1000, the log-sum-exp is that of
    the scores minus this value. A row that sees nothing gives zero.
  }];
  let arguments = (ins Train_FloatTensor:$query, Train_FloatTensor:$key, Train_FloatTensor:$value,
      Optional<Train_FloatTensor>:$mask, F64Attr:$scale, UnitAttr:$causal, OptionalAttr<I64Attr>:$window);
  let results = (outs Train_FloatTensor:$result, Train_FloatTensor:$log_sum_exp);
  let assemblyFormat = "$query `,` $key `,` $value (`mask` $mask^)? `scale` $scale attr-dict `:` functional-type(operands, results)";
}
def Train_AttentionGradOp : Train_PureOp<"attention_grad", [Infer]> {
  let summary = "gradients of query, key and value of an attention";
  let arguments = (ins Train_FloatTensor:$query, Train_FloatTensor:$key, Train_FloatTensor:$value,
      Train_FloatTensor:$result, Train_FloatTensor:$log_sum_exp, Train_FloatTensor:$gradient,
      Optional<Train_FloatTensor>:$mask, F64Attr:$scale, UnitAttr:$causal, OptionalAttr<I64Attr>:$window);
  let results = (outs Train_FloatTensor:$query_gradient, Train_FloatTensor:$key_gradient, Train_FloatTensor:$value_gradient);
  let assemblyFormat = [{ $query `,` $key `,` $value `,` $result `,` $log_sum_exp `,` $gradient (`mask` $mask^)?
      `scale` $scale attr-dict `:` functional-type(operands, results) }];
}
def Train_CrossEntropyOp : Train_DiffOp<"cross_entropy", [Infer]> {
  let summary = "per-row negative log-likelihood of labels under softmax(logits)";
  let description = [{
    logits [R, C], labels [R, 1] integers. Results: the loss [R, 1] (0 where the label is `ignore_index`) and the logarithm
    [R, 1] of the row's sum of e^(logit - maximum). A mean over the rows is written with reduce and div.
  }];
  let arguments = (ins Train_FloatTensor:$logits, Train_IndexTensor:$labels, OptionalAttr<I64Attr>:$ignore_index);
  let results = (outs Train_FloatTensor:$loss, Train_FloatTensor:$log_sum);
  let assemblyFormat = "$logits `,` $labels attr-dict `:` functional-type(operands, results)";
}
def Train_DropoutOp : Train_DiffOp<"dropout", [SameOperandsAndResultType]> {
  let summary = "zeroes elements with probability `ratio` and scales the others by 1 / (1 - ratio)";
  let description = [{
    The mask is a function of (seed, step, `node`, global element index) alone (Philox 4x32-10), so the gradient is the
    same op on the gradient, and any number of ranks draws the same mask for the same row.

    `blocks` says where a leaf's elements lie: the global value is [blocks, leaves, elements of a leaf / blocks]. 0: every
    leaf has all of it. It is 1 where the rows come first.
  }];
  let arguments = (ins Train_FloatTensor:$operand, F64Attr:$ratio, I64Attr:$node,
      DefaultValuedAttr<ConfinedAttr<I64Attr, [IntNonNegative]>, "1">:$blocks);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand `ratio` $ratio `node` $node attr-dict `:` type($result)";
  let hasVerifier = 1;
}
def Train_RandomUniformOp : Train_PureOp<"random_uniform"> {
  let summary = "uniform random numbers in (0, 1): odd multiples of 2^-24";
  let description = [{
    Of the operand only the shape counts, and which of its rows are this rank's. As in `train.dropout`, an element is a
    function of (seed, step, `node`, global element index): the upper 23 bits w of its word give (w + 1/2) / 2^23.
    `blocks` as there.
  }];
  let arguments = (ins Train_Tensor:$like, I64Attr:$node,
      DefaultValuedAttr<ConfinedAttr<I64Attr, [IntNonNegative]>, "1">:$blocks);
  let results = (outs StaticShapeTensorOf<[F32]>:$result);
  let assemblyFormat = "`like` $like `node` $node attr-dict `:` type($like) `->` type($result)";
  let hasVerifier = 1;
}
def Train_ConvOp : Train_DiffOp<"conv", [Infer]> {
  let summary = "2-D convolution, NCHW or NHWC";
  let description = [{
    input [N, C, H, W], filter [O, C/groups, KH, KW]; pads [top, left, bottom, right]. A bias is a separate add; 1-D
    convolutions are reshaped to height 1. `channels_last`: input and result are [N, H, W, C]; the filter stays as it is.
    The gradients and poolings below have the same attribute; `train-channels-last` sets it.
  }];
  let arguments = (ins Train_FloatTensor:$input, Train_FloatTensor:$filter, DenseI64ArrayAttr:$strides,
      DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations, I64Attr:$groups, UnitAttr:$channels_last);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$input `,` $filter attr-dict `:` functional-type(operands, $result)";
}
def Train_ConvGradInputOp : Train_DiffOp<"conv_grad_input"> {
  let summary = "gradient of a convolution's input (the result's type is the input's); a transposed convolution";
  let arguments = (ins Train_FloatTensor:$gradient, Train_FloatTensor:$filter, DenseI64ArrayAttr:$strides,
      DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations, I64Attr:$groups, UnitAttr:$channels_last);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$gradient `,` $filter attr-dict `:` functional-type(operands, $result)";
}
def Train_ConvGradFilterOp : Train_PureOp<"conv_grad_filter"> {
  let summary = "gradient of a convolution's filter (the result's type is the filter's)";
  let arguments = (ins Train_FloatTensor:$input, Train_FloatTensor:$gradient, DenseI64ArrayAttr:$strides,
      DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations, I64Attr:$groups, UnitAttr:$channels_last);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$input `,` $gradient attr-dict `:` functional-type(operands, $result)";
}
def Train_MaxPoolOp : Train_DiffOp<"max_pool", [Infer]> {
  let summary = "2-D max pooling, NCHW or NHWC; padding is minus infinity";
  let arguments = (ins Train_FloatTensor:$input, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
      DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations, UnitAttr:$ceil_mode, UnitAttr:$channels_last);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, $result)";
}
def Train_MaxPoolIndicesOp : Train_PureOp<"max_pool_indices", [Infer]> {
  let summary = "where each window's first maximum is: row * W + column; -1 for a window that lies in the padding";
  let arguments = (ins Train_FloatTensor:$input, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
      DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations, UnitAttr:$ceil_mode, UnitAttr:$channels_last);
  let results = (outs Train_IndexTensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type(operands, $result)";
}
def Train_MaxPoolGradOp : Train_PureOp<"max_pool_grad", [AllTypesMatch<["input", "result"]>]> {
  let summary = "gradient of max pooling: to the first maximum of each window, as PyTorch does";
  let arguments = (ins Train_FloatTensor:$input, Train_FloatTensor:$gradient, DenseI64ArrayAttr:$kernel,
      DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations, UnitAttr:$ceil_mode,
      UnitAttr:$channels_last);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$input `,` $gradient attr-dict `:` functional-type(operands, $result)";
}

//===--------------------------------------------------------------------------------------------------------------===//
// Ranks and kernels
//===--------------------------------------------------------------------------------------------------------------===//

def Train_GlobalSumOp : Train_DiffOp<"global_sum", [SameOperandsAndResultType]> {
  let summary = "the sum over all ranks, in the order of a fixed tree, of a small tensor (counts, statistics)";
  let arguments = (ins Train_FloatTensor:$operand);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
}

def Train_GatherRowsOp : Train_DiffOp<"gather_rows"> {
  let summary = "the values of all leaves one after the other along dimension 0, the same on all ranks";
  let description = [{
    operand [r, ...] of each leaf, result [leaves * r, ...]. `leaf`, of one element, is the number of this leaf: the
    gradient of the operand is rows [leaf * r, (leaf + 1) * r) of the sum over leaves of the result's gradient.
    train-decompose removes it, after differentiation. Where a rank computes several leaves, the operand holds theirs
    one after the other.
  }];
  let arguments = (ins Train_Tensor:$operand, Optional<Train_IndexTensor>:$leaf);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$operand (`leaf` $leaf^)? attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
}

def Train_FusionOp : Train_Op<"fusion", [Pure, IsolatedFromAbove, SingleBlockImplicitTerminator<"YieldOp">]> {
  let summary = "ops that become one kernel";
  let description = [{
    The region holds elementwise ops, broadcasts, reshapes that do not move the last dimension, row reductions (over the
    last dimension) and column reductions of an iteration space of `rows` x `columns`. The kernel is called on ranges of
    rows that are multiples of `block` (the last may be shorter).

    A column reduction crosses rows, so the fusion yields *partial* sums: a result of shape [ceil(rows / block), C],
    one row a block, which `train.sum_partials` then adds in order. So the bits do not depend on the number of threads.

    At least two rows make a block where there are partials. Partials of bf16 and f16 are f32; `train.sum_partials`
    narrows their sum. Between its ops a fusion computes 16-bit floats in f32: only `train.cast` and stores round.

    A fusion without reductions and `train.iota`, whose tensors all have n elements or one, is *flat*: its columns only cut
    the n elements into rows, the last of which may be shorter.

    `elementwise` lists the operands that are read only at the index being written: a result of the same type may take
    over their memory.

    `pitches` says how many elements lie in memory from one row to the next, for each operand and then each result; 0
    where rows follow each other. Bytes between rows have no meaning. A fusion with a pitch is not flat.
  }];
  let arguments = (ins Variadic<Train_Tensor>:$operands, I64Attr:$rows, I64Attr:$columns, I64Attr:$block,
      DenseI64ArrayAttr:$elementwise, OptionalAttr<DenseI64ArrayAttr>:$pitches);
  let results = (outs Variadic<Train_Tensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "`(` $operands `)` `rows` $rows `columns` $columns `block` $block attr-dict `:` functional-type($operands, $results) $body";
  let hasVerifier = 1;
}

def Train_SumPartialsOp : Train_PureOp<"sum_partials"> {
  let summary = "adds the rows of a fusion's partial column sums in order: [P, C] to any shape of C elements";
  let description = [{
    A result of L * C elements has sums of leaves: each P / L consecutive rows are added.
  }];
  let arguments = (ins Train_FloatTensor:$operand);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
}

#endif
