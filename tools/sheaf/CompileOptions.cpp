#include "tools/sheaf/CompileOptions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "passes/StepModule.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/PhaseProgress.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Schedules.h"
#include "runtime/profile/Profile.h"
#include "tools/sheaf/Nodes.h"
#include "tools/sheaf/Offload.h"
#include "tools/sheaf/UsualProfile.h"

namespace sheaf::tool {
namespace {

options::Words<std::optional<train::Recomputation>> recomputations() {
  options::Words<std::optional<train::Recomputation>> words{{"auto", std::nullopt}};
  for (const auto& [word, value] : dialectWords<train::Recomputation>()) words.emplace_back(word, value);
  return words;
}

// Checks the form alone: the hyperparameters are checked where the optimizer is known.
Expected<std::string> parseGroup(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == 0 || colon == std::string::npos || text.find('=', colon) == std::string::npos)
    return Status::error("expected REGEX:key=value,..., as in 'head:lr=0.1,weight_decay=0'");
  return text;
}

using MaybeStages = std::optional<Stages>;
Expected<MaybeStages> parseStages(const std::string& text) {
  const std::string expected =
      "expected auto, a stage from 0 to 3, or node=S,world=T with T from 0 to S, as in node=3,world=1";
  auto stage = [](const std::string& text, int64_t& value) {
    return parseInteger(text, value) && value >= 0 && value <= 3;
  };
  if (text == "auto") return MaybeStages();
  Stages stages;
  if (stage(text, stages.within)) return MaybeStages(Stages{stages.within, stages.within});
  const size_t comma = text.find(',');
  if (!text.starts_with("node=") || comma == std::string::npos || text.compare(comma, 7, ",world=") != 0 ||
      !stage(text.substr(5, comma - 5), stages.within) || !stage(text.substr(comma + 7), stages.between) ||
      stages.between > stages.within)
    return Status::error(expected);
  return MaybeStages(stages);
}

// Options of sheaf-run that are typed here.
std::map<std::string, std::string> optionsOfRun() {
  std::map<std::string, std::string> all{
      {"--lr", "give the learning rate as in --optimizer adamw:lr=1e-3, or when the plan runs, by `sheaf-run --lr`"}};
  for (const char* name : {"--data", "--steps", "--epochs", "--shuffle", "--eval-every", "--eval-data", "--outputs",
                           "--weights", "--weights-dir", "--save", "--save-state", "--save-every", "--resume", "--log",
                           "--log-dir", "--metrics-file", "--trace", "--device", "--transport"})
    all[name] = "give it when the plan runs, to `sheaf-run`";
  return all;
}

// Settles which buckets keep secondary shards. The nodes must be settled already.
Status settleSecondaryShards(CompileOptions& o) {
  o.choose.secondary = o.secondary == "auto";
  o.pipeline.secondaryPart = o.secondary == "all" ? 1 : 0;
  if (o.secondary != "all") return {};
  const int64_t each = o.pipeline.ranksPerNode;
  if (each == 0) return Status::error("--secondary-shards all needs --ranks-per-node L");
  if (each > 1 && each < o.import.ranks && (!o.choose.stage || *o.choose.stage == Stages{3, 3})) return {};
  return Status::error(
      "--secondary-shards all keeps what is gathered between nodes: it needs several nodes of several ranks, and stage "
      "3 within and between them (--zero 3)");
}

}  // namespace

