// sheaf fit: whether a training run fits a cluster, before any of it is rented.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "llvm/Support/raw_ostream.h"
#include "passes/Choose.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/Json.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Profile.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/Fit.h"

namespace sheaf::tool {

namespace {

options::Table fitTable() {
  using O = FitOptions;
  using Import = frontend::ImportOptions;
  using Row = options::Rows<O>;
  options::Table table{
      "sheaf fit",
      "Prints for each ZeRO stage the memory that a training step needs on a rank, and whether that fits.",
      {"sheaf fit MODEL.onnx --ranks N --memory SIZE [options]"},
      Row::positional<&O::model>("MODEL.onnx"),
      {},
      "The arena of each line is exact: it is that of a plan that was laid out for it. The memory of libraries is an "
      "upper limit on CPUs and an estimate on GPUs. A stage fits if both fit together, as sheaf-run counts them."};
  table.sections = {{"Job",
                     {Row::integer<&O::import, &Import::ranks>("--ranks", "N", 1, 65536, "Number of ranks.")
                          .defaultsTo("")
                          .required("how many ranks are there?"),
                      Row::bytes<&O::memory>("--memory", "Memory per rank.").defaultsTo("that of --profile"),
                      Row::integer<&O::import, &Import::batch>("--batch", "B", 1, kMostBatch,
                                                               "Global batch: rows of a step, shared by the ranks.")
                          .defaultsTo("one row a rank"),
                      nodesRow<O>("auto"),
                      microBatchesRow<O>(" auto: 1."),
                      reduceRow<O>(),
                      bindingRow<O>(),
                      rowsRow<O>(),
                      constantRow<O>(),
                      lossRow<O>(),
                      optimizerRow<O>(),
                      clipRow<O>(),
                      onNanRow<O>(),
                      trainRow<O>(),
                      freezeRow<O>(),
                      batchNormRow<O>(),
                      precisionRow<O>(),
                      offloadRow<O>(),
                      updateOnRow<O>(),
                      hostMemoryRow<O>(),
                      fileSpaceRow<O>(),
                      fileGenerationsRow<O>(),
                      Row::text<&O::pipeline, &PipelineOptions::profile>(
                          "--profile", "NAME|FILE",
                          "Machine whose step time is predicted, and for whose devices the step is compiled.")}},
                    {"Output", {Row::flag<&O::json>("--json", "Print JSON.")}}};
  return table;
}

// Without costs of a network a profile predicts the ranks of one node.
int64_t mostRanks(const profile::Profile& machine) {
  if (machine.withRanks(plan::kMaxRanks).ok()) return plan::kMaxRanks;
  int64_t ranks = 1;
  while (machine.withRanks(ranks + 1).ok()) ++ranks;
  return ranks;
}

bool offloads(const FitOptions& o) {
  return o.offload.automatic || o.offload.spaces.any();
}

// Nothing for `recompute`: with offload, and as much recomputation as is quickest with it.
mlir::FailureOr<Layout> layOut(mlir::ModuleOp trained, FitOptions o, int64_t stage,
                               std::optional<train::Recomputation> recompute) {
  ChooseOptions choices;
  choices.stage = Stages{stage, stage};
  Expected<profile::Profile> machine = schedule::loadProfile(o.pipeline.profile);
  Status settled = machine.ok() ? settleNodes(o, *machine, choices) : machine.status();
  if (!settled.ok()) return trained.emitError(settled.message());
  choices.recompute = recompute;
  choices.memoryLimit = o.memory;
  choices.retention = false;  // what does it take at least?
  choices.wholeMemory = true;
  choices.onCandidate = PhaseProgress::phase;
  if (!recompute) {
    o.pipeline.offload = o.offload.spaces;
    choices.offload = o.offload.automatic;
    choices.updateOn = o.updateOn;
    choices.hostLimit = o.hostMemory, choices.fileLimit = o.fileSpace;
  }
  mlir::FailureOr<Candidate> candidate = choose(trained, o.pipeline, choices);
  if (mlir::failed(candidate)) return mlir::failure();
  Layout layout;
  layout.bytes = candidate->bytes, layout.stateBytes = candidate->stateBytes, layout.besides = candidate->besides;
  layout.hostBytes = candidate->hostBytes, layout.fileBytes = candidate->fileBytes;
  layout.kinds = plan::memoryByKind(candidate->draft.plan);
  layout.seconds = candidate->seconds, layout.exposed = candidate->exposed;
  layout.text = candidate->text();
  layout.fits = candidate->fits;
  layout.plan = std::make_shared<const plan::Plan>(std::move(candidate->draft.plan));
  return layout;
}

// Compiles stage 3 with recomputation of everything for `ranks` ranks, as one group without nodes. One rank has stage
// 0.
mlir::FailureOr<Layout> layOutSmallest(mlir::MLIRContext& context, FitOptions o, int64_t ranks, int64_t batch) {
  o.ranksPerNode = 0;
  o.import.ranks = ranks;
  o.import.batch = batch;
  // The model's warnings have been printed.
  mlir::ScopedDiagnosticHandler quiet(&context, [](mlir::Diagnostic& diagnostic) {
    return mlir::success(diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error);
  });
  mlir::OwningOpRef<mlir::ModuleOp> trained = importModel(context, o);
  if (!trained) return mlir::failure();
  return layOut(*trained, o, ranks > 1 ? 3 : 0, train::Recomputation::all);
}

// The fewest ranks on which stage 3 fits with recomputation, each with the rows that a rank has now; 0: none of those
// that the profile can predict. -1: an error has been printed. State is shared, the rest is the same on any number of
// ranks. So a plan for one number predicts the others, and two plans confirm the result: one that fits, and one on a
// rank less that does not. `known`: the plan for the number that was asked for.
int64_t fewestRanks(mlir::MLIRContext& context, const FitOptions& options, const Layout& known) {
  const int64_t rows = options.import.batch / options.import.ranks;
  const int64_t limit = std::min(options.mostRanks, kMostBatch / rows);
  // Tries after which the range is halved, whatever is expected.
  constexpr int kExpected = 6;
  auto expected = [&](const Layout& layout, int64_t ranks) {
    const uint64_t rest = layout.bytes - std::min(layout.bytes, layout.stateBytes) + layout.besides;
    if (rest >= options.memory) return limit;
    const double shares = static_cast<double>(layout.stateBytes) * static_cast<double>(ranks);
    const double enough = std::ceil(shares / static_cast<double>(options.memory - rest));
    return static_cast<int64_t>(std::clamp(enough, 1.0, static_cast<double>(limit)));
  };
  int64_t failed = 0, enough = 0, next = expected(known, options.import.ranks);
  for (int tries = 1; enough == 0 || enough - failed > 1; ++tries) {
    mlir::FailureOr<Layout> layout = layOutSmallest(context, options, next, next * rows);
    if (mlir::failed(layout)) return -1;
    (layout->fits ? enough : failed) = next;
    if (failed == limit) return 0;
    const int64_t most = enough > 0 ? enough - 1 : limit;
    next = std::clamp(expected(*layout, next), failed + 1, std::max(most, failed + 1));
    if (tries >= kExpected) next = enough > 0 ? (failed + enough) / 2 : std::min(2 * failed, limit);
  }
  return enough;
}

// Returns the smallest number of ranks that fits and divides the model's fixed batch; 0 if there is none, -1 after an
// error. Each divisor is tried: what gathers and libraries need grows with the ranks, so more of them may not fit where
// fewer do.
int64_t fewestSharing(mlir::MLIRContext& context, const FitOptions& options, int64_t batch) {
  for (int64_t ranks = 1; ranks <= std::min(batch, options.mostRanks); ++ranks) {
    if (batch % (ranks * options.import.microBatches) != 0) continue;
    mlir::FailureOr<Layout> layout = layOutSmallest(context, options, ranks, batch);
    if (mlir::failed(layout)) return -1;
    if (layout->fits) return ranks;
  }
  return 0;
}

json::Value layoutJson(const Layout& layout, uint64_t memory) {
  json::Object kinds;
  for (const auto& [kind, bytes] : layout.kinds) kinds.set(plan::word(kind), bytes);
  json::Object object{{"peak_bytes", layout.bytes},
                      {"needed_bytes", layout.needed()},
                      {"fits", layout.fits},
                      {"by_kind", std::move(kinds)},
                      {"step_seconds", layout.seconds},
                      {"exposed_communication_seconds", layout.exposed},
                      {"plan", layout.text}};
  if (!layout.fits && layout.needed() > memory) object.set("missing_bytes", layout.needed() - memory);
  if (layout.hostBytes > 0) object.set("host_bytes", layout.hostBytes);
  if (layout.fileBytes > 0) object.set("file_bytes", layout.fileBytes);
  return object;
}

}  // namespace

json::Value fitJson(const FitOptions& o, const Fit& fit) {
  json::Array list;
  for (const Stage& stage : fit.stages) {
    json::Object entry{{"stage", stage.stage},
                       {"peak_bytes", stage.best().bytes},
                       {"fits", stage.best().fits},
                       {"step_seconds", stage.best().seconds},
                       {"without_recompute", layoutJson(stage.plain, o.memory)},
                       {"with_recompute", layoutJson(stage.recomputed, o.memory)}};
    if (stage.offloaded) entry.set("with_offload", layoutJson(*stage.offloaded, o.memory));
    list.push_back(std::move(entry));
  }
  json::Object root{{"model", o.model},
                    {"ranks", o.import.ranks},
                    {"batch", o.import.batch},
                    {"micro_batches", o.import.microBatches},
                    {"memory", o.memory},
                    {"precision", train::stringifyPrecision(o.pipeline.precision).str()},
                    {"profile", o.pipeline.profile},
                    {"stages", std::move(list)}};
  if (fit.fewest > 0) root.set("smallest_ranks", fit.fewest);
  if (fit.fastest >= 0) {
    json::Object fastest{{"stage", fit.fastest},
                         {"step_seconds", fit.seconds},
                         {"bound_seconds", fit.bound.seconds},
                         {"bound_by", schedule::boundByName(fit.bound.by)},
                         {"resources", resourcesJson(fit.resources)},
                         {"written", wearJson(fit.wear)},
                         {"links", fit.links ? linksJson(*fit.links) : json::Value()}};
    setBaselines(fastest, fit.baselines);
    root.set("fastest", std::move(fastest));
  }
  return root;
}

// "fits" or "1.2 GiB too much".
static std::string verdictOf(const Layout& layout, const FitOptions& o) {
  if (layout.fits) return "fits";
  if (layout.needed() > o.memory) return cat(bytesText(layout.needed() - o.memory), " too much");
  const bool host = o.hostMemory > 0 && layout.hostBytes > o.hostMemory;
  return cat(bytesText(host ? layout.hostBytes - o.hostMemory : layout.fileBytes - o.fileSpace), " too much for ",
             host ? "--host-memory" : "--file-space");
}

// Calls f with the name of the row and the layout, for every layout of a stage.
template <typename F>
static void forEachLayout(const Stage& stage, F f) {
  f("stored", stage.plain);
  f("recomputing", stage.recomputed);
  if (stage.offloaded) f("offloading", *stage.offloaded);
}

// A column for each category, as wide as its heading or a size.
static void printMemory(const std::vector<Stage>& stages) {
  constexpr size_t kSize = 9;
  std::vector<size_t> widths;
  out::printf("memory per rank ");
  auto heading = [&](const std::string& name) {
    widths.push_back(std::max(name.size(), kSize) + 1);
    out::printf("%*s", static_cast<int>(widths.back()), name.c_str());
  };
  for (const auto& [kind, bytes] : stages.front().plain.kinds)
    if (kind != plan::CONSTANTS) heading(plan::word(kind));
  heading("arena");
  heading("libraries");
  out::printf("\n");
  for (const Stage& stage : stages) {
    out::printf("ZeRO-%lld\n", static_cast<long long>(stage.stage));
    forEachLayout(stage, [&](const char* name, const Layout& layout) {
      out::printf("  %-14s", name);
      size_t column = 0;
      auto size = [&](uint64_t bytes) {
        out::printf("%*s", static_cast<int>(widths[column++]), bytesText(bytes).c_str());
      };
      for (const auto& [kind, bytes] : layout.kinds)
        if (kind != plan::CONSTANTS) size(bytes);
      size(layout.bytes);
      size(layout.besides);
      out::printf("\n");
    });
  }
}

static void printSteps(const std::vector<Stage>& stages, const FitOptions& o) {
  out::printf("\npredicted step        step   communication not hidden\n");
  for (const Stage& stage : stages) {
    out::printf("ZeRO-%lld\n", static_cast<long long>(stage.stage));
    forEachLayout(stage, [&](const char* name, const Layout& layout) {
      out::printf("  %-14s%10s   %-27s%s\n", name, secondsText(layout.seconds).c_str(),
                  secondsText(layout.exposed).c_str(), verdictOf(layout, o).c_str());
    });
    if (stage.offloaded) out::printf("    %s\n", stage.offloaded->text.c_str());
  }
}

void printFit(const FitOptions& o, const Fit& fit) {
  const std::vector<Stage>& stages = fit.stages;
  const int64_t fewest = fit.fewest;
  const std::string micro = o.import.microBatches > 1 ? cat(" in ", o.import.microBatches, " micro-batches") : "";
  out::printf("%s on %s with %s each, global batch %lld%s, %s, %s; times on %s\n\n", o.model.c_str(),
              counted(o.import.ranks, "rank").c_str(), bytesText(o.memory).c_str(),
              static_cast<long long>(o.import.batch), micro.c_str(),
              o.optimizer.empty() ? "adamw" : o.optimizer.c_str(),
              train::stringifyPrecision(o.pipeline.precision).str().c_str(), o.pipeline.profile.c_str());
  printMemory(stages);
  printSteps(stages, o);
  printResources(fit.resources, fit.bound, fit.seconds);
  printWear(fit.wear);
  printBaselines(fit.baselines, fit.seconds);
  out::printf("\n%s\n", fit.fits() ? "It fits." : "It does not fit.");
  if (fewest > 0)
    out::printf("Smallest setup that fits%s: %s, with ZeRO-3, recomputation and %s.\n",
                offloads(o) ? " without offload" : "", counted(fewest, "rank").c_str(),
                fit.exportedBatch ? "the model's fixed batch" : "as many rows per rank");
  else if (fit.exportedBatch)
    out::printf(
        "The model has a fixed batch of %s, and no number of ranks%s that divides it fits with ZeRO-3 and "
        "recomputation.\n"
        "Export the model with a dynamic batch to try more ranks.\n",
        counted(fit.exportedBatch, "row").c_str(),
        o.mostRanks < fit.exportedBatch ? cat(" up to ", o.mostRanks).c_str() : "");
  else if (o.mostRanks < plan::kMaxRanks)
    out::printf(
        "It does not fit on up to %s of this size, the most that the profile describes.\nA profile with a "
        "network, such as h100, describes more.\n",
        counted(o.mostRanks, "rank").c_str());
  else
    out::printf(
        "No number of ranks of this size fits: the memory that is not divided among ranks is too much.\nUse fewer rows "
        "per rank, or shorter ones.\n");
}

Status complete(FitOptions& o) {
  o.import.microBatches = std::max<int64_t>(o.microBatches, 1);
  SHEAF_RETURN_IF_ERROR(checkPieces(o.import));
  if (o.import.batch == 0) o.import.batch = o.import.pieces();
  Expected<profile::Profile> machine = schedule::loadProfile(o.pipeline.profile);
  if (!machine.ok()) return machine.status();
  o.mostRanks = mostRanks(*machine);
  if (o.memory == 0) o.memory = machine->memoryBytes();
  ChooseOptions any;
  SHEAF_RETURN_IF_ERROR(settleNodes(o, *machine, any));
  // As `compile --target` does: what calls keep in memory depends on the device.
  o.pipeline.gpu = o.pipeline.gemmEpilogues = machine->isOfGpus();
  o.pipeline.cpu = !machine->isOfGpus();
  o.import.optimizer = o.pipeline.optimizer = o.optimizer;
  o.pipeline.clip = o.clipNorm > 0;
  o.pipeline.skip = o.onNan == plan::Training::SKIP;
  completeLossScale(o);
  return {};
}

// Of two results of a system the better one.
static void keepBest(Baselines& best, const Baselines& others) {
  for (size_t i = 0; i < best.results.size() && i < others.results.size(); ++i)
    if (schedule::better(others.results[i].second, best.results[i].second)) best.results[i] = others.results[i];
}

// What the fastest plan that fits does on the links, and other systems with the same memory.
static Status compare(const FitOptions& options, Fit& fit) {
  const Layout* fastest = nullptr;
  for (const Stage& stage : fit.stages)
    for (const Layout* layout : {&stage.plain, &stage.recomputed, stage.offloaded ? &*stage.offloaded : nullptr})
      if (layout && layout->fits && (!fastest || layout->seconds < fastest->seconds))
        fastest = layout, fit.fastest = stage.stage, fit.seconds = layout->seconds;
  if (!fastest) return {};
  Expected<profile::Profile> loaded = schedule::loadProfile(options.pipeline.profile);
  if (!loaded.ok()) return loaded.status();
  const Expected<profile::Profile> machine = loaded->withRanks(options.import.ranks);
  if (!machine.ok()) return machine.status();
  const plan::Plan& plan = *fastest->plan;
  const schedule::PlanLoop loop = schedule::loopOf(plan, *machine);
  const schedule::Timeline timeline = schedule::play(loop.loop);
  fit.bound = schedule::boundOf(loop.loop, schedule::dataDependences(plan, loop));
  const Links links{schedule::linkUseOf(plan, loop, *machine), timeline.nodeLinkSeconds, timeline.networkSeconds,
                    fit.bound};
  if (machine->nodes(machine->ranks()) > 1) fit.links = links;
  fit.resources = resourcesOf(plan, links, loop, timeline, *machine);
  fit.wear = wearOf(plan, *machine, fit.seconds);
  // Others may do better with the computation of another of our plans at this stage.
  const schedule::BaselineLimits limits(options.memory, options.hostMemory, options.fileSpace);
  auto play = [&](const Layout& layout) {
    return playBaselines(*layout.plan, *machine, schedule::modelOf(*layout.plan, *machine), limits, offloads(options),
                         fit.seconds);
  };
  fit.baselines = play(*fastest);
  const Stage& stage =
      *std::find_if(fit.stages.begin(), fit.stages.end(), [&](const Stage& s) { return s.stage == fit.fastest; });
  if (offloads(options))
    for (const Layout* layout : {&stage.plain, &stage.recomputed})
      if (layout != fastest) keepBest(fit.baselines, play(*layout));
  return {};
}

std::optional<Fit> layOutStages(mlir::MLIRContext& context, const FitOptions& options, mlir::ModuleOp trained) {
  Fit fit;
  for (int64_t stage = 0; stage <= (options.import.ranks > 1 ? 3 : 0); ++stage) {
    mlir::FailureOr<Layout> plain = layOut(trained, options, stage, train::Recomputation::none);
    if (mlir::failed(plain)) return std::nullopt;
    mlir::FailureOr<Layout> recomputed = layOut(trained, options, stage, train::Recomputation::all);
    if (mlir::failed(recomputed)) return std::nullopt;
    fit.stages.push_back({stage, *plain, *recomputed, std::nullopt});
    // `auto` moves nothing where the plan fits as it is.
    const bool pays = !plain->fits && (stage == 1 || stage == 3 || options.import.ranks == 1);
    if (!offloads(options) || !(pays || options.offload.spaces.any())) continue;
    mlir::FailureOr<Layout> offloaded = layOut(trained, options, stage, std::nullopt);
    if (mlir::failed(offloaded)) return std::nullopt;
    fit.stages.back().offloaded = *offloaded;
  }
  if (auto exported = trained->getAttrOfType<mlir::IntegerAttr>("train.exported_batch"))
    fit.exportedBatch = exported.getInt();
  fit.fewest = fit.exportedBatch ? fewestSharing(context, options, fit.exportedBatch)
                                 : fewestRanks(context, options, fit.stages.back().recomputed);
  if (fit.fewest < 0) return std::nullopt;
  if (Status status = compare(options, fit); !status.ok()) {
    (void)fail(status.message());
    return std::nullopt;
  }
  return fit;
}

static int runFit(FitOptions& options, const options::Given& given) {
  if (options.memory == 0 && !given.has("--profile"))
    return misuse(
        "--memory SIZE is missing: how much memory per rank, such as 24GiB? With --profile it is the profile's");
  if (Status status = complete(options); !status.ok()) return fail(status.message());
  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  DiagnosticPrinter diagnostics(*context);
  PhaseProgress::phase("importing the model");
  mlir::OwningOpRef<mlir::ModuleOp> trained = importModel(*context, options);
  if (!trained) return kFailed;
  std::optional<Fit> fit = layOutStages(*context, options, *trained);
  if (!fit) return kFailed;
  if (options.json)
    out::printf("%s\n", json::write(fitJson(options, *fit), 2).c_str());
  else
    printFit(options, *fit);
  return fit->fits() ? kDone : kFailed;
}

Command fitCommand() {
  return command(fitTable(), runFit);
}

}  // namespace sheaf::tool
