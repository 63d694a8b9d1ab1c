// sheaf compile: from an ONNX model to a plan.
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "codegen/emit/Emit.h"
#include "frontend/onnx/export/PhaseModel.h"
#include "frontend/onnx/importer/ModuleScopes.h"
#include "ir/Plan/Text.h"
#include "llvm/Support/raw_ostream.h"
#include "passes/Choose.h"
#include "passes/StepModule.h"
#include "passes/plan/Passes.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Same.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Profile.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/DeepSpeed.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/Like.h"
#include "tools/sheaf/ModelFiles.h"
#include "tools/sheaf/Nodes.h"
#include "tools/sheaf/Offload.h"
#include "tools/sheaf/PlanGraph.h"
#include "tools/sheaf/Trained.h"
#include "tools/sheaf/UsualProfile.h"

namespace fs = std::filesystem;

namespace sheaf::tool {

namespace {

struct CompileOptions : TrainedOptions {
  std::string output, phase = "emit", format = "text";
  codegen::KernelTargets targets;
  ChooseOptions choose;
  std::string profile;
  std::string gemmEpilogues = "auto", keep = "auto", secondary = "auto";
  std::string like;  // path of a plan
  bool verbose = false, noWeightHashes = false, noGraph = false;
  double predictedSeconds = 0;  // the step's, on the profile
  std::string deepSpeed;        // path of a configuration
  std::vector<std::string> ignored;
};

options::Words<std::optional<train::Recomputation>> recomputations() {
  options::Words<std::optional<train::Recomputation>> words{{"auto", std::nullopt}};
  for (const auto& [word, value] : dialectWords<train::Recomputation>()) words.emplace_back(word, value);
  return words;
}

// What is in a group is checked where the optimizer is known.
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

// Which buckets keep secondary shards, where the nodes are settled.
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

// Derives what follows from the options.
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

bool runPhase(mlir::ModuleOp module, const CompileOptions& o, const std::string& phase) {
  mlir::PassManager passes(module.getContext());
  if (phase == "zero") addZeroPasses(passes, o.pipeline);
  if (phase == "fuse") addFusePasses(passes);
  return mlir::succeeded(passes.run(module));
}

// Why no candidate is good enough, and what would be.
std::string tooLarge(const Candidate& least, const CompileOptions& o) {
  auto above = [](uint64_t bytes, uint64_t limit) { return limit > 0 && bytes > limit; };
  const bool host = above(least.hostBytes, o.choose.hostLimit);
  if (host || above(least.fileBytes, o.choose.fileLimit)) {
    const uint64_t bytes = host ? least.hostBytes : least.fileBytes;
    return cat("what --offload moves to ", host ? "host memory" : "files", " does not fit ",
               host ? "--host-memory " : "--file-space ", bytesText(host ? o.choose.hostLimit : o.choose.fileLimit),
               " a rank: ", least.text(), " takes ", bytesText(bytes), "; move less, ",
               host && least.updatesOnHost ? "update on the device (--update-on device), make smaller buckets, " : "",
               !host && o.pipeline.fileGenerations > 1 ? "keep one place for each state (--file-generations 1), " : "",
               "or use more --ranks");
  }
  return cat("the plan does not fit ", bytesText(o.choose.memoryLimit), " a rank: ", least.text(), " takes ",
             bytesText(least.bytes), ", ", bytesText(least.bytes - o.choose.memoryLimit), " (",
             least.bytes - o.choose.memoryLimit, " bytes) too much",
             least.neediest.empty() ? "" : cat(" (", least.neediest, ")"), "; use more --ranks, ",
             o.microBatches > 0 ? "--micro-batches auto" : "a smaller --batch",
             o.choose.stage && o.choose.stage->between < 3 ? ", --zero auto" : "",
             o.choose.recompute ? ", --recompute auto" : "",
             o.pipeline.offload.any() || o.choose.offload ? "" : ", --offload auto", ", or see `sheaf fit`");
}

// Imports the model and chooses what the user left open. Of micro-batches to be chosen as many as the fastest plan that
// fits has: more than one only where it would not fit otherwise, or would have to recompute. Failure: an error has been
// printed.
mlir::FailureOr<Candidate> chooseAll(mlir::MLIRContext& context, mlir::OwningOpRef<mlir::ModuleOp>& module,
                                     CompileOptions& o) {
  mlir::FailureOr<Candidate> best = choose(*module, o.pipeline, o.choose);
  if (mlir::failed(best) || o.microBatches > 0) return best;
  const mlir::Attribute batch = module.get()->getAttr("train.batch");
  const int64_t rows = llvm::cast<mlir::IntegerAttr>(batch).getInt();
  auto simple = [](const Candidate& c) {
    return c.fits && c.options.recompute == train::Recomputation::none && c.options.offloadWithin < 0;
  };
  bool done = simple(*best);
  for (CompileOptions more = o; !done;) {
    more.import.microBatches *= 2;
    if (rows % more.import.pieces() || !checkPieces(more.import).ok()) break;
    // A model that cannot be cut so is compiled as it is.
    mlir::ScopedDiagnosticHandler quiet(&context, [](mlir::Diagnostic&) { return mlir::success(); });
    mlir::OwningOpRef<mlir::ModuleOp> cut = importModel(context, more);
    if (!cut) break;
    mlir::FailureOr<Candidate> candidate = choose(*cut, more.pipeline, more.choose);
    if (mlir::failed(candidate)) break;
    done = simple(*candidate);
    if (!better(*candidate, *best)) continue;
    best = std::move(candidate);
    module = std::move(cut);
    o.import.microBatches = more.import.microBatches;
  }
  return best;
}

constexpr llvm::StringLiteral kDecisions = "train.decisions";

// The graph of a module that the phase `train` left, before and after sharding. False: an error has been printed.
bool recordGraph(mlir::ModuleOp trained, const CompileOptions& o, PlanGraph& graph) {
  graph.add(trained, "Before sharding");
  mlir::OwningOpRef<mlir::ModuleOp> sharded = trained.clone();
  if (!runPhase(*sharded, o, "zero")) return false;
  graph.add(*sharded, "After sharding");
  return true;
}

// Runs the phases after `train` up to the one asked for; from `plan` on there is a draft. `graph`: where the graph
// goes; null: nowhere. False: an error has been printed.
bool runPhases(mlir::OwningOpRef<mlir::ModuleOp>& module, CompileOptions& o, PlanGraph* graph,
               std::optional<plan_ir::Draft>& draft) {
  mlir::FailureOr<Candidate> chosen = chooseAll(*module->getContext(), module, o);
  if (mlir::failed(chosen)) return false;
  if (!chosen->fits) return fail(tooLarge(*chosen, o)), false;
  o.predictedSeconds = chosen->seconds;
  std::string decision =
      cat("schedule: ", o.import.microBatches > 1 ? cat(o.import.microBatches, " micro-batches, ") : "", chosen->text(),
          "; predicted on ", o.pipeline.profile, ": step ", secondsText(chosen->seconds), ", bound ",
          secondsText(chosen->bound), " (", chosen->boundBy, ")");
  if (!chosen->floorBy.empty()) decision += cat(", floor ", secondsText(chosen->floor), " (", chosen->floorBy, ")");
  if (o.phase == "plan" || o.phase == "emit") {
    if (graph) {
      o.pipeline = chosen->options;
      if (!recordGraph(*module, o, *graph)) return false;
    }
    module = std::move(chosen->module);
    draft = std::move(chosen->draft);
    draft->plan.add_decisions(decision);
    return true;
  }
  mlir::Builder b(module->getContext());
  mlir::Operation* holder = *module;
  llvm::SmallVector<mlir::Attribute> decisions;
  if (auto before = holder->getAttrOfType<mlir::ArrayAttr>(kDecisions)) llvm::append_range(decisions, before);
  decisions.push_back(b.getStringAttr(decision));
  holder->setAttr(kDecisions, b.getArrayAttr(decisions));
  o.pipeline = chosen->options;
  return runPhase(*module, o, "zero") && (o.phase == "zero" || runPhase(*module, o, "fuse"));
}

Status writeText(const std::string& path, const std::string& text) {
  if (path == "-") {
    (void)printBytes(text);
    return {};
  }
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

// The options that decide bits, with what has been chosen for those that were left open.
std::vector<std::string> originOptions(mlir::ModuleOp module, const CompileOptions& o, const options::Given& given,
                                       const plan::Plan& plan) {
  std::map<std::string, std::string> settled{{"--leaves", cat(plan.origin().leaves())},
                                             {"--gemm-epilogues", o.pipeline.gemmEpilogues ? "on" : "off"}};
  if (const int64_t bytes = zero::moduleInteger(module, "zero.bucket_bytes", 0)) settled["--bucket-size"] = cat(bytes);
  for (const plan::KernelImage& image : plan.images())
    if (image.target() == "cpu") settled["--cpu"] = image.cpu();
  return decidingOptions(compileTable(), given, settled);
}

// The line that ends the command: the plan's file, what it is for, and the command that comes next.
void notePlan(const CompileOptions& o, const plan::Plan& plan) {
  const bool trains = plan.body_size() > 0;
  std::string next = cat("sheaf-run ", o.output, trains ? "" : " --eval");
  for (const plan::Input& input : plan.inputs())
    if (plan::isData(input)) next += cat(trains ? " --data " : " --eval-data ", input.name(), "=FILE");
  note(cat(
      "wrote ", writtenPath(o.output), ": ", plan.ranks(), plan.ranks() == 1 ? " rank" : " ranks", ", ZeRO-",
      plan.zero_stage(),
      trains ? cat(", predicted step ", secondsText(o.predictedSeconds), " on the profile ", o.pipeline.profile) : ""));
  note(cat("memory per rank: ", bytesText(plan.memory().peak_bytes()), " and at most ",
           bytesText(plan.memory().library_bytes()), " in libraries"));
  note(cat("next: ", next, trains ? " --steps K" : ""));
}

// `like`: the plan that must compute the same bits, if there is one. `graph`: what follows the plan in its file, if
// anything.
Status writeOut(mlir::ModuleOp module, plan_ir::Draft& draft, const CompileOptions& o, const options::Given& given,
                const plan::Plan* like, const PlanGraph* graph, bool& wroteData) {
  PhaseProgress::phase("compiling kernels and proving the plan");
  Status reported = Status::error("");  // a diagnostic has been printed
  std::vector<std::string> notes;
  if (mlir::failed(codegen::compileKernels(draft, o.targets, notes))) return reported;
  if (o.verbose)
    for (const std::string& note : notes) out::fprintf(stderr, "sheaf: %s\n", note.c_str());
  std::string folder = fs::path(o.model).parent_path().string();
  const unsigned hashThreads = o.noWeightHashes ? 0 : o.targets.threads;
  SHEAF_RETURN_IF_ERROR(codegen::resolveFiles(draft, folder.empty() ? "." : folder, o.output, hashThreads, wroteData));
  plan::Plan* plan = &draft.plan;
  for (std::string& option : originOptions(module, o, given, *plan))
    plan->mutable_origin()->add_options(std::move(option));
  for (std::string& option : givenOptions(compileTable(), given)) plan->add_options(std::move(option));
  SHEAF_RETURN_IF_ERROR(codegen::sealPlan(*plan));
  if (like) {
    Expected<plan::Comparison> comparison = plan::comparePlans(*like, o.like, *plan, o.output);
    if (!comparison.ok()) return comparison.status();
    if (comparison->difference)
      return Status::error(cat(comparison->difference->certain ? "the plan does not compute the same bits as "
                                                               : "the plan is not proved to compute the same bits as ",
                               o.like, " (the first): ", comparison->difference->text()));
    if (!comparison->proved)
      out::fprintf(stderr, "sheaf: note: %s and %s: %s\n", o.like.c_str(), o.output.c_str(),
                   comparison->notes.back().c_str());
  }
  Expected<std::string> section = graph ? graph->bytes() : std::string();
  if (!section.ok()) return section.status();
  SHEAF_RETURN_IF_ERROR(plan::writePlan(o.output, *plan, *section));
  notePlan(o, *plan);
  return {};
}

// Prints what has been decided. What becomes of files after the run is nothing to find out then.
void noteDecisions(mlir::ModuleOp module, const plan::Plan* plan, const CompileOptions& o) {
  if (!o.verbose && !o.pipeline.offload.any() && !o.choose.offload) return;
  std::vector<std::string> decisions;
  if (plan)
    decisions.assign(plan->decisions().begin(), plan->decisions().end());
  else if (auto all = module->getAttrOfType<mlir::ArrayAttr>(kDecisions))
    for (auto decision : all.getAsRange<mlir::StringAttr>()) decisions.push_back(decision.getValue().str());
  for (const std::string& decision : decisions)
    if (o.verbose || decision.starts_with(kFilesDecision))
      out::fprintf(stderr, "sheaf: %s\n", shownLine(decision).c_str());
}

int compile(CompileOptions& options, const options::Given& stated) {
  options::Given given = stated;
  if (!options.ignored.empty() && options.deepSpeed.empty())
    return misuse("--ignore names keys of --deepspeed FILE.json");
  if (!options.deepSpeed.empty())
    if (Status taken =
            takeDeepSpeed(compileTable(), options.deepSpeed, options.import.ranks, options.ignored, given, &options);
        !taken.ok())
      return fail(cat(options.deepSpeed, ": ", taken.message()));
  if (options.format == "onnx" && options.phase == "emit")
    return misuse(
        "--format onnx is for --compile-to import, train, zero, fuse or plan; of a plan's file `sheaf inspect --format "
        "onnx` makes one");
  std::unique_ptr<plan::Plan> like;
  if (!options.like.empty()) {
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(options.like);
    if (!plan.ok()) return fail(cat("--like: ", plan.status().message()));
    like = std::move(*plan);
    if (Status taken = takeOver(compileTable(), *like, options.like, given, &options); !taken.ok())
      return misuse(taken.message());
  }
  if (const auto reduced = options.pipeline.reducePrecision;
      reduced && *reduced != train::Precision::f32 && *reduced != options.pipeline.precision) {
    const std::string word = train::stringifyPrecision(*reduced).str();
    return misuse(cat("--reduce-precision ", word, " needs --precision ", word,
                      ": other gradients are summed in f32 or in their own type"));
  }
  for (const std::string option :
       {"--eval", "--loss", "--optimizer", "--group", "--no-decay", "--lr-schedule", "--clip-norm", "--on-nan",
        "--train", "--freeze", "--batch-norm", "--reduce-precision", "--loss-scale"})
    if (options.evaluationOnly && given.has(option))
      return misuse(
          option == "--eval" || option == "--loss"
              ? "--eval-only compiles the outputs without a loss; to evaluate a loss use --eval without --eval-only"
              : cat(option, " has no use with --eval-only, which compiles no training step"));
  if (given.has("--reduce") && options.microBatches == 1)
    return misuse("--reduce says when the gradients of several micro-batches are reduced; it needs --micro-batches");
  if (options.evaluationOnly && options.microBatches != 1)
    return misuse(
        "--micro-batches has no use with --eval-only, which compiles no training step; give a smaller --batch");
  if (Status status = keepModelFiles(options.model, options.output); !status.ok()) return misuse(status.message());
  if (Status status = complete(options); !status.ok()) return fail(status.message());

  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  DiagnosticPrinter diagnostics(*context);
  PhaseProgress::phase("importing the model");
  mlir::OwningOpRef<mlir::ModuleOp> module = importModel(*context, options, options.phase == "import");
  if (!module) return 1;
  std::unique_ptr<PlanGraph> graph;
  if (options.phase == "emit" && !options.noGraph && !options.evaluationOnly)
    graph = std::make_unique<PlanGraph>(frontend::moduleScopes(options.model));
  std::optional<plan_ir::Draft> draft;
  if (options.phase != "import" && options.phase != "train" && !runPhases(module, options, graph.get(), draft))
    return 1;
  noteDecisions(*module, draft ? &draft->plan : nullptr, options);
  if (options.phase != "emit") {
    std::string text;
    if (options.format == "onnx") {
      text = draft ? frontend::planModel(draft->plan) : frontend::phaseModel(*module);
    } else if (draft) {
      text = plan_ir::textOf(draft->plan) + "\n";
    } else {
      llvm::raw_string_ostream stream(text);
      module->print(stream);
      stream << "\n";
    }
    if (Status written = writeText(options.output, text); !written.ok()) return fail(written.message());
    if (options.output != "-") note(cat("wrote ", writtenPath(options.output), ": the phase ", options.phase));
    return kDone;
  }
  bool wroteData = false;
  if (Status written = writeOut(*module, *draft, options, given, like.get(), graph.get(), wroteData); !written.ok()) {
    if (wroteData) fs::remove(options.output + ".data");
    return written.message().empty() ? 1 : fail(written.message());
  }
  return 0;
}

}  // namespace

Command compileCommand() {
  return command(compileTable(), compile);
}

}  // namespace sheaf::tool