options::Table compileTable() {
  using O = CompileOptions;
  using Import = frontend::ImportOptions;
  using Pipeline = PipelineOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf compile",
                       "Compiles the training step of an ONNX model into a plan.",
                       {"sheaf compile MODEL.onnx -o OUT.plan --batch B [options]"},
                       Row::positional<&O::model>("MODEL.onnx"),
                       {},
                       ""};
  table.foreign = optionsOfRun();
  table.marksResults = true;
  table.notes =
      "If --leaves and --bucket-size are both given, options without the mark \"can change results\" change only time "
      "and memory. If --leaves is not given, --ranks and --micro-batches also change how results are rounded. If "
      "--bucket-size is not given, Sheaf chooses the bucket size from predicted times. Any option that changes the "
      "predicted times can then also change how results are rounded.";
  table.sections = {
      {"Job",
       {Row::text<&O::output>("-o", "OUT.plan",
                              "File for the plan. With --compile-to, the compiler's intermediate representation of the "
                              "training step is written instead, as text; '-' writes it to standard output.")
            .writes([](const options::Given& given) -> std::vector<std::string> {
              if (!given.has("--compile-to") || given.is("--compile-to", "emit")) return {"plan"};
              return given.is("--format", "onnx") ? std::vector<std::string>{"onnx"} : std::vector<std::string>{"mlir"};
            })
            .alsoWrites(".data")
            .required("where is the plan to be written?"),
        Row::integer<&O::import, &Import::ranks>("--ranks", "N", 1, 65536, "Number of ranks."),
        Row::integer<&O::import, &Import::batch>(
            "--batch", "B", 1, int64_t{1} << 32,
            "Global batch: rows (samples) per step of all ranks together, divided among the ranks. Leave it out if the "
            "model fixes the batch dimension of its inputs (see --rows) to more than one row.")
            .defaultsTo("the model's, if that is fixed; else it is required")
            .decidesBits(),
        Row::integer<&O::import, &Import::leaves>(
            "--leaves", "V", 1, int64_t{1} << 20,
            "Make results independent of the number of ranks: with --leaves 8, runs on 1, 2, 4 and 8 ranks give "
            "bit-identical weights. The batch is divided into V pieces, called leaves. Their gradients are added in "
            "one fixed order, which is the same for any number of ranks. V must be --ranks times --micro-batches times "
            "a power of two (1, 2, 4, ...).")
            .defaultsTo("one leaf per rank and micro-batch")
            .decidesBits(),
        Row::text<&O::like>(
            "--like", "A.plan",
            "Copy from A.plan every option that can change results, such as --leaves, --bucket-size, --precision and "
            "--optimizer, so that both plans give bit-identical results. It is an error to give one of these options "
            "with another value. It is also an error if the results of the two plans would still differ."),
        microBatchesRow<O>(" auto: no accumulation (M = 1) if the plan fits. Otherwise the faster of two: the smallest "
                           "M that makes the plan fit, or M = 1 with recomputed activations."),
        reduceRow<O>(), bindingRow<O>(), rowsRow<O>(), constantRow<O>(), nodesRow<O>("all ranks are one group"),
        Row::parsed<&O::choose, &ChooseOptions::stage>(
            "--zero", "auto|0|1|2|3|node=S,world=T", "auto, a stage from 0 to 3, or node=S,world=T",
            "ZeRO stage: what is divided among the ranks. 0: nothing, 1: optimizer state, 2: gradients as well, 3: "
            "parameters as well; auto: of the stages that fit, the one with the shortest predicted step. "
            "node=S,world=T: two levels (T at most S). world=T: the data that stage T divides are spread over all "
            "ranks. node=S: stage S divides more than stage T; these further data are spread over the ranks within "
            "each node, so each node has a complete copy of them. Example: node=3,world=0 is HSDP, which divides "
            "everything within nodes and nothing between them.",
            parseStages)
            .defaultsTo("auto"),
        Row::text<&O::deepSpeed>(
            "--deepspeed", "FILE.json",
            "Take stage, batch, optimizer, schedule, precision and clipping from a DeepSpeed configuration. It prints "
            "how each key was translated. A key that changes results and has no equivalent is an error (see --ignore). "
            "Options of the command line have priority over the file."),
        Row::text<&O::ignored>("--ignore", "KEY",
                               "Ignore a key of the --deepspeed file that has no equivalent, such as fp16.hysteresis. "
                               "The name of a section means all its keys."),
        Row::integer<&O::seed>("--seed", "S", INT64_MIN, INT64_MAX, "Seed of dropout and of other random numbers.")
            .decidesBits(),
        Row::flag<&O::noWeightHashes>("--no-weight-hashes",
                                      "Do not hash the whole files of initial weights; hashing takes as long as "
                                      "copying them. The plan then has each file's size and a hash of its first 64 "
                                      "KiB, and sheaf-run does not notice damage elsewhere in the file."),
        Row::flag<&O::noGraph>("--no-graph",
                               "Do not store the training graph in the plan. `sheaf report` then cannot show it.")}},
      {"Training",
       {lossRow<O>(), optimizerRow<O>(),
        Row::parsed<&O::pipeline, &Pipeline::groups>(
            "--group", "REGEX:key=value,...", "a regular expression and hyperparameters of the optimizer",
            "Hyperparameters of the parameters whose names match, instead of those of --optimizer, as in "
            "'head:lr=0.1,weight_decay=0'. If several match, the last one counts.",
            parseGroup)
            .decidesBits(),
        Row::flag<&O::pipeline, &Pipeline::noDecay>(
            "--no-decay",

            "No weight decay for one-dimensional parameters, such as biases and normalizations, and for embeddings "
            "(parameters that only the ONNX operator Gather reads), unless their --group sets it.")
            .decidesBits(),
        Row::parsed<&O::schedule>("--lr-schedule", "SCHEDULE", plan::scheduleSyntax(), plan::scheduleHelp(),
                                  plan::parseSchedule)
            .defaultsTo("constant")
            .decidesBits(),
        clipRow<O>(), onNanRow<O>(), trainRow<O>(), freezeRow<O>(), batchNormRow<O>(), precisionRow<O>(),
        Row::choice<&O::pipeline, &Pipeline::reducePrecision>(
            "--reduce-precision",
            options::Words<std::optional<train::Precision>>{
                {"f32", train::Precision::f32}, {"bf16", train::Precision::bf16}, {"f16", train::Precision::f16}},
            "With --precision bf16 or f16: the type in which gradients are summed over ranks, either f32 or that of "
            "--precision.")
            .defaultsTo("the type of --precision")
            .decidesBits(),
        lossScaleRow<O>(),
        Row::choice<&O::reduceOrder>(
            "--reduce-order", protoWords<plan::Training::ReduceOrder>(),
            "Order in which GPUs add the values of ranks. tree: one fixed order; results do not depend on the stage or "
            "the number of processes. ring: NCCL's own order; results depend on the stage and on the number of "
            "processes. `sheaf-run --reduce-order` has priority.")
            .decidesBits(),
        Row::word<&O::gemmEpilogues>(
            "--gemm-epilogues", {"auto", "on", "off"},
            "Fuse the operations that follow a matrix multiplication into it: adding a bias, GELU and its gradient, "
            "summing bias gradients. The fused operations use the result before it is rounded to the type of "
            "--precision. auto: on if a target is a GPU.")
            .decidesBits()}},
      {"Evaluation",
       {Row::flag<&O::evaluation>("--eval",
                                  "Add an evaluation to the plan: it computes the graph's outputs and the loss. "
                                  "Dropout is off, and batch norms use their running statistics. It shares weights and "
                                  "memory with the training step. `sheaf-run --eval` and `--eval-every` run it."),
        Row::flag<&O::evaluationOnly>("--eval-only",
                                      "Compile an evaluation alone, without training: the model needs no loss.")}},
      {"Machine",
       {Row::parsed<&O::targets, &codegen::KernelTargets::list>(
            "--target", "LIST", "cpu or cuda:sm_NN, such as cuda:sm_90, or a list of them",
            "Devices to compile kernels for: cpu, cuda:sm_NN from sm_80 on, or several, as in "
            "cpu,cuda:sm_80,cuda:sm_90. The plan runs on the first one, unless `sheaf-run --device` selects another.",
            codegen::parseTargets)
            .defaultsTo("cpu")
            .decidesBits(),
        Row::text<&O::targets, &codegen::KernelTargets::cpu>(
            "--cpu", "NAME",
            "CPU type that CPU kernels are compiled for: x86-64-v3, x86-64-v4, any name that LLVM knows, or host, the "
            "CPU of this machine. If all targets are GPUs, the only CPU kernels are those that update parameters on "
            "the host (see --update-on), and their default CPU type is x86-64-v3.")
            .decidesBits(),
        Row::integer<&O::pipeline, &Pipeline::maxThreads>(
            "--max-threads-per-rank", "T", 1, 1024,
            "Maximum number of compute threads per CPU rank. Scratch memory is reserved for them.")}},
      {"Memory and schedule (all optional)",
       {Row::text<&O::profile>("--profile", "NAME|FILE",
                               "Type of machine to predict and schedule for: a shipped profile, such as h100, or a "
                               "file made by `sheaf profile`. If you give --profile and not --memory-limit, the "
                               "profile's memory is the limit; the default profile sets no limit.")
            .defaultsTo("the shipped profile nearest to the first target"),
        Row::bytes<&O::choose, &ChooseOptions::memoryLimit>(
            "--memory-limit",
            "Maximum size of a rank's arena, the one block of memory that contains all its buffers. What libraries "
            "allocate is not part of it.")
            .defaultsTo("no limit; with --profile, the profile's memory"),
        offloadRow<O>(), updateOnRow<O>(), hostMemoryRow<O>(), fileSpaceRow<O>(), fileGenerationsRow<O>(),
        Row::choice<&O::choose, &ChooseOptions::recompute>(
            "--recompute", recomputations(),
            "Activations to recompute in the backward pass (activation checkpointing). auto: only as many as are "
            "needed to make the plan fit; none; kernels: results of elementwise kernels that follow matrix "
            "multiplications; all: everything inside transformer blocks, whose inputs are kept."),
        Row::bytes<&O::pipeline, &Pipeline::bucketBytes>("--bucket-size",
                                                         "Size of a bucket: parameters that are gathered together.")
            .defaultsTo("from the model's size and the profile")
            .decidesBits(),
        Row::integer<&O::pipeline, &Pipeline::prefetch>(
            "--prefetch", "K", 0, 1 << 20, "How many buckets are gathered in advance, beyond those in use.")
            .defaultsTo("the fastest by prediction"),
        Row::text<&O::keep>("--keep", "auto|none|REGEX",
                            "At stage 3: parameters that stay gathered from the forward to the backward pass. auto: "
                            "keep a parameter if the step becomes shorter and the plan still fits; none: keep nothing; "
                            "REGEX: keep those whose names match."),
        Row::word<&O::secondary>("--secondary-shards", {"auto", "none", "all"},
                                 "At stage 3 with --ranks-per-node L: each rank keeps 1/L of a bucket after the "
                                 "forward pass, so that the backward pass gathers within nodes only (hpZ of ZeRO++). "
                                 "auto: do this for as many buckets as fit, if the step becomes shorter; none: for no "
                                 "bucket; all: for every bucket, except those that stay gathered because of --keep.")}},
      {"Inspection",
       {Row::word<&O::phase>("--compile-to", {"import", "train", "zero", "fuse", "plan", "emit"},
                             "Stop after one phase and write the intermediate representation of the training step, as "
                             "text, to the file of -o. Phases: import (the graph as read), train (with backward pass "
                             "and optimizer), zero (with its communication), fuse (with fused kernels), plan (with "
                             "addresses and schedule). The default, emit, runs all phases and writes the plan."),
        Row::word<&O::format>(
            "--format", {"text", "onnx"},
            "With --compile-to: text, or an ONNX model of the step's graph that viewers such as Netron can show."),
        Row::flag<&O::verbose>("--verbose",
                               "Print decisions: which parameters are trained, frozen or tied, and which operators, "
                               "such as GELU and attention, were recognised in the graph.")}}};
  return table;
}

