// The `zero` dialect: sharded state and the collectives on it (ZeRO, arXiv:1910.02054).
#ifndef SHEAF_ZERO_OPS
#define SHEAF_ZERO_OPS

include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "ir/Train/TrainBase.td"

def ZeroDialect : Dialect {
  let name = "zero";
  let cppNamespace = "::sheaf::zero";
  let description = [{
    Parameters live in *buckets*: flat, padded arrays of which each rank owns 1/N. The stage decides only where the
    operations of this dialect stand:

    | stage | parameters | gradient of a bucket | update | afterwards |
    |---|---|---|---|---|
    | 0 | `zero.parameters` | `zero.all_reduce` | whole | |
    | 1 | `zero.parameters` | `zero.reduce_scatter whole` | shard | `zero.gather_updated` |
    | 2 | `zero.parameters` | `zero.reduce_scatter` | shard | `zero.gather_updated` |
    | 3 | `zero.all_gather` ... `zero.release` | `zero.reduce_scatter` | shard | |

    Where ranks have nodes (`zero.ranks_per_node`), this is the stage of the ranks of a node. `zero.network_stage`, at most as
    high, is that of ranks of different nodes: what it does not shard is divided by the ranks of a node alone. Then a shard is
    updated and parameters are held in larger parts at stage 3, and `zero.gather_updated` follows the update.

    Every sum runs over all ranks in the order of one fixed tree, so all stages give the same bits. A step of several micro-batches is cut into functions: `zero-split-micro-batches`. A module has the attribute `zero.stage` (i64) once buckets are formed.
  }];
  let dependentDialects = ["::sheaf::train::TrainDialect"];
}

class Zero_Op<string mnemonic, list<Trait> traits = []> : Op<ZeroDialect, mnemonic, traits>;

