// From a model's file to its training step: the phases `import` and `train`, which every tool that compiles begins
// with.
#pragma once

#include "frontend/onnx/importer/Import.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/Choose.h"
#include "passes/Pipeline.h"
#include "runtime/base/Status.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Words.h"
#include "runtime/plan/plan.pb.h"
#include "tools/options/Rows.h"
#include "tools/sheaf/Offload.h"

namespace sheaf::tool {

struct TrainedOptions {
  std::string model;  // path
  frontend::ImportOptions import;
  PipelineOptions pipeline;
  std::string optimizer;
  plan::Schedule schedule;  // of the learning rate
  plan::Training::OnNan onNan = plan::Training::STOP;
  plan::Training::ReduceOrder reduceOrder = plan::Training::TREE;
  double clipNorm = 0;
  std::optional<plan::LossScale> lossScale;                      // absent: none; see completeLossScale
  std::optional<std::optional<plan::LossScale>> givenLossScale;  // by --loss-scale; absent: by the precision
  bool evaluation = false;                                       // an evaluation in addition to the training step
  bool evaluationOnly = false;                                   // the graph's outputs alone, nothing to train
  int64_t seed = 0;
  int64_t microBatches = 1;  // import.microBatches; 0: chosen by the tool
  int64_t ranksPerNode = 0;  // 0: there are no nodes; kProfilesNodes: see Nodes.h
  OffloadChoice offload;
  UpdateOn updateOn = UpdateOn::automatic;
  uint64_t hostMemory = 0, fileSpace = 0;  // of a rank, for what is moved there; 0: no limit
};

// The words of an enumeration of plan.proto, and of one of the train dialect, with what they stand for.
template <typename Enum>
options::Words<Enum> protoWords() {
  options::Words<Enum> pairs;
  for (const std::string& word : plan::words<Enum>()) pairs.emplace_back(word, *plan::valueOf<Enum>(word));
  return pairs;
}
template <typename Enum>
options::Words<Enum> dialectWords() {
  options::Words<Enum> pairs;
  for (const std::string& word : train::enumWords<Enum>()) pairs.emplace_back(word, *train::symbolizeEnum<Enum>(word));
  return pairs;
}

// Whether the batch can be cut into these micro-batches and leaves.
Status checkPieces(const frontend::ImportOptions& import);
// Reads M or auto, which is 0.
Expected<int64_t> parseMicroBatches(const std::string& text);

// Reads DIM=K.
Expected<std::pair<std::string, int64_t>> parseBinding(const std::string& text);

// The losses that --loss can add, for its help.
std::string lossesText();

// Rows that the tables of several commands have; O is derived from TrainedOptions.
template <typename O>
options::Option bindingRow() {
  return options::Rows<O>::template parsed<&O::import, &frontend::ImportOptions::bind>(
             "--bind", "DIM=K", "DIM=K with K of at least 1",
             "Set the size of a dynamic dimension of the inputs other than the batch dimension.", parseBinding)
      .decidesBits();
}
// Reads INPUT=D, the dimension of an input.
Expected<std::pair<std::string, int64_t>> parseRows(const std::string& text);
template <typename O>
options::Option rowsRow() {
  return options::Rows<O>::template parsed<&O::import, &frontend::ImportOptions::rows>(
             "--rows", "INPUT=D", "INPUT=D with D of at least 0",
             "The batch dimension of an input, counted from 0. This is about the model's input; in data files, the "
             "rows are always the first dimension. Default: the dynamic dimension whose name all inputs share, such as "
             "batch. Without such a name, or with several, dimension 0.",
             parseRows)
      .decidesBits();
}
// Reads NAME=FILE.npy, an array of integers or booleans.
Expected<frontend::KnownInput> parseKnownInput(const std::string& text);
template <typename O>
options::Option constantRow() {
  return options::Rows<O>::template parsed<&O::import, &frontend::ImportOptions::constants>(
             "--const", "INPUT=FILE", "INPUT=FILE.npy, an array of integers or booleans",
             "Read the value of an input when the plan is compiled: for inputs that are the same in every step and "
             "decide shapes, such as a length or an axis.",
             parseKnownInput)
      .decidesBits();
}
template <typename O>
options::Option lossRow() {
  return options::Rows<O>::template text<&O::import, &frontend::ImportOptions::loss>(
             "--loss", "OUTPUT|KIND(OUTPUT)",
             "The scalar output to minimise, or a loss function that is applied to an output, as PyTorch defines it: " +
                 lossesText())
      .defaultsTo("the only scalar output")
      .decidesBits();
}
template <typename O>
options::Option optimizerRow() {
  // The name in any case, as in AdamW.
  auto parse = [](const std::string& text) -> Expected<std::string> {
    if (text.empty()) return Status::error("expected NAME[:key=value,...]");
    const size_t colon = std::min(text.find(':'), text.size());
    return lowerCase(text.substr(0, colon)) + text.substr(colon);
  };
  return options::Rows<O>::template parsed<&O::optimizer>(
             "--optimizer", "NAME[:key=value,...]", "NAME[:key=value,...]",
             "The optimizer and its hyperparameters. sgd (lr, momentum, dampening, nesterov, weight_decay), adam and "
             "adamw (lr, beta1, beta2, eps, weight_decay): PyTorch's formulas and defaults. adamw_hf: the keys of "
             "adamw, with the formula and defaults of the library transformers. lion (lr, beta1, beta2, weight_decay).",
             parse)
      .defaultsTo("the optimizer that the ONNX file contains, else adamw")
      .decidesBits();
}
template <typename O>
options::Option batchNormRow() {
  using Mode = frontend::ImportOptions::BatchNorm;
  return options::Rows<O>::template choice<&O::import, &frontend::ImportOptions::batchNorm>(
             "--batch-norm",
             options::Words<Mode>{
                 {"auto", Mode::automatic}, {"sync", Mode::sync}, {"local", Mode::local}, {"eval", Mode::eval}},
             "Statistics that BatchNormalization uses. sync: mean and variance over the rows of all ranks; local: over "
             "the rows of each rank, so that results depend on the number of ranks; eval: the stored running "
             "statistics; auto: as the exported model specifies, else sync.")
      .decidesBits();
}
template <typename O>
options::Option precisionRow() {
  return options::Rows<O>::template choice<&O::pipeline, &PipelineOptions::precision>(
             "--precision", dialectWords<train::Precision>(),
             "Type of parameters, activations and gradients in memory. tf32: f32, with TF32 matrix multiplication on "
             "GPUs. bf16 and f16: the optimizer also keeps f32 weights. Matrix multiplications take bf16 or f16 "
             "operands and add in f32. All other kernels compute in f32.",
             options::Words<train::Precision>{{"fp32", train::Precision::f32},
                                              {"float32", train::Precision::f32},
                                              {"fp16", train::Precision::f16},
                                              {"float16", train::Precision::f16},
                                              {"half", train::Precision::f16},
                                              {"bfloat16", train::Precision::bf16}})
      .decidesBits();
}
template <typename O>
options::Option lossScaleRow() {
  return options::Rows<O>::template parsed<&O::givenLossScale>(
             "--loss-scale", plan::lossScaleSyntax(), "none, a number or dynamic[:key=value,...]",
             "Multiply the loss by a number, and divide the gradients by it, so that f16 does not round small "
             "gradients to zero. dynamic: a step whose gradients overflow is skipped, and the number is adapted. Its "
             "keys are init=65536, growth=2, interval=2000 (good steps before it grows), backoff=0.5 and floor=1.",
             plan::parseLossScale)
      .defaultsTo("dynamic with --precision f16, else none")
      .decidesBits();
}
template <typename O>
options::Option clipRow() {
  return options::Rows<O>::template real<&O::clipNorm>("--clip-norm", "X", 0, true,
                                                       "Scale gradients so that their global norm is at most X.")
      .defaultsTo("no clipping")
      .decidesBits();
}
template <typename O>
options::Option onNanRow() {
  return options::Rows<O>::template choice<&O::onNan>("--on-nan", protoWords<plan::Training::OnNan>(),
                                                      "What happens if the loss or a gradient is infinite or NaN. "
                                                      "stop: the run ends; skip: the step's update is left out.")
      .decidesBits();
}
template <typename O>
options::Option trainRow() {
  return options::Rows<O>::template text<&O::import, &frontend::ImportOptions::train>(
             "--train", "REGEX", "Train only the parameters whose names match.")
      .decidesBits();
}
template <typename O>
options::Option freezeRow() {
  return options::Rows<O>::template text<&O::import, &frontend::ImportOptions::freeze>(
             "--freeze", "REGEX", "Do not train the parameters whose names match; wins over --train.")
      .decidesBits();
}
template <typename O>
options::Option offloadRow() {
  return options::Rows<O>::template parsed<&O::offload>(
             "--offload", "auto|none|KIND=SPACE,...",
             "auto, none, or KIND=SPACE,..., as in optimizer=host,activations=file",
             "Store data outside device memory while it is not in use. KIND: optimizer (state and master weights), "
             "parameters, gradients (while they wait between reduction and update), activations (while they wait "
             "between forward and backward pass). SPACE: host (the host's memory) or file (in the folder of `sheaf-run "
             "--offload-dir`). auto: if the plan does not fit --memory-limit, move data until the plan fits. It starts "
             "with the data that cost the least time to move. If recomputing activations is faster, do that instead. "
             "Data are moved to host memory first, and to files when --host-memory is full.",
             parseOffload)
      .defaultsTo("none");
}
template <typename O>
options::Option updateOnRow() {
  return options::Rows<O>::template choice<&O::updateOn>(
      "--update-on",
      options::Words<UpdateOn>{{"auto", UpdateOn::automatic}, {"device", UpdateOn::device}, {"host", UpdateOn::host}},
      "Where to update parameters if --offload moves their optimizer state. device: the state is copied to the device "
      "and back. host: the host's processors update it in host memory; gradients are copied there and parameters back. "
      "auto: the same as device if the plan runs on CPUs. If it runs on GPUs, the choice that is predicted to be "
      "faster; the profile (--profile) contains the speed of updates on the host. If another part of the step also "
      "reads the state, the update stays on the device.");
}
template <typename O>
options::Option hostMemoryRow() {
  return options::Rows<O>::template bytes<&O::hostMemory>("--host-memory",
                                                          "Maximum host memory per rank for what --offload moves.")
      .defaultsTo("no limit");
}
template <typename O>
options::Option fileSpaceRow() {
  return options::Rows<O>::template bytes<&O::fileSpace>("--file-space",
                                                         "Maximum size of the files per rank for what --offload moves.")
      .defaultsTo("no limit");
}
template <typename O>
options::Option fileGenerationsRow() {
  return options::Rows<O>::template integer<&O::pipeline, &PipelineOptions::fileGenerations>(
      "--file-generations", "1|2", 1, 2,
      "How many versions of the state the files hold, if --offload moves parameters and optimizer state to files. 2: "
      "the state after the latest step and after the step before, so that a run can be resumed from the files, also "
      "after a crash. 1: takes half the space, and the files are removed when the run ends.");
}

// Decides the loss scale: what was given, or dynamic for f16.
void completeLossScale(TrainedOptions& options);

template <typename O>
options::Option microBatchesRow(const std::string& more) {
  return options::Rows<O>::template parsed<&O::microBatches>(
             "--micro-batches", "M|auto", "1 to 65536, or auto",
             "Gradient accumulation: a rank computes its rows in M pieces, one after the other, so that activations "
             "take the memory of one piece. Unless --leaves is given, each rank then has M leaves." +
                 more,
             parseMicroBatches)
      .defaultsTo("1");
}
template <typename O>
options::Option reduceRow() {
  return options::Rows<O>::template word<&O::pipeline, &PipelineOptions::reduce>(
      "--reduce", {"auto", "each", "last"},
      "With --micro-batches: when gradients are reduced over the ranks. each: after every micro-batch, so that a rank "
      "stores only its shard of the gradients. last: as rarely as possible; a rank then stores all gradients. If M is "
      "a power of two, they are reduced once, after the last micro-batch. Otherwise they are reduced after every K "
      "micro-batches, where K is the largest power of two that divides M (M = 12: after every 4). The reason: one "
      "fixed binary tree adds the gradients of all micro-batches of all ranks. In it, a rank can add the gradients of "
      "K of its own micro-batches alone; the next addition needs gradients of another rank. auto: the same as each at "
      "stages 2 and 3, and as last at stages 0 and 1.");
}

// The maximum of --batch.
inline constexpr int64_t kMostBatch = int64_t{1} << 32;

// A context with our dialects, for one compilation.
std::unique_ptr<mlir::MLIRContext> makeContext();

// Records in a module that the phase `train` left what it is trained with.
void setTraining(mlir::ModuleOp module, const TrainedOptions& options);
// The module after the phase `train`, or after `import` only; null: an error has been printed.
mlir::OwningOpRef<mlir::ModuleOp> importModel(mlir::MLIRContext& context, const TrainedOptions& options,
                                              bool importOnly = false);

}  // namespace sheaf::tool
