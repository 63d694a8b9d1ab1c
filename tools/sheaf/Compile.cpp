// sheaf compile: from an ONNX model to a plan.
#include <cstdio>
#include <filesystem>
#include <set>

#include "codegen/emit/Emit.h"
#include "ir/Plan/PlanProto.h"
#include "llvm/Support/raw_ostream.h"
#include "passes/Choose.h"
#include "passes/plan/Passes.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/Text.h"
#include "runtime/exec/StepScalars.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Profile.h"
#include "tools/sheaf/Arguments.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/Trained.h"

namespace fs = std::filesystem;

namespace sheaf::tool {

static const char kHelp[] = R"(Builds the training step of an ONNX model and the plan of it.

usage: sheaf compile MODEL.onnx -o OUT.plan --batch B [options]

the job
  --ranks N             ranks (default 1)
  --zero auto|0|1|2|3   what the ranks shard: nothing, optimizer, gradients too, parameters too (default: auto, what
                        takes the least predicted time of what fits)
  --batch B             global batch: binds the leading symbolic dimension of the inputs; the ranks share it
  --bind DIM=K          binds another symbolic dimension
  --seed S              of dropout (default 0)
training
  --loss OUTPUT         the scalar output to minimise (default: the only one), or 'cross_entropy(LOGITS)'
  --optimizer NAME[:key=value,...]    sgd, adam or adamw with PyTorch's meaning and defaults (default: adamw)
  --lr-schedule SCHEDULE              constant | cosine:warmup=W,steps=S,min=M
  --clip-norm X         scale gradients so that their global norm is at most X
  --on-nan stop|skip    a gradient that is not finite ends the run, or leaves the state as it was (default: stop)
  --train REGEX, --freeze REGEX       which parameters are trained (freeze wins)
  --precision f32|tf32|bf16           of parameters, activations and gradients in memory (default: f32); with bf16 the
                        optimizer keeps f32 weights, and kernels compute in f32; tf32 is f32 in memory, whose products
                        GPUs may round operands of to TF32
  --reduce-precision bf16|f32         of gradients under --precision bf16, when they are summed over ranks (default: bf16)
  --reduce-order rank|ring            how GPUs sum over ranks: in rank order, whatever the stage and the number of
                        processes (default), or in the order of NCCL's ring; `sheaf-run --reduce-order` overrides it
  --epilogues auto|on|off             matrix products that add biases, apply GELU and its gradient and sum bias gradients
                        themselves, before they round (default: auto, on where a target is a GPU)
the machine
  --target LIST         what kernels are compiled for: cpu (default), cuda:sm_90 or another of NVIDIA's from sm_80 on, or
                        several, as in cpu,cuda:sm_80,cuda:sm_90; the plan runs on the first if nothing else is said
  --cpu NAME            the processor (default: this one); x86-64-v3, x86-64-v4, or any name LLVM knows
  --max-threads-per-rank T            threads that scratch is reserved for (default 8)
memory and schedule; nothing has to be set
  --profile NAME|FILE   the machine to schedule for (default: the shipped profile that is nearest to the first target):
                        a shipped one or one made by `sheaf profile`, whose memory is the limit if there is no other
  --memory-limit SIZE   of a rank's arena, such as 24GiB
  --recompute auto|none|kernels|all   activations computed again in the backward pass: what is needed to fit the limit
                        (default), nothing, what kernels make of products, everything between block ends
  --bucket-size SIZE    parameters that travel together (default: from the model's size)
  --prefetch K          gathers under way beyond those in use (default: what is best)
  --keep auto|none|REGEX              parameters that stay gathered from the forward to the backward pass at stage 3
                        (default: auto, as many as make it faster; with a given stage only within a memory limit)
looking
  --compile-to PHASE    stop after import, train, zero, fuse or plan and write the text to -o ('-': standard output)
  --verbose             what was decided: trained, frozen, constant, tied, lifted
)";

namespace {

struct CompileOptions : TrainedOptions {
  std::string output, phase = "emit";
  codegen::KernelTargets targets;
  ChooseOptions choose;
  std::string profile;
  bool reduces = false;  // --reduce-precision is given
  std::string epilogues = "auto";
  bool verbose = false, help = false;
};

// The shipped profile that is nearest to the device a plan is for.
const char* usualProfile(const codegen::KernelTarget& target) {
  constexpr int kAda = 89, kHopper = 90;
  if (!target.isGpu()) return "cpu";
  return target.architecture >= kHopper ? "h100x8" : target.architecture == kAda ? "rtx4090x8" : "a100x8";
}

Status parse(const std::vector<std::string>& arguments, CompileOptions& o) {
  Arguments parser("compile", "compile MODEL.onnx -o OUT.plan --batch B");
  parser.positional("model", o.model);
  parser.option("-o", o.output);
  parser.option("--ranks", o.import.ranks, 1, 65536);
  parser.option("--zero", [&](const std::string& text) {
    int64_t stage = 0;
    o.choose.stage.reset();
    if (text == "auto") return Status();
    if (!parseInteger(text, stage) || stage < 0 || stage > 3)
      return Status::error(cat("--zero ", text, ": expected auto, 0, 1, 2 or 3"));
    o.choose.stage = stage;
    return Status();
  });
  parser.option("--batch", o.import.batch, 1, int64_t{1} << 32);
  parser.option("--bind", [&](const std::string& text) { return addBinding(text, o.import); });
  parser.option("--seed", o.seed, INT64_MIN, INT64_MAX);
  parser.option("--loss", o.import.loss);
  parser.option("--optimizer", o.optimizer);
  parser.option("--lr-schedule", [&](const std::string& text) {
    Expected<plan::Schedule> schedule = exec::parseSchedule(text);
    if (!schedule.ok()) return schedule.status();
    o.schedule = *schedule;
    return Status();
  });
  parser.option("--clip-norm", [&](const std::string& text) {
    if (parseReal(text, o.clipNorm) && o.clipNorm > 0) return Status();
    return Status::error(cat("--clip-norm ", text, ": expected a number above 0"));
  });
  parser.option("--on-nan", [&](const std::string& text) { return plan::parseWord("--on-nan", text, o.onNan); });
  parser.option("--train", [&](const std::string& text) { return o.import.train.push_back(text), Status(); });
  parser.option("--freeze", [&](const std::string& text) { return o.import.freeze.push_back(text), Status(); });
  parser.option("--precision",
                [&](const std::string& text) { return parseEnum("--precision", text, o.pipeline.precision); });
  parser.option("--reduce-precision", [&](const std::string& text) {
    o.reduces = true;
    SHEAF_RETURN_IF_ERROR(parseEnum("--reduce-precision", text, o.pipeline.reducePrecision));
    if (o.pipeline.reducePrecision != train::Precision::tf32) return Status();
    return Status::error("--reduce-precision tf32: gradients are summed in f32 or bf16");
  });
  parser.option("--reduce-order",
                [&](const std::string& text) { return plan::parseWord("--reduce-order", text, o.reduceOrder); });
  parser.option("--epilogues", [&](const std::string& text) {
    o.epilogues = text;
    return oneOf("--epilogues", text, {"auto", "on", "off"});
  });
  parser.option("--target", [&](const std::string& text) {
    std::string error;
    mlir::FailureOr<std::vector<codegen::KernelTarget>> targets = codegen::parseTargets(text, error);
    if (mlir::failed(targets)) return Status::error(cat("--target ", text, ": ", error));
    o.targets.list = std::move(*targets);
    o.pipeline.cpu = o.targets.hasCpu();
    o.pipeline.gpu = o.targets.hasGpu();
    return Status();
  });
  parser.option("--cpu", o.targets.cpu);
  parser.option("--max-threads-per-rank", o.pipeline.maxThreads, 1, 1024);
  parser.bytes("--bucket-size", [&](uint64_t value) { o.pipeline.bucketBytes = static_cast<int64_t>(value); });
  parser.bytes("--memory-limit", [&](uint64_t value) { o.choose.memoryLimit = value; });
  parser.option("--profile", o.profile);
  parser.option("--prefetch", o.pipeline.prefetch, 0, 1 << 20);
  parser.option("--keep", [&](const std::string& text) {
    o.choose.retention = text == "auto";
    o.pipeline.keep = text == "auto" || text == "none" ? "" : text;
    return Status();
  });
  parser.option("--recompute", [&](const std::string& text) {
    o.choose.recompute = train::symbolizeRecomputation(text);
    if (o.choose.recompute || text == "auto") return Status();
    return Status::error(
        cat("--recompute ", text, ": expected one of auto, ", listText(train::enumWords<train::Recomputation>())));
  });
  parser.option("--compile-to", [&](const std::string& text) {
    o.phase = text;
    return oneOf("--compile-to", text, {"import", "train", "zero", "fuse", "plan", "emit"});
  });
  parser.flag("--verbose", o.verbose);
  SHEAF_RETURN_IF_ERROR(parser.parse(arguments));
  o.help = parser.help;
  if (o.help) return {};
  if (o.output.empty()) return Status::error("-o OUT.plan is missing: where is the plan to be written?");
  if (o.reduces && o.pipeline.precision != train::Precision::bf16 &&
      o.pipeline.reducePrecision == train::Precision::bf16)
    return Status::error("--reduce-precision bf16 needs --precision bf16: f32 gradients are summed in f32");
  o.pipeline.epilogues = o.epilogues == "on" || (o.epilogues == "auto" && o.pipeline.gpu);
  o.import.optimizer = o.optimizer;
  o.pipeline.optimizer = o.optimizer;
  o.pipeline.clip = o.clipNorm > 0;
  o.pipeline.skip = o.onNan == plan::Training::SKIP;
  o.pipeline.profile = usualProfile(o.targets.list.front());
  if (!o.profile.empty()) {
    o.pipeline.profile = o.profile;
    Expected<profile::Profile> profile = schedule::loadProfile(o.profile);
    if (!profile.ok()) return profile.status();
    if (o.choose.memoryLimit == 0) o.choose.memoryLimit = profile->memoryBytes();
  }
  return {};
}

bool runPhase(mlir::ModuleOp module, const CompileOptions& o, const std::string& phase) {
  mlir::PassManager passes(module.getContext());
  if (phase == "zero") addZeroPasses(passes, o.pipeline);
  if (phase == "fuse") addFusePasses(passes);
  return mlir::succeeded(passes.run(module));
}

// Why no candidate is good enough, and what would be.
std::string tooLarge(const Candidate& least, const CompileOptions& o) {
  return cat("the plan does not fit ", bytesText(o.choose.memoryLimit), " a rank: ", least.text(), " takes ",
             bytesText(least.bytes), ", ", bytesText(least.bytes - o.choose.memoryLimit), " (",
             least.bytes - o.choose.memoryLimit, " bytes) too much; use more --ranks, a smaller --batch",
             o.choose.stage && *o.choose.stage < 3 ? ", --zero auto" : "",
             o.choose.recompute ? ", --recompute auto" : "", ", or see `sheaf fit`");
}

// Runs the phases after `train` up to the one asked for. False: an error has been printed.
bool runPhases(mlir::OwningOpRef<mlir::ModuleOp>& module, CompileOptions& o) {
  mlir::FailureOr<Candidate> chosen = choose(*module, o.pipeline, o.choose);
  if (mlir::failed(chosen)) return false;
  if (!chosen->fits) return fail(tooLarge(*chosen, o)), false;
  mlir::Builder b(module->getContext());
  std::string decision =
      cat("schedule: ", chosen->text(), "; predicted on ", o.pipeline.profile, ": step ", secondsText(chosen->seconds),
          ", bound ", secondsText(chosen->bound), " (", chosen->boundBy, ")");
  auto decide = [&](mlir::Operation* holder, const char* name) {
    llvm::SmallVector<mlir::Attribute> all;
    if (auto decisions = holder->getAttrOfType<mlir::ArrayAttr>(name)) all.append(decisions.begin(), decisions.end());
    all.push_back(b.getStringAttr(decision));
    holder->setAttr(name, b.getArrayAttr(all));
  };
  if (o.phase == "plan" || o.phase == "emit") {
    module = std::move(chosen->module);
    decide(*module->getOps<plan_ir::ProgramOp>().begin(), "decisions");
    return true;
  }
  decide(*module, "train.decisions");
  o.pipeline = chosen->options;
  return runPhase(*module, o, "zero") && (o.phase == "zero" || runPhase(*module, o, "fuse"));
}

Status writeText(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

Status writeOut(mlir::ModuleOp module, const CompileOptions& o, bool& wroteData) {
  auto program = *module.getOps<plan_ir::ProgramOp>().begin();
  Status reported = Status::error("");  // a diagnostic has been printed
  std::vector<std::string> notes;
  if (mlir::failed(codegen::compileKernels(program, o.targets, notes))) return reported;
  if (o.verbose)
    for (const std::string& note : notes) std::fprintf(stderr, "sheaf: %s\n", note.c_str());
  std::string folder = fs::path(o.model).parent_path().string();
  if (mlir::failed(codegen::resolveFiles(program, folder.empty() ? "." : folder, o.output, wroteData))) return reported;
  mlir::FailureOr<plan::Plan> plan = plan_ir::toProto(program);
  if (mlir::failed(plan)) return reported;
  plan::Memory& memory = *plan->mutable_memory();
  memory.set_library_bytes(plan::libraryBytes(*plan));
  for (const auto& [kind, bytes] : plan::memoryByKind(*plan)) {
    plan::KindBytes* held = memory.add_by_kind();
    held->set_kind(kind);
    held->set_bytes(bytes);
  }
  plan::digestTables(*plan);
  // What the compiler emits must pass what the runtime demands.
  Status verified = plan::verifyPlan(*plan);
  if (verified.ok()) verified = plan::provePlan(*plan);
  if (verified.ok()) verified = plan::requireDigests(*plan);
  if (!verified.ok())
    return Status::error("the compiler made a plan that does not verify; please report this: " + verified.message());
  return plan::writePlan(o.output, *plan);
}

}  // namespace

int compile(const std::vector<std::string>& arguments) {
  CompileOptions options;
  if (Status parsed = parse(arguments, options); !parsed.ok()) return fail(parsed.message());
  if (options.help) return help(kHelp);

  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  DiagnosticPrinter diagnostics(*context);
  mlir::OwningOpRef<mlir::ModuleOp> module = importModel(*context, options, options.phase == "import");
  if (!module) return 1;
  if (options.phase != "import" && options.phase != "train" && !runPhases(module, options)) return 1;
  if (options.verbose) {
    mlir::Operation* holder = module->getOperation();
    for (auto program : module->getOps<plan_ir::ProgramOp>()) holder = program;
    for (const char* name : {"train.decisions", "decisions"})
      if (auto decisions = holder->getAttrOfType<mlir::ArrayAttr>(name))
        for (auto decision : decisions.getAsRange<mlir::StringAttr>())
          std::fprintf(stderr, "sheaf: %s\n", decision.getValue().str().c_str());
  }
  if (options.phase != "emit") {
    std::string text;
    llvm::raw_string_ostream stream(text);
    module->print(stream);
    if (Status written = writeText(options.output, text + "\n"); !written.ok()) return fail(written.message());
    return 0;
  }
  bool wroteData = false;
  if (Status written = writeOut(*module, options, wroteData); !written.ok()) {
    if (wroteData) fs::remove(options.output + ".data");
    return written.message().empty() ? 1 : fail(written.message());
  }
  return 0;
}

}  // namespace sheaf::tool
