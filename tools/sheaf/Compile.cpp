// sheaf compile: from an ONNX model to a plan.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "codegen/emit/Emit.h"
#include "frontend/onnx/export/PhaseModel.h"
#include "frontend/onnx/importer/ModuleScopes.h"
#include "ir/Plan/Text.h"
#include "llvm/Support/raw_ostream.h"
#include "passes/StepModule.h"
#include "passes/plan/Passes.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Same.h"
#include "runtime/plan/Types.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/CompileOptions.h"
#include "tools/sheaf/DeepSpeed.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/Like.h"
#include "tools/sheaf/ModelFiles.h"
#include "tools/sheaf/PlanGraph.h"

namespace fs = std::filesystem;

namespace sheaf::tool {

namespace {

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

// Warns of each file of initial weights that is not there. Returns whether there is one.
bool warnOfMissingFiles(const CompileOptions& o, const plan::Plan& plan) {
  bool missing = false;
  for (int i = 0; i < plan.files_size(); ++i) {
    const fs::path path = (fs::path(o.output).parent_path() / plan.files(i).path()).lexically_normal();
    const auto parameters = std::count_if(plan.parameters().begin(), plan.parameters().end(), [&](const auto& p) {
      return p.has_source() && p.source().length() > 0 && int(p.source().file()) == i;
    });
    std::error_code ignored;
    if (plan.files(i).size() > 0 || parameters == 0 || fs::exists(path, ignored)) continue;
    missing = true;
    const std::string folder = path.parent_path().empty() ? "." : path.parent_path().string();
    out::fprintf(stderr, "sheaf: warning: %s\n",
                 shownLine(cat(path.filename().string(), ", which has ", counted(parameters, "parameter"),
                               ", is missing from ", folder, "/: copy it there, or make new weights by `sheaf init ",
                               shellPath(o.output), " -o W.safetensors`"))
                     .c_str());
  }
  return missing;
}

// The line that ends the command: the plan's file, what it is for, and the command that comes next.
void notePlan(const CompileOptions& o, const plan::Plan& plan) {
  const bool trains = plan.body_size() > 0;
  std::string next = cat("sheaf-run ", shellPath(o.output), trains ? "" : " --eval");
  if (warnOfMissingFiles(o, plan)) next += " --weights W.safetensors";
  for (const plan::Input& input : plan.inputs())
    if (plan::isData(input)) next += cat(trains ? " --data " : " --eval-data ", shellWord(input.name() + "=FILE"));
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
  if (Status status = checkTogether(options, given); !status.ok()) return misuse(status.message());
  if (Status status = checkUses(options, stated); !status.ok()) return misuse(status.message());
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
