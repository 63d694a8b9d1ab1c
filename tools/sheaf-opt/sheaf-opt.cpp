// The MLIR driver with Sheaf's dialects and passes, and with the steps that make a plan, for tests and for looking at
// one pass at a time. It reads and prints modules, and the text of plans.
#include <cstdio>

#include "ir/FatalErrors.h"
#include "ir/Plan/Text.h"
#include "ir/Plan/TextLexer.h"
#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/ToolOutputFile.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"
#include "passes/StepModule.h"
#include "passes/plan/Passes.h"
#include "passes/plan/Steps.h"
#include "passes/train/Passes.h"
#include "passes/zero/Passes.h"
#include "runtime/base/Print.h"
#include "runtime/base/StandardStreams.h"
#include "runtime/base/Text.h"

namespace sheaf {
namespace {

struct Request {
  const plan_ir::Step* step;
  plan_ir::StepArguments arguments;
};

int fail(const std::string& message) {
  out::fprintf(stderr, "sheaf-opt: error: %s\n", message.c_str());
  return EXIT_FAILURE;
}

// The work that the command line asks for.
struct Work {
  std::vector<Request> steps;  // in their order
  std::string pass;            // the name of one of the passes on modules; empty: there are none
};

// Takes the steps out of the command line.
Expected<Work> takeSteps(std::vector<char*>& words) {
  Work work;
  std::vector<Request>& requests = work.steps;
  std::vector<char*> others;
  for (char* word : words) {
    llvm::StringRef name(word);
    name.consume_front("-");
    name.consume_front("-");
    const auto [wanted, options] = name.split('=');
    const std::span<const plan_ir::Step> known = plan_ir::steps();
    const auto step =
        llvm::find_if(known, [&](const plan_ir::Step& one) { return wanted == llvm::StringRef(one.name); });
    if (word[0] != '-' || step == known.end()) {
      others.push_back(word);
      if (word[0] != '-' || (!mlir::PassInfo::lookup(wanted) && wanted != "pass-pipeline")) continue;
      if (!requests.empty())
        return Status::error(cat("-", wanted.str(), " is a pass on modules: it stands before -plan-lower"));
      work.pass = wanted.str();
      continue;
    }
    Expected<plan_ir::StepArguments> arguments = plan_ir::StepArguments::parse(*step, options);
    if (!arguments.ok()) return arguments.status();
    if (!step->run && !requests.empty()) return Status::error(cat("-", step->name, " must be the first of the steps"));
    requests.push_back(Request{&*step, std::move(*arguments)});
  }
  words = std::move(others);
  return work;
}

// Runs the steps after the lowering, and prints the plan.
Status finish(plan_ir::Draft& draft, llvm::ArrayRef<Request> requests, llvm::raw_ostream& out) {
  for (const Request& request : requests) SHEAF_RETURN_IF_ERROR(request.step->run(draft, request.arguments));
  out << plan_ir::textOf(draft.plan) << "\n";
  return {};
}

Status runOnPlans(llvm::StringRef text, const std::string& file, llvm::ArrayRef<Request> requests,
                  llvm::raw_ostream& out) {
  if (!requests.empty() && !requests.front().step->run)
    return Status::error(cat(file, " is the text of a plan; -", requests.front().step->name, " takes a module"));
  Expected<std::vector<plan::Plan>> plans = plan_ir::parseTexts(text, file);
  if (!plans.ok()) return plans.status();
  for (plan::Plan& plan : *plans) {
    plan_ir::Draft draft;
    draft.plan = std::move(plan);
    if (!requests.empty())
      if (Status sound = plan_ir::checkStepInput(draft.plan); !sound.ok())
        return Status::error(cat(file, ": ", sound.message()));
    SHEAF_RETURN_IF_ERROR(finish(draft, requests, out));
  }
  return {};
}

Status runOnModule(llvm::StringRef text, mlir::DialectRegistry& registry, llvm::ArrayRef<Request> requests,
                   llvm::raw_ostream& out) {
  if (requests.front().step->run)
    return Status::error(cat("-", requests.front().step->name, " takes the text of a plan, or follows -plan-lower"));
  mlir::MLIRContext context(registry);
  context.loadAllAvailableDialects();
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  if (!module || zero::functionsOf(*module).empty()) return Status::error("there is no @step to lower");
  mlir::FailureOr<plan_ir::Draft> draft =
      plan_ir::lowerToPlan(*module, plan_ir::lowerOptionsOf(requests.front().arguments));
  if (mlir::failed(draft)) return Status::error("the module cannot be lowered");
  return finish(*draft, requests.drop_front(), out);
}

// True if the text begins a plan, by itself or in a module.
bool isPlanText(llvm::StringRef text) {
  plan_ir::text::Lexer lexer(text);
  plan_ir::text::Token token = lexer.next();
  while (token.is("module") || token.is("{")) token = lexer.next();
  return token.is("plan.program");
}

// The pieces of a text between the markers, each after as many empty lines as there are lines before it.
llvm::SmallVector<std::string> piecesOf(llvm::StringRef text, llvm::StringRef marker) {
  if (marker.empty()) return {text.str()};
  llvm::SmallVector<std::string> pieces;
  llvm::SmallVector<llvm::StringRef> parts;
  text.split(parts, marker);
  size_t line = 0;
  for (llvm::StringRef part : parts) {
    pieces.push_back(std::string(line, '\n') + part.str());
    line += part.count('\n');
  }
  return pieces;
}

int run(int argc, char** argv) {
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, train::TrainDialect, zero::ZeroDialect>();
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  train::registerTrainPasses();
  zero::registerZeroPasses();
  plan_ir::registerPlanPasses();
  std::vector<char*> words(argv, argv + argc);
  Expected<Work> work = takeSteps(words);
  if (!work.ok()) return fail(work.status().message());
  const std::vector<Request>& steps = work->steps;
  if (words.size() == 2 && std::string_view(words[1]) == "--plan-steps")
    return out::printf("%s", plan_ir::stepReference().c_str()), EXIT_SUCCESS;
  const auto [input, output] = mlir::registerAndParseCLIOptions(
      static_cast<int>(words.size()), words.data(),
      "Sheaf's optimizer driver. It takes the steps that make a plan as options, too: --plan-steps lists them\n",
      registry);
  std::string error;
  std::unique_ptr<llvm::MemoryBuffer> buffer = mlir::openInputFile(input, &error);
  if (!buffer) return fail(error);
  std::unique_ptr<llvm::ToolOutputFile> file = mlir::openOutputFile(output, &error);
  if (!file) return fail(error);

  const mlir::MlirOptMainConfig config = mlir::MlirOptMainConfig::createFromCLOptions();
  const std::string marker = config.inputSplitMarker().str();
  const bool ofPlan = isPlanText(buffer->getBuffer());
  if (ofPlan && !work->pass.empty())
    return fail(cat(input, " is the text of a plan; -", work->pass, " is a pass on modules"));
  if (ofPlan && config.shouldVerifyDiagnostics())
    return fail(cat(input, " is the text of a plan; --verify-diagnostics checks modules"));
  std::string text = buffer->getBuffer().str();
  bool done = true;
  if (!ofPlan) {
    std::string module;
    llvm::raw_string_ostream stream(module);
    llvm::raw_ostream& to = steps.empty() ? static_cast<llvm::raw_ostream&>(file->os()) : stream;
    done = mlir::succeeded(mlir::MlirOptMain(to, std::move(buffer), registry, config));
    text = std::move(module);
  }
  if (done && (ofPlan || !steps.empty()))
    for (const std::string& piece : piecesOf(text, marker)) {
      Status status =
          ofPlan ? runOnPlans(piece, input, steps, file->os()) : runOnModule(piece, registry, steps, file->os());
      if (!status.ok()) done = false, fail(status.message());
    }
  if (done) file->keep();
  return done ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace sheaf

int main(int argc, char** argv) {
  sheaf::openStandardStreams();
  sheaf::installCompilerCrashHandlers("sheaf-opt");
  const int status = sheaf::run(argc, argv);
  const sheaf::Status written = sheaf::finishStandardOutput();
  return written.ok() || status != EXIT_SUCCESS ? status : sheaf::fail(written.message());
}