def Zero_BucketOp : Zero_Op<"bucket", [Symbol]> {
  let summary = "parameters that travel together";
  let description = [{
    `parameters[i]` starts at element `offsets[i]` (a multiple of 128 bytes) of a flat array of `elements` elements,
    which the number of ranks divides into shards that start at multiples of 128 bytes. A bucket never mixes element
    types, optimizers or trainability, so a shard boundary may fall anywhere.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttr:$element_type, FlatSymbolRefArrayAttr:$parameters,
      DenseI64ArrayAttr:$offsets, I64Attr:$elements, OptionalAttr<FlatSymbolRefAttr>:$optimizer);
  let assemblyFormat = "$sym_name $element_type `elements` $elements `parameters` $parameters `offsets` $offsets attr-dict";
}

def Zero_ParametersOp : Zero_Op<"parameters", [Pure]> {
  let summary = "the replicated parameters of a bucket (stages 0 to 2)";
  let arguments = (ins FlatSymbolRefAttr:$bucket);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket attr-dict `:` type($result)";
}

def Zero_AllGatherOp : Zero_Op<"all_gather"> {
  let summary = "the parameters of a bucket, gathered from the shards of all ranks (stage 3)";
  let description = [{
    Where ranks have nodes a rank first receives, over the network, the shards of the ranks with its number in the other
    nodes, and then those of its own node. `keep`: the result of the first hop, the secondary shard, is kept. `kept`: the
    gather begins from what one before with `keep` has kept.
  }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, Train_PhaseAttr:$phase, UnitAttr:$keep, UnitAttr:$kept);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket $phase (`keep` $keep^)? (`kept` $kept^)? attr-dict `:` type($result)";
}

def Zero_ReleaseOp : Zero_Op<"release"> {
  let summary = "the gathered parameters are not read after this point";
  let arguments = (ins Train_Tensor:$gathered);
  let assemblyFormat = "$gathered attr-dict `:` type($gathered)";
}

def Zero_ViewOp : Zero_Op<"view", [Pure]> {
  let summary = "a parameter inside its bucket: no copy";
  let arguments = (ins Train_Tensor:$bucket, I64Attr:$offset);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket `at` $offset attr-dict `:` type($bucket) `->` type($result)";
}

def Zero_AllReduceOp : Zero_Op<"all_reduce"> {
  let summary = "the gradients of a bucket's members, summed over ranks, whole on every rank (stage 0)";
  let description = [{ `gradients[i]` is the gradient of the bucket's i-th parameter; it is computed straight into place. }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, Variadic<Train_Tensor>:$gradients);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket `(` $gradients `)` attr-dict `:` functional-type($gradients, $result)";
}

def Zero_ReduceScatterOp : Zero_Op<"reduce_scatter"> {
  let summary = "the rank's shard of the gradients of a bucket's members, summed over ranks (stages 1 to 3)";
  let description = [{
    `whole`: the shard is reduced in place and the rank keeps the storage of the whole gradient (stage 1); otherwise the
    unreduced gradient is given up.
  }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, Variadic<Train_Tensor>:$gradients, UnitAttr:$whole);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket `(` $gradients `)` (`whole` $whole^)? attr-dict `:` functional-type($gradients, $result)";
}

def Zero_GradientOp : Zero_Op<"gradient", [Pure]> {
  let summary = "the gradients of a bucket's members, side by side as the bucket has them";
  let arguments = (ins FlatSymbolRefAttr:$bucket, Variadic<Train_Tensor>:$gradients);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket `(` $gradients `)` attr-dict `:` functional-type($gradients, $result)";
}

def Zero_AccumulateOp : Zero_Op<"accumulate", [AllTypesMatch<["value", "result"]>]> {
  let summary = "adds a micro-batch's value to those before it, in the order of the tree of all leaves";
  let description = [{
    The sum `sum` is a binary counter: level i is the sum of 2^i micro-batches. The result is
    level `level - 1` + (... + (level 0 + `value`)). With `keep` it is kept as level `level`; without, it is the step's.

    Of M = p 2^j micro-batches, p odd, the counter ends with each group of 2^j, and the groups' sums are added in their order.
    `start`: `value` is the first group's sum, and is kept as level `level`. `chain`: `value` is the next one's, and the
    result is level `level` + `value`, which `keep` keeps as that level. If `value` is a reduction over a number of ranks
    with an odd factor, its subtrees of ranks are added to level `level` one after the other, by the collective.
  }];
  let arguments = (ins StrAttr:$sum, I64Attr:$level, UnitAttr:$start, UnitAttr:$chain, UnitAttr:$keep,
                       Train_Tensor:$value);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$sum `level` $level (`start` $start^)? (`chain` $chain^)? (`keep` $keep^)? $value attr-dict `:` type($value)";
  let builders = [OpBuilder<(ins "::llvm::StringRef":$sum, "int64_t":$level, "bool":$keep, "::mlir::Value":$value),
      [{ build($_builder, $_state, value.getType(), sum, level, false, false, keep, value); }]>];
  let extraClassDeclaration = [{
    // True if the value is kept as it is, so that it may be computed in the level's place.
    bool storesValue() { return getKeep() && !getChain() && (getStart() || getLevel() == 0); }
  }];
}

def Zero_AccumulatedOp : Zero_Op<"accumulated", [Pure]> {
  let summary = "what level 0 of a sum has kept, for a part of the step that comes later";
  let arguments = (ins StrAttr:$sum);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$sum attr-dict `:` type($result)";
}

def Zero_SquareSumOp : Zero_Op<"square_sum", [Pure]> {
  let summary = "the sum of squares of the rank's shard of a reduced gradient, in f64 by fixed blocks";
  let arguments = (ins FlatSymbolRefAttr:$bucket, Train_Tensor:$gradient);
  let results = (outs Train_Tensor:$result);
  let assemblyFormat = "$bucket $gradient attr-dict `:` type($gradient) `->` type($result)";
}

def Zero_GradientNormOp : Zero_Op<"gradient_norm"> {
  let summary = "the global norm of all reduced gradients, with the scalars that depend on it";
  let description = [{
    The ranks' partial sums are exchanged and added over buckets, then ranks: the same way at every stage. `scalars` is
    [clip scale, finite]. `scaled`: the gradients are those of the loss times the loss scale, by which norm and clip scale
    are divided.
  }];
  let arguments = (ins Variadic<Train_Tensor>:$partials, UnitAttr:$clip, UnitAttr:$scaled);
  let results = (outs Train_Tensor:$norm, Train_Tensor:$scalars);
  let assemblyFormat = "$partials (`clip` $clip^)? (`scaled` $scaled^)? attr-dict `:` functional-type($partials, results)";
}

def Zero_UpdateOp : Zero_Op<"update"> {
  let summary = "applies the bucket's optimizer to the elements whose gradient is given: the whole bucket or the shard";
  let arguments = (ins FlatSymbolRefAttr:$bucket, Train_Tensor:$gradient, Optional<Train_Tensor>:$scalars);
  let assemblyFormat = "$bucket $gradient (`scalars` $scalars^ `:` type($scalars))? attr-dict `:` type($gradient)";
}

def Zero_GatherUpdatedOp : Zero_Op<"gather_updated"> {
  let summary = "gathers the other ranks' updated shards into the replicated parameters (stages 1 and 2)";
  let arguments = (ins FlatSymbolRefAttr:$bucket);
  let assemblyFormat = "$bucket attr-dict";
}

#endif
