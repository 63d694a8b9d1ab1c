// sheaf compile: from an ONNX model to a plan.
#include <cstdio>
#include <filesystem>
#include <set>

#include "codegen/emit/Emit.h"
#include "frontend/onnx/Import.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "passes/Pipeline.h"
#include "passes/plan/Passes.h"
#include "runtime/base/Text.h"
#include "runtime/exec/StepScalars.h"
#include "runtime/io/AtomicFile.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"
#include "tools/sheaf/Arguments.h"
#include "tools/sheaf/Diagnostics.h"

namespace fs = std::filesystem;

namespace sheaf::tool {

static const char kHelp[] = R"(Builds the training step of an ONNX model and the plan of it.

usage: sheaf compile MODEL.onnx -o OUT.plan --batch B [options]

the job
  --ranks N             ranks (default 1)
  --zero 0|1|2|3        what the ranks shard: nothing, optimizer, gradients too, parameters too (default 0)
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
  --precision f32|bf16  of parameters, activations and gradients in memory (default: f32); with bf16 the optimizer keeps
                        f32 weights, and kernels compute in f32
  --reduce-precision bf16|f32         of gradients under --precision bf16, when they are summed over ranks (default: bf16)
the machine
  --target cpu          what kernels are compiled for (default: cpu)
  --cpu NAME            the processor (default: this one); x86-64-v3, x86-64-v4, or any name LLVM knows
  --max-threads-per-rank T            threads that scratch is reserved for (default 8)
  --bucket-size BYTES   parameters that travel together (default: from the model's size)
looking
  --compile-to PHASE    stop after import, train, zero, fuse or plan and write the text to -o ('-': standard output)
  --verbose             what was decided: trained, frozen, constant, tied, lifted
)";

namespace {

struct CompileOptions {
  std::string model, output, phase = "emit", target = "cpu", cpu = "host", onNan = "stop", optimizer;
  frontend::ImportOptions import;
  PipelineOptions pipeline;
  plan::Schedule schedule;
  double clipNorm = 0;
  int64_t seed = 0;
  bool reduces = false;  // --reduce-precision is given
  bool verbose = false, help = false;
};

const char* const kPhases[] = {"import", "train", "zero", "fuse", "plan", "emit"};

Status oneOf(const std::string& option, const std::string& value, std::initializer_list<const char*> allowed) {
  std::vector<std::string> names(allowed.begin(), allowed.end());
  for (const std::string& name : names)
    if (value == name) return {};
  return Status::error(cat(option, " ", value, ": expected one of ", listText(names)));
}

Status parse(const std::vector<std::string>& arguments, CompileOptions& o) {
  Arguments parser("compile", "compile MODEL.onnx -o OUT.plan --batch B");
  o.schedule.set_kind("constant");
  parser.positional("model", o.model);
  parser.option("-o", o.output);
  parser.option("--ranks", o.import.ranks, 1, 65536);
  parser.option("--zero", o.pipeline.stage, 0, 3);
  parser.option("--batch", o.import.batch, 1, int64_t{1} << 32);
  parser.option("--bind", [&](const std::string& text) {
    size_t equals = text.find('=');
    int64_t size = 0;
    if (equals == 0 || equals == std::string::npos || !parseInteger(text.substr(equals + 1), size) || size < 1)
      return Status::error(cat("--bind ", text, ": expected DIM=K with K of at least 1"));
    o.import.bind.emplace_back(text.substr(0, equals), size);
    return Status();
  });
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
  parser.option("--on-nan", [&](const std::string& text) {
    o.onNan = text;
    return oneOf("--on-nan", text, {"stop", "skip"});
  });
  parser.option("--train", [&](const std::string& text) { return o.import.train.push_back(text), Status(); });
  parser.option("--freeze", [&](const std::string& text) { return o.import.freeze.push_back(text), Status(); });
  parser.option("--precision", [&](const std::string& text) {
    o.pipeline.precision = text;
    return oneOf("--precision", text, {"f32", "bf16"});
  });
  parser.option("--reduce-precision", [&](const std::string& text) {
    o.pipeline.reducePrecision = text;
    o.reduces = true;
    return oneOf("--reduce-precision", text, {"f32", "bf16"});
  });
  parser.option("--target", [&](const std::string& text) { return oneOf("--target", text, {"cpu"}); });
  parser.option("--cpu", o.cpu);
  parser.option("--max-threads-per-rank", o.pipeline.maxThreads, 1, 1024);
  parser.option("--bucket-size", o.pipeline.bucketBytes, 1, int64_t{1} << 40);
  parser.option("--compile-to", [&](const std::string& text) {
    o.phase = text;
    return oneOf("--compile-to", text, {"import", "train", "zero", "fuse", "plan", "emit"});
  });
  parser.flag("--verbose", o.verbose);
  SHEAF_RETURN_IF_ERROR(parser.parse(arguments));
  o.help = parser.help;
  if (o.help) return {};
  if (o.output.empty()) return Status::error("-o OUT.plan is missing: where is the plan to be written?");
  if (o.reduces && o.pipeline.precision == "f32" && o.pipeline.reducePrecision == "bf16")
    return Status::error("--reduce-precision bf16 needs --precision bf16: f32 gradients are summed in f32");
  o.import.optimizer = o.optimizer;
  o.pipeline.optimizer = o.optimizer;
  o.pipeline.clip = o.clipNorm > 0;
  o.pipeline.skip = o.onNan == "skip";
  return {};
}

void setTraining(mlir::ModuleOp module, const CompileOptions& o) {
  mlir::Builder b(module.getContext());
  auto rate = module->getAttrOfType<mlir::FloatAttr>("train.lr");
  // Without an option: adamw, or the rules that the model brought, which carry other names.
  bool own = !module.lookupSymbol<train::OptimizerOp>("optimizer");
  std::string optimizer = !o.optimizer.empty() ? o.optimizer : own ? "the model's own" : "adamw";
  auto named = [&](llvm::StringRef name, mlir::Attribute value) { return b.getNamedAttr(name, value); };
  module->setAttr(
      "train.training",
      b.getDictionaryAttr({named("optimizer", b.getStringAttr(optimizer)),
                           named("learning_rate", b.getF64FloatAttr(rate ? rate.getValueAsDouble() : 0)),
                           named("schedule", b.getStringAttr(o.schedule.kind())),
                           named("warmup", b.getI64IntegerAttr(o.schedule.warmup())),
                           named("steps", b.getI64IntegerAttr(o.schedule.steps())),
                           named("min", b.getF64FloatAttr(o.schedule.min())),
                           named("clip_norm", b.getF64FloatAttr(o.clipNorm)), named("on_nan", b.getStringAttr(o.onNan)),
                           named("seed", b.getI64IntegerAttr(o.seed))}));
  module->removeAttr("train.lr");
}

// Runs the phases up to the one asked for.
bool runPhases(mlir::ModuleOp module, const CompileOptions& o) {
  for (const std::string phase : kPhases) {
    mlir::PassManager passes(module.getContext());
    if (phase == "import") addImportPasses(passes);
    if (phase == "train") addTrainPasses(passes, o.pipeline);
    if (phase == "zero") addZeroPasses(passes, o.pipeline);
    if (phase == "fuse") addFusePasses(passes);
    if (phase == "plan") addPlanPasses(passes, o.pipeline);
    if (mlir::failed(passes.run(module))) return false;
    if (phase == "train") setTraining(module, o);
    if (phase == o.phase) break;
  }
  return true;
}

Status writeText(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  Expected<io::AtomicFile> file = io::AtomicFile::create(path);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

Status writeOut(mlir::ModuleOp module, const CompileOptions& o, bool& wroteData) {
  auto program = *module.getOps<plan_ir::ProgramOp>().begin();
  codegen::CpuTargetOptions target;
  target.cpu = o.cpu;
  Status reported = Status::error("");  // a diagnostic has been printed
  if (mlir::failed(codegen::compileKernels(program, target))) return reported;
  std::string folder = fs::path(o.model).parent_path().string();
  if (mlir::failed(codegen::resolveFiles(program, folder.empty() ? "." : folder, o.output, wroteData))) return reported;
  mlir::FailureOr<plan::Plan> plan = codegen::toProto(program);
  if (mlir::failed(plan)) return reported;
  plan::Memory& memory = *plan->mutable_memory();
  memory.set_library_bytes(plan::libraryBytes(*plan));
  for (const auto& [kind, bytes] : plan::memoryByKind(*plan)) (*memory.mutable_by_kind())[kind] = bytes;
  // What the compiler emits must pass what the runtime demands.
  Status verified = plan::verifyPlan(*plan);
  if (verified.ok()) verified = plan::provePlan(*plan);
  if (!verified.ok())
    return Status::error("the compiler made a plan that does not verify; please report this: " + verified.message());
  return plan::writePlan(o.output, *plan);
}

}  // namespace

int compile(const std::vector<std::string>& arguments) {
  CompileOptions options;
  if (Status parsed = parse(arguments, options); !parsed.ok()) return fail(parsed.message());
  if (options.help) return help(kHelp);

  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, train::TrainDialect, zero::ZeroDialect, plan_ir::PlanDialect>();
  mlir::MLIRContext context(registry);
  context.loadAllAvailableDialects();
  DiagnosticPrinter diagnostics(context);

  mlir::OwningOpRef<mlir::ModuleOp> module = frontend::importOnnx(context, options.model, options.import);
  if (!module) return 1;
  if (!runPhases(*module, options)) return 1;
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