Status checkTogether(const CompileOptions& options, const options::Given& given) {
  if (options.output == "-" && options.phase == "emit")
    return Status::error(
        "-o -: a plan is not written to standard output; give -o OUT.plan, or -o ./- for a file of that name");
  SHEAF_RETURN_IF_ERROR(codegen::checkCpu(options.targets));
  if (const auto reduced = options.pipeline.reducePrecision;
      reduced && *reduced != train::Precision::f32 && *reduced != options.pipeline.precision) {
    const std::string word = train::stringifyPrecision(*reduced).str();
    return Status::error(cat("--reduce-precision ", word, " needs --precision ", word,
                             ": other gradients are summed in f32 or in their own type"));
  }
  for (const std::string option :
       {"--eval", "--loss", "--optimizer", "--group", "--no-decay", "--lr-schedule", "--clip-norm", "--on-nan",
        "--train", "--freeze", "--batch-norm", "--reduce-precision", "--loss-scale"})
    if (options.evaluationOnly && given.has(option))
      return Status::error(
          option == "--eval" || option == "--loss"
              ? "--eval-only compiles the outputs without a loss; to evaluate a loss use --eval without --eval-only"
              : cat(option, " has no use with --eval-only, which compiles no training step"));
  if (given.has("--reduce") && options.microBatches == 1)
    return Status::error(
        "--reduce says when the gradients of several micro-batches are reduced; it needs --micro-batches");
  if (options.evaluationOnly && options.microBatches != 1)
    return Status::error(
        "--micro-batches has no use with --eval-only, which compiles no training step; give a smaller --batch");
  return {};
}

