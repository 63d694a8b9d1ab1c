#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "frontend/onnx/importer/Import.h"
#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Pipeline.h"
#include "test/fuzz/ModelMutator.h"
#include "test/fuzz/Targets.h"
#include "tools/sheaf/Command.h"

namespace fs = std::filesystem;

namespace sheaf::fuzz {
namespace {

// A model, and the other files of its folder.
struct ModelSeed {
  std::string bytes;
  onnx::ModelProto model;
  std::vector<Seed> others;
};
using Seeds = std::vector<ModelSeed>;

ModelSeed modelSeed(const Seed& seed) {
  ModelSeed result{seed.bytes, {}, {}};
  if (!result.model.ParseFromString(seed.bytes)) {
    std::fprintf(stderr, "%s is not an ONNX model\n", seed.path.c_str());
    std::exit(2);
  }
  return result;
}

Seeds readModels(const std::string& folder) {
  Seeds models;
  for (const Seed& seed : readSeeds(folder)) models.push_back(modelSeed(seed));
  return models;
}

// Folders of training_model.onnx, optimizer_model.onnx and checkpoint.
Seeds readArtifacts(const std::string& folder) {
  Seeds models;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("scratch")) continue;
    std::vector<Seed> files = readSeeds(entry.path().string());
    for (Seed& seed : files) seed.path = fs::path(seed.path).filename().string();
    auto model =
        std::find_if(files.begin(), files.end(), [](const Seed& s) { return s.path == "training_model.onnx"; });
    models.push_back(modelSeed(*model));
    files.erase(model);
    models.back().others = std::move(files);
  }
  return models;
}

struct Corpus {
  Seeds small, nodes, families, artifacts;
  std::vector<const onnx::ModelProto*> models() const {
    std::vector<const onnx::ModelProto*> all;
    for (const Seeds* seeds : {&small, &nodes, &families, &artifacts})
      for (const ModelSeed& seed : *seeds) all.push_back(&seed.model);
    return all;
  }
};

std::string mutated(const ModelSeed& seed, const ModelMutator& mutator, Random& random) {
  if (random.oneIn(32)) return mutateBytes(seed.bytes, random);
  if (random.oneIn(8)) return mutateWire(seed.bytes, random);
  onnx::ModelProto model = seed.model;
  mutator.mutate(model, random);
  std::string bytes = model.SerializeAsString();
  return random.oneIn(16) ? mutateWire(bytes, random) : bytes;
}

frontend::ImportOptions importOptions(bool fixedBatch, Random& random) {
  frontend::ImportOptions options;
  options.batch = random.oneIn(8) == fixedBatch ? 8 : 0;
  options.ranks = random.oneIn(fixedBatch ? 16 : 2) ? 2 : 1;
  static constexpr const char* kLosses[] = {"cross_entropy(logits)", "cross_entropy(logits, label_smoothing=0.1)",
                                            "mse(logits)",           "bce_with_logits(logits)",
                                            "kl_div(logits)",        "loss"};
  if (random.oneIn(fixedBatch ? 64 : 8)) options.loss = kLosses[random.below(std::size(kLosses))];
  using Mode = frontend::ImportOptions::BatchNorm;
  static constexpr Mode kModes[] = {Mode::automatic, Mode::sync, Mode::local, Mode::eval};
  options.batchNorm = kModes[random.below(std::size(kModes))];
  using Form = frontend::Form;
  options.form = !random.oneIn(8) ? Form::kTraining : random.oneIn(2) ? Form::kEvaluation : Form::kOutputs;
  if (random.oneIn(64)) options.freeze = {".*b"};
  return options;
}

// An error that says nothing, or more errors than one, is a finding like a crash.
void expectOneError(bool imported, int errors) {
  if (errors == (imported ? 0 : 1)) return;
  std::fprintf(stderr, "%s with %d errors\n", imported ? "imported" : "refused", errors);
  std::abort();
}

