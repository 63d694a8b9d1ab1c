// sheaf check: whether a model can be trained, with every obstacle at once.
#include <cstdio>
#include <filesystem>

#include "ir/Plan/StepWorkAttribute.h"
#include "passes/plan/Passes.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/exec/Machine.h"
#include "runtime/plan/StepWork.h"
#include "runtime/plan/Summary.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/Fit.h"
#include "tools/sheaf/Try.h"

namespace sheaf::tool {

namespace {

using frontend::Survey;

struct CheckOptions : FitOptions {
  bool tries = false;
  std::vector<io::DataArgument> data;
  CheckOptions() { import.ranks = 1; }
};

options::Table checkTable() {
  using O = CheckOptions;
  using Import = frontend::ImportOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf check",
                       "Says whether a model can be trained: every obstacle at once, what would be trained, and the "
                       "memory and step time that `sheaf fit` prints.",
                       {"sheaf check MODEL.onnx [options]"},
                       Row::positional<&O::model>("MODEL.onnx"),
                       {},
                       "Exit status: 0 if the model can be trained, 1 if something keeps it from that. Only the graph "
                       "is read, not the weights, but with --try: then 0 says that all divisions of the batch compute "
                       "the same, 1 that they do not, and 2 that they could not be tried."};
  table.sections = {
      {"Job",
       {Row::integer<&O::import, &Import::batch>("--batch", "B", 1, kMostBatch,
                                                 "Global batch: rows of a step, shared by the ranks.")
            .defaultsTo("the model's, where it is fixed; else one row a rank"),
        bindingRow<O>(), rowsRow<O>(), constantRow<O>(), lossRow<O>(), optimizerRow<O>(),
        Row::text<&O::import, &Import::train>("--train", "REGEX", "Train only the parameters whose names match."),
        Row::text<&O::import, &Import::freeze>("--freeze", "REGEX",
                                               "Do not train the parameters whose names match; wins over --train."),
        batchNormRow<O>(), precisionRow<O>()}},
      {"Machine",
       {Row::integer<&O::import, &Import::ranks>("--ranks", "N", 1, 65536, "Number of ranks."),
        Row::bytes<&O::memory>("--memory", "Memory of a rank.").defaultsTo("that of --profile, else this machine's"),
        Row::text<&O::pipeline, &PipelineOptions::profile>(
            "--profile", "NAME|FILE",
            "Machine whose step time is predicted, and for whose devices the step is compiled.")}},
      {"Trial",
       {Row::flag<&O::tries>(
            "--try",
            "Train one step on CPU ranks three ways, in f32: one rank; one rank with --leaves N; N ranks, a power of "
            "two. Gradients of the last two must be equal byte for byte. Those of the first two may differ by 1e-3 of "
            "their norm plus 1e-6 of the norm of all; with --batch-norm local they are not compared. This shows that "
            "they are equal for these data. The batch is 2 N rows if --batch is not given."),
        Row::parsed<&O::data>("--data", "NAME=FILE", "what `sheaf-run --data` takes",
                              "Data of --try, as for sheaf-run. May be repeated.", io::parseDataArgument)
            .defaultsTo("random numbers")}},
      {"Output", {Row::flag<&O::json>("--json", "Print JSON.")}}};
  return table;
}

// The phases up to `train`, with what they report as obstacles.
bool runTrainPhases(mlir::OwningOpRef<mlir::ModuleOp>& module, const CheckOptions& options, Survey& survey) {
  mlir::MLIRContext* context = module->getContext();
  mlir::ScopedDiagnosticHandler handler(context, [&](mlir::Diagnostic& diagnostic) {
    bool isError = diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error;
    if (!isError && diagnostic.getSeverity() != mlir::DiagnosticSeverity::Warning) return;
    (isError ? survey.obstacles : survey.notes).push_back(textOf(diagnostic));
  });
  context->printOpOnDiagnostic(false);
  mlir::PassManager passes(context);
  addImportPasses(passes);
  addTrainPasses(passes, options.pipeline);
  passes.addPass(plan_ir::createStateFloor());
  const bool done = mlir::succeeded(passes.run(*module));
  if (auto decisions = module->getOperation()->getAttrOfType<mlir::ArrayAttr>("train.decisions"); done && decisions)
    for (auto decision : decisions.getAsRange<mlir::StringAttr>())
      if (decision.getValue().contains(kNeedsAllRows)) survey.notes.push_back(decision.str());
  if (!done && survey.trainable()) survey.obstacles.push_back("the step cannot be differentiated");
  return done;
}

uint64_t flopsOf(mlir::ModuleOp module) {
  uint64_t flops = 0;
  auto floor = module->getAttrOfType<mlir::DictionaryAttr>("train.floor");
  if (mlir::FailureOr<plan::StepWork> work = plan_ir::stepWorkOf(module, floor); mlir::succeeded(work))
    for (const plan::ProductFlops& products : work->products()) flops += products.flops();
  return flops;
}

std::string nodesText(const Survey::Operator& one) {
  return cat(counted(one.count, "node"), ", ", one.count == 1 ? "" : "the first is ", "'", one.node, "'");
}

json::Array operatorsJson(const std::vector<Survey::Operator>& operators) {
  json::Array list;
  for (const Survey::Operator& one : operators) {
    json::Object object{{"operator", one.name}, {"nodes", one.count}, {"first", one.node}};
    if (one.opset) object.set("opset", one.opset);
    if (!one.why.empty()) object.set("why", one.why);
    list.push_back(std::move(object));
  }
  return list;
}

json::Value parametersJson(const Survey::Parameters& parameters) {
  return json::Object{{"parameters", parameters.count}, {"elements", parameters.elements}, {"bytes", parameters.bytes}};
}

json::Object surveyJson(const CheckOptions& o, const Survey& survey) {
  json::Array obstacles, unbound, losses, missing, notes;
  for (const std::string& text : survey.obstacles) obstacles.push_back(text);
  for (const auto& [name, input] : survey.unbound) unbound.push_back(json::Object{{"name", name}, {"input", input}});
  for (const std::string& loss : survey.losses) losses.push_back(loss);
  for (const Survey::File& file : survey.missing)
    missing.push_back(json::Object{
        {"file", file.name}, {"parameters", file.parameters}, {"bytes", file.needed}, {"exists", file.exists}});
  for (const std::string& note : survey.notes) notes.push_back(note);
  return {{"model", o.model},
          {"nodes", survey.nodes},
          {"opset", survey.opset},
          {"trainable", survey.trainable() && survey.missing.empty()},
          {"unsupported_operators", operatorsJson(survey.unsupported)},
          {"refused_nodes", operatorsJson(survey.refused)},
          {"unbound_dimensions", std::move(unbound)},
          {"other_obstacles", std::move(obstacles)},
          {"possible_losses", std::move(losses)},
          {"missing_files", std::move(missing)},
          {"notes", std::move(notes)},
          {"trained", parametersJson(survey.trained)},
          {"frozen", parametersJson(survey.frozen)},
          {"exact", survey.exact}};
}

// Why a file of weights that exists does not hold them.
std::string whyUnusable(const CheckOptions& o, const Survey::File& file) {
  Expected<MappedFile> opened = MappedFile::open((std::filesystem::path(o.model).parent_path() / file.name).string());
  return opened.ok() ? opened->slice(0, static_cast<uint64_t>(file.needed)).status().message()
                     : opened.status().message();
}

void printOperators(const char* title, const std::vector<Survey::Operator>& operators) {
  if (operators.empty()) return;
  out::printf("%s\n", title);
  for (const Survey::Operator& one : operators) {
    std::string name = one.opset ? cat(one.name, " (opset ", one.opset, ")") : one.name;
    out::printf("  %-28s %s%s%s\n", shownLine(name).c_str(), shownLine(nodesText(one)).c_str(),
                one.why.empty() ? "" : ": ", shownLine(one.why).c_str());
  }
}

void printParameters(const char* name, const Survey::Parameters& parameters, bool exact) {
  out::printf("%s %s%s: %s %s, %s\n", name, exact ? "" : "at most ", counted(parameters.count, "parameter").c_str(),
              countText(static_cast<uint64_t>(parameters.elements)).c_str(),
              plural(parameters.elements, "element").c_str(),
              bytesText(static_cast<uint64_t>(parameters.bytes)).c_str());
}

void printSurvey(const CheckOptions& o, const Survey& survey) {
  out::printf("%s: %s %s, opset %lld\n\n", o.model.c_str(), countText(static_cast<uint64_t>(survey.nodes)).c_str(),
              plural(survey.nodes, "node").c_str(), static_cast<long long>(survey.opset));
  if (survey.trainable() && survey.missing.empty())
    out::printf("It can be trained.\n");
  else
    out::printf("It cannot be trained yet:\n");
  printOperators("Operators that are not supported (`sheaf operators` prints those that are):", survey.unsupported);
  printOperators("Nodes that are not supported as they are:", survey.refused);
  if (!survey.unbound.empty()) out::printf("Dimensions without a size:\n");
  for (const auto& [name, input] : survey.unbound)
    out::printf("  %-28s of input '%s'; give --bind '%s=SIZE'\n", shownLine(name).c_str(), shownLine(input).c_str(),
                shownLine(name).c_str());
  if (!survey.obstacles.empty()) out::printf("To fix:\n");
  for (const std::string& text : survey.obstacles) out::printf("  %s\n", shownLine(text).c_str());
  if (!survey.losses.empty()) out::printf("Possible losses:\n");
  for (const std::string& loss : survey.losses) out::printf("  --loss '%s'\n", shownLine(loss).c_str());
  if (!survey.missing.empty())
    out::printf("Missing weights; put them into the folder of the model, or make new ones by `sheaf init`:\n");
  for (const Survey::File& file : survey.missing)
    out::printf("  %-28s %s, %s%s\n", shownLine(file.name).c_str(), counted(file.parameters, "parameter").c_str(),
                bytesText(static_cast<uint64_t>(file.needed)).c_str(),
                file.exists ? cat("; ", whyUnusable(o, file)).c_str() : "");
  out::printf("\n");
  printParameters("trained:", survey.trained, survey.exact);
  printParameters("frozen: ", survey.frozen, survey.exact);
  for (const std::string& note : survey.notes) out::printf("note:    %s\n", shownLine(note).c_str());
}

constexpr int kNotTried = 2;  // the exit status of a trial that needs something

// The options of `sheaf compile` among those of a trial.
options::Arguments compileOptions(const options::Given& given) {
  options::Arguments arguments;
  for (const char* name : {"--bind", "--rows", "--const", "--loss", "--train", "--freeze", "--batch-norm"})
    if (auto found = given.values.find(name); found != given.values.end())
      for (const std::string& value : found->second) arguments.insert(arguments.end(), {name, value});
  return arguments;
}

// Refuses a trial that cannot be done, and chooses its batch.
Status prepareTrial(mlir::MLIRContext& context, CheckOptions& o) {
  const int64_t ranks = o.import.ranks;
  if (ranks < 2) return Status::error("--try compares one rank with several: give --ranks N, such as 2");
  Survey survey;
  (void)frontend::surveyOnnx(context, o.model, o.import, survey);
  if (o.import.batch == 0 && survey.batchAssumed) o.import.batch = 2 * ranks;
  return {};
}

// Prints the trial, or adds it to `object`. Returns the exit status.
int tryModel(const CheckOptions& o, const options::Given& given, json::Object* object) {
  Expected<Trial> trial = tryDivisions({o.model, o.import, o.data, compileOptions(given)});
  if (!trial.ok()) {
    if (object) object->set("try", json::Object{{"error", trial.status().message()}});
    out::fprintf(stderr, "sheaf: error: --try: %s\n", trial.status().message().c_str());
    return kNotTried;
  }
  object ? object->set("try", trialJson(*trial)) : printTrial(*trial);
  return trial->same() ? kDone : kFailed;
}

int check(CheckOptions& o, const options::Given& given) {
  if (!o.tries && !o.data.empty()) return misuse("--data is for --try");
  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  DiagnosticPrinter diagnostics(*context);
  Survey survey;
  o.import.optimizer = o.optimizer;
  completeLossScale(o);
  if (o.tries)
    if (Status status = prepareTrial(*context, o); !status.ok()) return misuse(status.message());
  mlir::OwningOpRef<mlir::ModuleOp> module = frontend::surveyOnnx(*context, o.model, o.import, survey);
  // A file that cannot be read has no graph to report on.
  const bool loaded = survey.nodes > 0 || survey.opset > 0 || survey.obstacles.size() != 1;
  const int failed = o.tries ? kNotTried : kFailed;
  if (!loaded && !o.json) return fail(cat(o.model, ": ", survey.obstacles.front())), failed;
  // Nothing is imported again from damaged files.
  for (const Survey::File& file : survey.missing)
    if (file.exists) module = {};
  // The batch that the model has may be all there is.
  if (module && o.import.batch == 0)
    o.import.batch = (*module)->getAttrOfType<mlir::IntegerAttr>("train.batch").getInt();
  if (o.memory == 0 && !given.has("--profile")) o.memory = exec::machineMemory();
  if (Status status = complete(o); !status.ok()) return fail(status.message()), failed;
  if (module && !runTrainPhases(module, o, survey)) module = {};
  if (module) setTraining(*module, o);

  std::optional<Fit> fit;
  uint64_t flops = 0;
  if (!o.json) printSurvey(o, survey);
  if (module && !o.tries) {
    flops = flopsOf(*module);
    if (!o.json)
      out::printf("a step:  %s in matrix products, of %s on %s\n\n",
                  plan::flopsText(flops * static_cast<uint64_t>(o.import.ranks)).c_str(),
                  counted(o.import.batch, "row").c_str(), counted(o.import.ranks, "rank").c_str());
    std::fflush(stdout);
    // Notes have been printed: the phases would repeat them for every number of ranks that is tried.
    mlir::ScopedDiagnosticHandler quiet(context.get(), [](mlir::Diagnostic& diagnostic) {
      return mlir::success(diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error);
    });
    fit = layOutStages(*context, o, *module);
    if (!fit) return kFailed;
  }
  if (o.tries) {
    json::Object object = surveyJson(o, survey);
    const bool can = module && survey.missing.empty();
    if (!can)
      out::fprintf(stderr, "sheaf: error: --try: the model cannot be trained on %lld ranks%s%s\n",
                   static_cast<long long>(o.import.ranks), survey.obstacles.empty() ? "" : ": ",
                   survey.obstacles.empty() ? "" : survey.obstacles.front().c_str());
    const int status = can ? tryModel(o, given, o.json ? &object : nullptr) : kNotTried;
    if (o.json) print(json::write(std::move(object), 2) + "\n");
    return status;
  }
  if (o.json) {
    json::Object object = surveyJson(o, survey);
    if (fit) object.set("flops", flops * static_cast<uint64_t>(o.import.ranks));
    if (fit) object.set("fit", fitJson(o, *fit));
    out::printf("%s\n", json::write(std::move(object), 2).c_str());
  } else if (fit) {
    printFit(o, *fit);
  }
  return module && survey.missing.empty() && (!fit || fit->fits()) ? kDone : kFailed;
}

}  // namespace

Command checkCommand() {
  return command(checkTable(), check);
}

}  // namespace sheaf::tool