Status checkUses(const CompileOptions& o, const options::Given& typed) {
  const bool moves = o.offload.automatic || o.offload.spaces.any();
  const bool shares = o.import.ranks > 1, isStage3 = !o.choose.stage || o.choose.stage->within == 3;
  const bool gathers = shares && (!o.choose.stage || o.choose.stage->within > 0);
  // With --offload none, which moves nothing, a script may leave the rest as it is.
  const bool none = typed.has("--offload");
  const std::string noMoves = cat("it is about what --offload moves, and --offload is ", none ? "none" : "not given");
  struct Use {
    std::string option;
    bool used;
    bool refused;
    std::string why;
  };
  const Use uses[] = {
      {"--update-on", moves || o.updateOn != UpdateOn::host, !none, noMoves},
      {"--host-memory", moves, !none, noMoves},
      {"--file-space", moves, !none, noMoves},
      {"--file-generations", moves, !none, noMoves},
      {"--reduce-order", o.targets.hasGpu() || o.reduceOrder == plan::Training::TREE, false,
       "it is about GPUs, and no --target is one"},
      {"--keep", (shares && isStage3) || o.keep == "auto" || o.keep == "none", false,
       "it is about parameters that several ranks divide (--zero 3)"},
      {"--prefetch", gathers || moves, false, "one rank, or stage 0, gathers nothing"},
  };
  for (const Use& use : uses) {
    if (use.used || !typed.has(use.option)) continue;
    const std::string text = cat(use.option, " has no effect: ", use.why);
    if (use.refused) return Status::error(text);
    out::fprintf(stderr, "sheaf: note: %s\n", text.c_str());
  }
  return {};
}