// What `sheaf compile` does, to the end.
void compile(const std::string& model, const frontend::ImportOptions& import, Random& random) {
  const std::string plan = model + ".plan";
  std::vector<std::string> texts{model,
                                 "-o",
                                 plan,
                                 "--ranks",
                                 std::to_string(import.ranks),
                                 "--zero",
                                 std::to_string(random.below(4)),
                                 "--no-weight-hashes"};
  if (import.batch) texts.insert(texts.end(), {"--batch", std::to_string(import.batch)});
  if (import.form == frontend::Form::kOutputs) texts.push_back("--eval-only");
  if (import.form == frontend::Form::kEvaluation) texts.insert(texts.end(), "--eval");
  std::freopen("/dev/null", "w", stdout);
  if (tool::compileCommand().run({texts.begin(), texts.end()}) == tool::kMisused) std::abort();
  std::error_code error;
  fs::remove(plan, error);
  fs::remove(plan + ".data", error);
}

void importAndLower(const std::string& path, bool fixedBatch, Random& random) {
  mlir::DialectRegistry registry;
  registry.insert<train::TrainDialect, zero::ZeroDialect, mlir::func::FuncDialect>();
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  int errors = 0;
  mlir::ScopedDiagnosticHandler count(&context, [&](mlir::Diagnostic& diagnostic) {
    if (diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error) return mlir::success();
    ++errors;
    std::fprintf(stderr, "%s\n", diagnostic.str().c_str());
    return mlir::success();
  });
  const frontend::ImportOptions options = importOptions(fixedBatch, random);
  // A survey goes on after errors. What it calls trainable is what an import takes.
  frontend::Survey survey;
  const bool surveyed = options.form == frontend::Form::kTraining && random.oneIn(2);
  mlir::OwningOpRef<mlir::ModuleOp> module =
      surveyed ? frontend::surveyOnnx(context, path, options, survey) : frontend::importOnnx(context, path, options);
  if (surveyed && survey.trainable() != bool(module)) std::abort();
  if (!surveyed) expectOneError(bool(module), errors);
  if (!module) return;
  if (mlir::failed(mlir::verify(*module))) std::abort();  // an import that is not refused is valid
  PipelineOptions pipeline;
  pipeline.stage = static_cast<int64_t>(random.below(4));
  pipeline.clip = random.oneIn(4);
  mlir::PassManager passes(&context);
  addImportPasses(passes);
  if (options.form == frontend::Form::kTraining)
    addTrainPasses(passes, pipeline);
  else
    addEvaluationPasses(passes, pipeline);
  if (options.form == frontend::Form::kTraining) addZeroPasses(passes, pipeline);
  const bool lowered = mlir::succeeded(passes.run(*module));
  if (lowered && random.oneIn(64)) compile(path, options, random);
}

}  // namespace

Target onnxTarget(const std::string& corpus) {
  auto seeds = std::make_shared<Corpus>(Corpus{readModels(corpus + "/onnx"), readModels(corpus + "/onnx-nodes"),
                                               readModels(corpus + "/onnx-families"),
                                               readArtifacts(corpus + "/onnx-artifacts")});
  auto mutator = std::make_shared<ModelMutator>(seeds->models());
  return {"onnx", 6, [=](Random& random) {
            const uint64_t kind = random.below(32);
            const Seeds& from = kind == 0   ? seeds->families
                                : kind <= 3 ? seeds->artifacts
                                : kind <= 8 ? seeds->small
                                            : seeds->nodes;
            const ModelSeed& seed = from[random.below(from.size())];
            // One of the files of artifacts is changed.
            const size_t changed = random.below(3 + seed.others.size());
            const std::string folder = scratch(corpus, seed.others.empty() ? "model" : "artifacts");
            fs::create_directories(folder);
            const std::string path = folder + "/model.onnx";
            writeWhole(path, changed < 3 ? mutated(seed, *mutator, random) : seed.bytes);
            for (size_t i = 0; i < seed.others.size(); ++i) {
              const Seed& other = seed.others[i];
              const bool wire = other.path.ends_with(".onnx") && !random.oneIn(4);
              writeWhole(folder + "/" + other.path, i + 3 != changed ? other.bytes
                                                    : wire           ? mutateWire(other.bytes, random)
                                                                     : mutateBytes(other.bytes, random));
            }
            importAndLower(path, /*fixedBatch=*/&from == &seeds->nodes, random);
          }};
}

}  // namespace sheaf::fuzz
