// The `plan` dialect: plan.proto as text. Each op is one message, each instruction one line.
#ifndef SHEAF_PLAN_OPS
#define SHEAF_PLAN_OPS

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def PlanDialect : Dialect {
  let name = "plan";
  let cppNamespace = "::sheaf::plan_ir";
  let description = [{
    What every rank executes: buffers of one arena in each space, streams, events, and lists of instructions. The text is the
    executable: `sheaf inspect --format text` prints it and `sheaf assemble` reads it back to the same bytes.

    An operand of an instruction is `ACCESS %buffer[OFFSET : BYTES]`, in bytes from the start of the buffer, with access
    `r`, `w` or `rw`; `+ rank * STRIDE` adds the rank's shard index times a stride to the address. Where ranks have
    nodes, `+ local * STRIDE` adds a multiple by the rank's number in its node, and `+ node * STRIDE` one by its node's.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
}

def Plan_BufferType : TypeDef<PlanDialect, "Buffer"> {
  let mnemonic = "buffer";
  let summary = "bytes of the arena";
}

// A value of one of plan.proto's enumerations, as the word that it has there. It prints a space before itself: `` in an
// op's format leaves out the op's own.
class Plan_Word<string enumeration, string text, string name = enumeration> : AttrDef<PlanDialect, name> {
  let summary = text;
  let parameters = (ins "::sheaf::plan::" # enumeration:$value);
  let assemblyFormat = "custom<Word>($value)";
  let returnType = "::sheaf::plan::" # enumeration;
  let convertFromStorage = "$_self.getValue()";
  let constBuilderCall = "::sheaf::plan_ir::" # name # "Attr::get($_builder.getContext(), $0)";
}
def Plan_ElementType : Plan_Word<"ElementType", "the type of elements in memory"> { let mnemonic = "element_type"; }
def Plan_BufferKind : Plan_Word<"BufferKind", "what a buffer's bytes count as"> { let mnemonic = "buffer_kind"; }
def Plan_Phase : Plan_Word<"Collective_Phase", "the part of the step", "Phase"> { let mnemonic = "phase"; }
def Plan_Space : Plan_Word<"Buffer_Space", "where a buffer's bytes lie", "Space"> { let mnemonic = "space"; }
def Plan_TransferKind : Plan_Word<"Transfer_Kind", "from which space to which", "TransferKind"> {
  let mnemonic = "transfer_kind";
}
def Plan_OutputKind : Plan_Word<"OutputKind", "what is handed to the host"> { let mnemonic = "output_kind"; }
def Plan_ScalarKind : Plan_Word<"StepScalar_Kind", "how a step scalar is computed", "ScalarKind"> {
  let mnemonic = "scalar_kind";
}
// Of the program's dictionary `training`.
def Plan_OnNan : Plan_Word<"Training_OnNan", "what a gradient norm that is not finite does", "OnNan"> {
  let mnemonic = "on_nan";
}
def Plan_ReduceOrder : Plan_Word<"Training_ReduceOrder", "the order of sums over GPUs", "ReduceOrder"> {
  let mnemonic = "reduce_order";
}

class Plan_Op<string mnemonic, list<Trait> traits = []> : Op<PlanDialect, mnemonic, traits>;

def Plan_ProgramOp : Plan_Op<"program", [NoTerminator, NoRegionArguments]> {
  let summary = "a whole plan; its attributes are the scalar fields of the message Plan";
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword $body";
}

def Plan_BufferOp : Plan_Op<"buffer", [DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "bytes [offset, offset + bytes) of the arena of its space, which is the device's if none is given";
  let arguments = (ins StrAttr:$name, Plan_BufferKind:$kind, I64Attr:$offset, I64Attr:$bytes, UnitAttr:$persistent,
      OptionalAttr<Plan_Space>:$space);
  let results = (outs Plan_BufferType:$result);
  let assemblyFormat = "$name `` $kind (`in` `` $space^)? `offset` $offset `bytes` $bytes (`persistent` $persistent^)? attr-dict";
}

def Plan_FileOp : Plan_Op<"file"> {
  let summary = "a file that initial weights or constants lie in";
  let arguments = (ins StrAttr:$path, I64Attr:$size, I64Attr:$hash);
  let assemblyFormat = "$path `size` $size `hash` $hash attr-dict";
}

def Plan_BucketOp : Plan_Op<"bucket"> {
  let summary = "a flat array of parameters and its optimizer states";
  let arguments = (ins StrAttr:$name, Plan_ElementType:$type, I64Attr:$elements, Plan_BufferType:$parameters,
      UnitAttr:$parameters_sharded, Variadic<Plan_BufferType>:$states, StrArrayAttr:$state_names, UnitAttr:$states_sharded,
      UnitAttr:$trainable, UnitAttr:$master, OptionalAttr<Plan_ElementType>:$gradient_type, DefaultValuedAttr<I64Attr, "0">:$group);
  let assemblyFormat = [{ $name `` $type `elements` $elements `parameters` $parameters (`sharded` $parameters_sharded^)?
      `states` `(` $states `)` $state_names (`states_sharded` $states_sharded^)? (`trainable` $trainable^)? (`master` $master^)?
      (`gradients` `` $gradient_type^)? (`group` $group^)? attr-dict }];
}

def Plan_ParameterOp : Plan_Op<"parameter"> {
  let summary = "a named tensor in a bucket, and where its initial bytes lie";
  let description = [{ `source`: file, offset, length, then the hash of each piece; empty if there are no initial bytes.
    `aliases`: other names that files of weights may have for it, since modules share it. }];
  let arguments = (ins StrAttr:$name, Plan_ElementType:$type, DenseI64ArrayAttr:$shape, DenseI64ArrayAttr:$permutation,
      UnitAttr:$trainable, I64Attr:$bucket, I64Attr:$offset, DenseI64ArrayAttr:$source, OptionalAttr<Plan_ElementType>:$source_type,
      OptionalAttr<StrArrayAttr>:$aliases);
  let assemblyFormat = [{ $name `` $type $shape (`trainable` $trainable^)? `bucket` $bucket `at` $offset
      `permutation` $permutation `source` $source (`as` `` $source_type^)?
      (`aliases` $aliases^)? attr-dict }];
}

def Plan_CopiedOp : Plan_Op<"copied"> {
  let summary = "a tensor of the model that is in no bucket and is saved as it is; `source` is that of a parameter";
  let description = [{ `constant`: the step has the model's values as a constant. }];
  let arguments = (ins StrAttr:$name, Plan_ElementType:$type, DenseI64ArrayAttr:$shape, DenseI64ArrayAttr:$permutation,
      UnitAttr:$constant, DenseI64ArrayAttr:$source, OptionalAttr<StrArrayAttr>:$aliases);
  let assemblyFormat = [{ $name `` $type $shape (`constant` $constant^)? `permutation` $permutation `source` $source
      (`aliases` $aliases^)? attr-dict }];
}

def Plan_ConstantOp : Plan_Op<"constant"> {
  let summary = "a buffer filled from a file before the first step; `source` is that of a parameter";
  let description = [{ Before emission the bytes stand in the attribute `value` and `source` is empty. }];
  let arguments = (ins Plan_BufferType:$buffer, DenseI64ArrayAttr:$source, OptionalAttr<ElementsAttr>:$value);
  let assemblyFormat = "$buffer `source` $source attr-dict";
}

def Plan_GenerationOp : Plan_Op<"generation"> {
  let summary = "two places in files for one state: a step reads the current one and writes the next one";
  let description = [{ They change roles with every `plan.persist`. }];
  let arguments = (ins Plan_BufferType:$current, Plan_BufferType:$next);
  let assemblyFormat = "$current `next` $next attr-dict";
}

def Plan_InputOp : Plan_Op<"input"> {
  let summary = "a data input: one rank's rows of one step";
  let description = [{
    `whole`: the same for all rows and ranks. `row_mask`: 1 for each row that counts, else 0. `row_index`: the rows'
    numbers in the batch. `classes`: labels in [0, classes), or `ignored`. `tokens`: a row has a label for each token;
    `perplexity`: theirs is exp(loss).
    `ids`: `classes` is the number of rows of a table that they select. `shifted`: labels that the graph shifts itself.
  }];
  let arguments = (ins StrAttr:$name, Plan_ElementType:$type, DenseI64ArrayAttr:$shape, UnitAttr:$whole, UnitAttr:$row_mask,
      UnitAttr:$row_index, OptionalAttr<I64Attr>:$classes, OptionalAttr<I64Attr>:$ignored, UnitAttr:$tokens, UnitAttr:$perplexity,
      UnitAttr:$ids, UnitAttr:$shifted);
  let assemblyFormat = [{ $name `` $type $shape (`whole` $whole^)? (`row_mask` $row_mask^)? (`row_index` $row_index^)?
      (`classes` $classes^)? (`ignored` $ignored^)? (`tokens` $tokens^)? (`perplexity` $perplexity^)?
      (`ids` $ids^)? (`shifted` $shifted^)? attr-dict }];
}

def Plan_OutputOp : Plan_Op<"output"> {
  let summary = "a tensor that the evaluation hands to the host";
  let description = [{ Dimension `axis` of one rank's shape holds `blocks` times its rows; 0 blocks: it has no rows. }];
  let arguments = (ins StrAttr:$name, Plan_ElementType:$type, DenseI64ArrayAttr:$shape, I64Attr:$axis, I64Attr:$blocks);
  let assemblyFormat = "$name `` $type $shape `axis` $axis `blocks` $blocks attr-dict";
}

def Plan_ScalarOp : Plan_Op<"scalar"> {
  let summary = "a step scalar; plan.proto's StepScalar says how each kind is computed";
  let arguments = (ins Plan_ScalarKind:$kind, F64Attr:$value, DefaultValuedAttr<I64Attr, "0">:$group);
  let assemblyFormat = "`` $kind $value (`group` $group^)? attr-dict";
}

def Plan_LossScaleOp : Plan_Op<"loss_scale"> {
  let summary = "the buffer with the state of the loss scale; the program's `training` has its rule";
  let arguments = (ins Plan_BufferType:$buffer);
  let assemblyFormat = "$buffer attr-dict";
}

def Plan_ImageOp : Plan_Op<"image"> {
  let summary = "all kernels, compiled for one target: the bytes as an escaped string";
  let description = [{ For each kernel, in order: on the CPU the offset of its code; on a GPU the thread blocks of its
    launch and the threads of each. `toolkit`: the CUDA version of the machine code for a GPU. }];
  let arguments = (ins StrAttr:$target, StrAttr:$cpu, StrArrayAttr:$features, DenseI64ArrayAttr:$offsets,
      DenseI64ArrayAttr:$grids, DenseI64ArrayAttr:$threads, StrAttr:$code, OptionalAttr<StrAttr>:$toolkit);
  let assemblyFormat = "$target $cpu $features `offsets` $offsets `grids` $grids `threads` $threads `code` $code attr-dict";
}

def Plan_KernelOp : Plan_Op<"kernel", [NoTerminator]> {
  let summary = "a kernel and the bytes it accesses of each operand";
  let description = [{ Before emission the region holds the `train.fusion` to compile; afterwards it is empty.
    `access`: what its code does with each operand, known once it is compiled. `in_place`: operands of one number other
    than 0 may have one address. `operations`: what it computes over all rows, in additions. `padding`: how many of the
    bytes lie between rows. `program`: a hash of the fusion, by which `dataflow` knows the kernel. `ops`: what it computes
    of one leaf, by which `sheaf same` knows it. }];
  let arguments = (ins StrAttr:$symbol, I64Attr:$rows, I64Attr:$block, DenseI64ArrayAttr:$operand_bytes,
      DenseI64ArrayAttr:$access, DenseI64ArrayAttr:$in_place, DefaultValuedAttr<I64Attr, "0">:$operations,
      DefaultValuedAttr<I64Attr, "0">:$padding, OptionalAttr<StrAttr>:$program, OptionalAttr<StrArrayAttr>:$ops);
  let regions = (region AnyRegion:$fusion);
  let assemblyFormat = "$symbol `rows` $rows `block` $block `bytes` $operand_bytes custom<KernelAccess>($access, $in_place) "
      "attr-dict-with-keyword ($fusion^)?";
}

def Plan_OriginOp : Plan_Op<"origin"> {
  let summary = "what the plan was compiled from: the leaves of the global batch, and the options that decide bits";
  let arguments = (ins I64Attr:$leaves, StrArrayAttr:$options);
  let assemblyFormat = "`leaves` $leaves $options attr-dict";
}

def Plan_OriginProgramOp : Plan_Op<"origin_program"> {
  let summary = "the program of one leaf that the step or the evaluation was compiled from, as a hash of each piece";
  let arguments = (ins StrAttr:$function, StrArrayAttr:$names, StrArrayAttr:$hashes);
  let assemblyFormat = "$function $names `hashes` $hashes attr-dict";
}

def Plan_DigestsOp : Plan_Op<"digests"> {
  let summary = "digests of the entries of a table, in order; see runtime/plan/Digests.h";
  let arguments = (ins StrAttr:$table, StrArrayAttr:$entries);
  let assemblyFormat = "$table $entries attr-dict";
}

class Plan_Section<string mnemonic, string text> : Plan_Op<mnemonic, [NoTerminator, NoRegionArguments]> {
  let summary = text;
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword custom<Section>($body)";
}
def Plan_PartOp : Plan_Op<"part", [NoTerminator, NoRegionArguments]> {
  let summary = "instructions of the micro-batches that the program's `turns` give it";
  let description = [{ `turns` are pairs of a part's index and a micro-batch: a step runs these parts in their order, and
    then the body. }];
  let arguments = (ins StrAttr:$name);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$name attr-dict-with-keyword custom<Section>($body)";
}
def Plan_PrologueOp : Plan_Section<"prologue", "instructions before the first step">;
def Plan_StepOp : Plan_Section<"body", "instructions of one step, or of its last micro-batch">;
def Plan_EpilogueOp : Plan_Section<"epilogue", "instructions after the last step; then the host may touch all state">;
def Plan_EvaluationOp : Plan_Section<"evaluation", "instructions of one batch of the evaluation, which changes no state">;

// An instruction: its stream, where it comes from, and its operands.
class Plan_Instruction<string mnemonic, dag more, string format> : Plan_Op<mnemonic> {
  let arguments = !con((ins I64Attr:$stream, StrAttr:$label, Variadic<Plan_BufferType>:$buffers,
      DenseI64ArrayAttr:$offsets, DenseI64ArrayAttr:$bytes, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$axes,
      DenseI64ArrayAttr:$access), more);
  let assemblyFormat = format # " `(` custom<Operands>($buffers, $offsets, $bytes, $strides, $axes, $access) `)` `stream` $stream $label attr-dict";
}

def Plan_LaunchOp : Plan_Instruction<"launch", (ins I64Attr:$kernel, I64Attr:$rows, I64Attr:$block,
    DefaultValuedAttr<I64Attr, "0">:$updates_bucket, UnitAttr:$on_host),
    "`kernel` $kernel (`on` `host` $on_host^)? `rows` $rows `block` $block"> {
  let summary = "runs a kernel over all its rows, on the device or on the host";
}
def Plan_CallOp : Plan_Instruction<"call", (ins StrAttr:$function, DictionaryAttr:$parameters,
    DefaultValuedAttr<I64Attr, "0">:$scratch_per_thread, DefaultValuedAttr<I64Attr, "0">:$device_scratch), "$function $parameters"> {
  let summary = "calls a library function; `sheaf calls` lists them with their operands and attributes";
}
class Plan_Collective<string mnemonic, string text> : Plan_Instruction<mnemonic, (ins I64Attr:$communicator, Plan_ElementType:$type,
    I64Attr:$count, StrAttr:$bucket, Plan_Phase:$phase), "$bucket `` $phase `` $type `count` $count `communicator` $communicator"> {
  let summary = text;
}
def Plan_AllGatherOp : Plan_Collective<"all_gather", "operand 0: count elements; operand 1: ranks * count">;
def Plan_ReduceScatterOp : Plan_Collective<"reduce_scatter", "operand 0: ranks * count elements; operand 1: count">;
def Plan_AllReduceOp : Plan_Collective<"all_reduce", "operands 0 and 1: count elements">;

def Plan_TransferOp : Plan_Instruction<"transfer", (ins Plan_TransferKind:$kind), "`` $kind"> {
  let summary = "moves bytes of operand 0 to the same place of operand 1, a buffer of the same size in another space";
}

def Plan_PersistOp : Plan_Instruction<"persist", (ins DefaultValuedAttr<I64Attr, "0">:$communicator),
    "(`communicator` $communicator^)?"> {
  let summary = "makes what was written to files durable, on all ranks; then the next generations are the current ones";
}

def Plan_RecordOp : Plan_Op<"record"> {
  let summary = "marks the point its stream has reached";
  let arguments = (ins I64Attr:$event, I64Attr:$stream, StrAttr:$label);
  let assemblyFormat = "$event `stream` $stream $label attr-dict";
}
def Plan_WaitOp : Plan_Op<"wait"> {
  let summary = "its stream goes on when the event's latest record before this point is reached";
  let arguments = (ins I64Attr:$event, I64Attr:$stream, StrAttr:$label);
  let assemblyFormat = "$event `stream` $stream $label attr-dict";
}
def Plan_ReadInputOp : Plan_Instruction<"read_input", (ins I64Attr:$input), "$input"> {
  let summary = "writes this rank's rows of an input of this step";
}
def Plan_ReadScalarsOp : Plan_Instruction<"read_scalars", (ins), ""> {
  let summary = "writes the step scalars, f32, in order";
}
def Plan_WriteOutputOp : Plan_Instruction<"write_output", (ins Plan_OutputKind:$output, DefaultValuedAttr<I64Attr, "0">:$tensor),
    "`` $output (`tensor` $tensor^)?"> {
  let summary = "hands a scalar (`gradient_norm` f64, others f32) or `tensor` of the outputs to the host";
}

#endif