Status complete(CompileOptions& o) {
  o.choose.retention = o.keep == "auto";
  o.pipeline.keep = o.keep == "auto" || o.keep == "none" ? "" : o.keep;
  SHEAF_RETURN_IF_ERROR(codegen::checkToolkit(o.targets));
  o.import.microBatches = std::max<int64_t>(o.microBatches, 1);
  SHEAF_RETURN_IF_ERROR(checkPieces(o.import));
  o.pipeline.cpu = o.targets.hasCpu();
  o.pipeline.gpu = o.targets.hasGpu();
  o.pipeline.offload = o.offload.spaces;
  o.choose.offload = o.offload.automatic;
  o.choose.updateOn = o.updateOn;
  o.choose.hostLimit = o.hostMemory, o.choose.fileLimit = o.fileSpace;
  o.pipeline.gemmEpilogues = o.gemmEpilogues == "on" || (o.gemmEpilogues == "auto" && o.pipeline.gpu);
  o.import.optimizer = o.optimizer;
  o.pipeline.optimizer = o.optimizer;
  o.pipeline.clip = o.clipNorm > 0;
  o.pipeline.skip = o.onNan == plan::Training::SKIP;
  completeLossScale(o);
  o.pipeline.profile = o.profile.empty() ? usualProfile(o.targets.list.front()) : o.profile;
  Expected<profile::Profile> profile = schedule::loadProfile(o.pipeline.profile);
  if (!profile.ok()) return profile.status();
  if (!o.profile.empty() && o.choose.memoryLimit == 0) o.choose.memoryLimit = profile->memoryBytes();
  o.choose.onCandidate = PhaseProgress::phase;
  SHEAF_RETURN_IF_ERROR(settleNodes(o, *profile, o.choose));
  return settleSecondaryShards(o);
}

}  // namespace sheaf::tool
