// The rows of the table: what each statement of a plan's text consists of, and what it means.
#include "ir/Plan/TextTable.h"

namespace sheaf::plan_ir::text {

const Row kProgram = {
    "plan.program", "",
    "[attributes {version, producer, model, ranks, zero = $zero_stage, batch, max_threads, events, communicators, "
    "peak_bytes = $memory.peak_bytes, library_bytes = $memory.library_bytes, streams, "
    "[ranks_per_node, network_zero = $network_stage, communicator_axes:quoted], [micro_batches, dealing:quoted, "
    "turns:flat], decisions, [unneeded_inputs], [options], by_kind = $memory.by_kind, [spaces = $memory.spaces], "
    "[floor], [training]}]",
    "", "A whole plan. The other statements are in its braces"};

static constexpr Row kDeclarations[] = {
    {"plan.buffer", "buffers*", "$name $kind [in $space] offset $offset bytes $bytes [persistent]", "",
     "Bytes [offset, offset + bytes) of the arena of a space: the device's if none is given. `%name = ` before it "
     "gives the buffer the name that other statements use. `persistent`: keeps its contents from step to step"},
    {"plan.file", "files*", "$path size $size hash $hash:signed", "",
     "A file that has initial weights or constants, with the XXH64 of its first 64 KiB"},
    {"plan.bucket", "buckets*",
     "$name $type elements $elements parameters %parameter_buffer [sharded $parameters_sharded] states(%states.buffer) "
     "$states.name [states_sharded] [trainable] [master] [gradients $gradient_type] [group $group]",
     "", "A flat array of parameters, with its optimizer states. `master`: the first state is the master weights"},
    {"plan.parameter", "parameters*",
     "$name $type $shape [trainable] bucket $bucket at $offset permutation $permutation source $source:flat [as "
     "$source_type] [aliases $aliases]",
     "",
     "A named tensor in a bucket. `source`: file, offset and length of its initial bytes, then the hash of each piece; "
     "empty if there are none. `aliases`: other names that weight files may have for it"},
    {"plan.copied", "copied*",
     "$name $type $shape [constant] permutation $permutation source $source:flat [aliases $aliases]", "",
     "A tensor of the model that is in no bucket and is saved unchanged. `constant`: the step has its values as a "
     "constant"},
    {"plan.constant", "constants*", "%buffer source $source:flat", "",
     "A buffer that is filled from a file before the first step"},
    {"plan.generation", "generations*", "%current next %next", "",
     "Two places in files for the same state. A step reads the current one and writes the next one. `plan.persist` "
     "exchanges their roles"},
    {"plan.input", "inputs*",
     "$name $type $shape [whole] [row_mask] [row_index] [classes $classes] [ignored $ignored_label] [tokens] "
     "[perplexity] [ids] [shifted]",
     "",
     "A data input: the rows of one rank in one micro-batch. `whole`: the same for all rows and ranks. `row_mask`: 1 "
     "for each row that counts, else 0. `row_index`: the numbers of the rows in the batch. `classes`: labels lie in "
     "[0, classes) or are `ignored`. `tokens`: a row has a label for each token. `perplexity`: their perplexity is "
     "exp(loss). `ids`: `classes` is the number of rows of a table. `shifted`: the graph shifts the labels itself"},
    {"plan.output", "outputs*", "$name $type $shape axis $axis blocks $blocks", "",
     "A tensor that the evaluation passes to the host. Dimension `axis` of one rank's shape has `blocks` times its "
     "rows; with 0 blocks it has no rows"},
    {"plan.scalar", "scalars*", "$kind $value [group $group]", "",
     "A step scalar. The message StepScalar in plan.proto says how each kind is computed"},
    {"plan.loss_scale", "loss_scale_buffer", "%loss_scale_buffer", "",
     "The buffer that has the state of the loss scale. The rule is in `training` of the program"},
    {"plan.image", "images*",
     "$target $cpu $features offsets $entries.offset grids $entries.grid threads $entries.threads code $code "
     "[{[toolkit]}]",
     "",
     "All kernels, compiled for one target. For each kernel: on the CPU the offset of its code; on a GPU the thread "
     "blocks of its launch and the threads of each. `toolkit`: the CUDA version of the machine code"},
    {"plan.kernel", "kernels*",
     "$symbol rows $rows block $block bytes $operand_bytes [access $operand_access:access] [in_place $in_place] "
     "[attributes {[operations], [padding], [program:hex], [ops]}]",
     "",
     "A kernel, and the bytes that it accesses of each operand. `in_place`: operands with the same number other than 0 "
     "may have the same address. `operations`: additions over all rows. `padding`: bytes between rows. `program`: a "
     "hash of the fusion that it was compiled from. `ops`: the computation for one leaf"},
    {"plan.origin", "origin", "leaves $origin.leaves $origin.options", "",
     "What the plan was compiled from: the leaves of the global batch, and the options that decide bits"},
    {"plan.origin_program", "origin.step", "\"step\" $origin.step.name hashes $origin.step.hash:hex", "",
     "The program of one leaf that the step was compiled from, with a hash of each piece"},
    {"plan.origin_program", "origin.evaluation",
     "\"evaluation\" $origin.evaluation.name hashes $origin.evaluation.hash:hex", "", "The same of the evaluation"},
    {"plan.digests", "digests.?", "\"?\" $digests.?:hex", "",
     "The digests of the entries of a table, in order ([proof.md](proof.md#digests))"},
    {"plan.prologue", "", "", "prologue", "Instructions before the first step"},
    {"plan.part", "parts*", "$name", "instructions",
     "Instructions of the micro-batches that `turns` of the program gives it: pairs of a part's index and a "
     "micro-batch. A step runs these parts in this order, and then the body"},
    {"plan.body", "", "", "body", "Instructions of one step, or of its last micro-batch"},
    {"plan.epilogue", "", "", "epilogue", "Instructions after the last step. After them the host may access all state"},
    {"plan.evaluation", "evaluation", "", "evaluation",
     "Instructions of one batch of the evaluation, which changes no state"},
};

#define SHEAF_COLLECTIVE                                                                        \
  "$collective.bucket $collective.phase $collective.type count $collective.count communicator " \
  "$collective.communicator($operands:2) stream $stream $label"

static constexpr Row kInstructions[] = {
    {"plan.launch", "kernel",
     "kernel $kernel.kernel [on host $kernel.on_host] rows $kernel.rows block $kernel.block($operands) stream $stream "
     "$label [{[updates_bucket]}]",
     "",
     "Runs a kernel over all its rows, on the device or on the host. `updates_bucket`: 1 plus the index of the bucket "
     "that it updates"},
    {"plan.call", "call",
     "$call.function $call.attributes($operands) stream $stream $label [{[scratch_per_thread = "
     "$call.scratch_per_thread], [device_scratch = $call.device_scratch]}]",
     "", "Calls a library function. `sheaf calls` lists the functions, with their operands and attributes"},
    {"plan.all_gather", "collective=all_gather", SHEAF_COLLECTIVE, "",
     "Gathers the parts of all ranks. Operand 0: `count` elements; operand 1: ranks * count"},
    {"plan.reduce_scatter", "collective=reduce_scatter", SHEAF_COLLECTIVE, "",
     "Sums over ranks; each rank gets its part of the sum. Operand 0: ranks * count elements; operand 1: `count`"},
    {"plan.all_reduce", "collective=all_reduce", SHEAF_COLLECTIVE, "",
     "Sums over ranks. Operands 0 and 1: `count` elements"},
    {"plan.record", "record", "$record.event stream $stream $label", "", "Marks the point that its stream has reached"},
    {"plan.wait", "wait", "$wait.event stream $stream $label", "",
     "Makes its stream wait for the latest record of the event before this point"},
    {"plan.read_input", "input", "$input.input($operands:1) stream $stream $label", "",
     "Writes the rows of an input that this rank has in this step"},
    {"plan.read_scalars", "scalars", "($operands:1) stream $stream $label", "",
     "Writes the step scalars in order, as f32"},
    {"plan.write_output", "output", "$output.output [tensor $output.tensor]($operands:1) stream $stream $label", "",
     "Passes a scalar (`gradient_norm` as f64, others as f32) or an output tensor to the host"},
    {"plan.transfer", "transfer", "$transfer.kind($operands:2) stream $stream $label", "",
     "Copies bytes of operand 0 to the same place of operand 1, a buffer of the same size in another space"},
    {"plan.persist", "persist", "[communicator $persist.communicator]($operands) stream $stream $label", "",
     "Makes everything that the step has written to files durable on all ranks. Then the next generations become the "
     "current ones"},
};

static constexpr SubMessage kSubMessages[] = {
    {"Operand", "$access:access %buffer\\[$offset : $bytes [+ $axis:index * $shard_stride^]\\]"},
    {"Attribute", "$name = $integer|real"},
    {"KindBytes", "$kind = $bytes"},
    {"SpaceMemory", "$space = {by_kind, peak_bytes!}"},
    {"ProductFlops", "$type:product = $flops"},
    {"StepWork", "{products, state_bytes, reduced_bytes, gathered_bytes}"},
    {"Training",
     "{optimizer, learning_rate, [schedule:schedule], clip_norm, on_nan, seed, reduce_order, groups, "
     "[loss_scale:loss_scale]}"},
    {"ParameterGroup", "{name, settings, [learning_rate]}"},
};

std::span<const Row> declarationRows() {
  return kDeclarations;
}

std::span<const Row> instructionRows() {
  return kInstructions;
}

std::span<const SubMessage> subMessageRows() {
  return kSubMessages;
}

}  // namespace sheaf::plan_ir::text
