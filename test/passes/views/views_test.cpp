// Random steps on views (RandomStep.h), compiled and run as users' models are: the plan must verify, and loss and
// gradients must be those of the evaluator on the step as it was written. SHEAF_VIEWS_CASES and
// SHEAF_VIEWS_FIRST set how many there are, and the first of their seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "codegen/emit/Emit.h"
#include "ir/Zero/ZeroDialect.h"
#include "mlir/IR/Verifier.h"
#include "passes/Pipeline.h"
#include "passes/train/Passes.h"
#include "runtime/base/Json.h"
#include "runtime/exec/Run.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/PlanFile.h"
#include "test/Paths.h"
#include "test/codegen/HostCpu.h"
#include "test/passes/views/RandomStep.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::test {
namespace {

using namespace mlir;
using testing::npy;
using testing::readFile;
using testing::TemporaryFolder;
using testing::writeFile;

struct Outcome {
  double loss = NAN;
  std::map<std::string, std::vector<double>> gradients;
};

std::unique_ptr<MLIRContext> makeContext() {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, train::TrainDialect, zero::ZeroDialect>();
  auto context = std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  context->loadAllAvailableDialects();
  return context;
}

std::string textOf(ModuleOp module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, OpPrintingFlags().elideLargeElementsAttrs(8));
  return text;
}

// Makes every f32 tensor of a module one of bf16.
void narrow(ModuleOp module) {
  Type bf16 = BFloat16Type::get(module.getContext());
  auto narrowed = [&](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return tensor && tensor.getElementType().isF32() ? RankedTensorType::get(tensor.getShape(), bf16) : type;
  };
  module.walk([&](Operation* op) {
    for (OpResult result : op->getResults())  // the logarithms of attention stay f32 in kernels, too
      if (!isa<train::AttentionOp>(op) || result.getResultNumber() == 0) result.setType(narrowed(result.getType()));
    for (Region& region : op->getRegions())
      for (Block& block : region)
        for (Value argument : block.getArguments()) argument.setType(narrowed(argument.getType()));
    if (auto constant = dyn_cast<train::ConstantOp>(op)) {
      train::Tensor values = *train::toTensor(constant.getValue());
      values.type = cast<RankedTensorType>(narrowed(values.type));
      constant.setValueAttr(train::toAttribute(values));
    }
  });
}

// By the evaluator, from the step as it was written: in f64, or with every op's results rounded to bf16.
FailureOr<Outcome> evaluated(const RandomStep& step, bool rounded = false) {
  OwningOpRef<ModuleOp> copy = step.module.get().clone();
  PassManager passes(copy->getContext());
  passes.addPass(train::createDifferentiate());
  if (failed(passes.run(*copy))) return failure();
  train::EvaluatorOptions options;
  options.round = rounded;
  std::vector<train::Tensor> inputs = step.inputs;
  std::map<std::string, train::Tensor> parameters = step.parameters;
  if (rounded) {
    narrow(*copy);
    auto bf16 = [&](train::Tensor& t) { t.type = t.type.clone(BFloat16Type::get(copy->getContext())); };
    for (train::Tensor& t : inputs) bf16(t);
    for (auto& [name, t] : parameters) bf16(t);
  }
  auto result = train::evaluateFunction(copy->lookupSymbol("step"), inputs, parameters, options);
  if (failed(result) || !result->loss) return failure();
  Outcome outcome{result->loss->f[0], {}};
  for (auto& [name, tensor] : result->gradients) outcome.gradients[name] = tensor.f;
  return outcome;
}

PipelineOptions randomOptions(unsigned seed, bool bf16) {
  std::mt19937 random(seed);
  PipelineOptions options;
  options.optimizer = "sgd:lr=0";
  options.maxThreads = 2;
  options.gemmEpilogues = random() % 3 == 0;
  if (bf16) options.precision = train::Precision::bf16;
  if (random() % 3 == 0) options.recompute = train::Recomputation::all;
  return options;
}

// Compiles the step to a plan that the runtime accepts.
Status compiled(ModuleOp module, const PipelineOptions& options, const std::string& path) {
  Builder b(module.getContext());
  auto named = [&](StringRef name, Attribute value) { return b.getNamedAttr(name, value); };
  PassManager passes(module.getContext());
  addImportPasses(passes);
  addTrainPasses(passes, options);
  if (failed(passes.run(module))) return Status::error("the passes up to `train` fail");
  module->removeAttr("train.lr");
  module->setAttr("train.training", b.getDictionaryAttr({named("optimizer", b.getStringAttr(options.optimizer)),
                                                         named("learning_rate", b.getF64FloatAttr(0)),
                                                         named("clip_norm", b.getF64FloatAttr(0)),
                                                         named("seed", b.getI64IntegerAttr(0))}));
  PassManager rest(module.getContext());
  addZeroPasses(rest, options);
  addFusePasses(rest);
  if (failed(rest.run(module))) return Status::error("the passes after `train` fail");
  FailureOr<plan_ir::Draft> draft = makePlan(module, options);
  if (failed(draft)) return Status::error("no plan from the step");
  codegen::KernelTargets targets;
  targets.cpu = hostCpu();
  targets.threads = 1;
  std::vector<std::string> notes;
  bool wroteData = false;
  if (failed(codegen::compileKernels(*draft, targets, notes))) return Status::error("kernels do not compile");
  SHEAF_RETURN_IF_ERROR(codegen::resolveFiles(*draft, ".", path, 1, wroteData));
  SHEAF_RETURN_IF_ERROR(codegen::sealPlan(draft->plan));
  return plan::writePlan(path, draft->plan);
}

// Runs the first step on memory that is poisoned before.
Expected<Outcome> executed(const RandomStep& step, const TemporaryFolder& folder, const std::string& plan) {
  exec::RunOptions options;
  options.plan = plan;
  options.steps = 1;
  options.threadsPerRank = 2;
  options.poison = true;
  options.log = folder / "log";
  options.gradients = folder / "gradients";
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    const train::Tensor& input = step.inputs[i];
    std::string name = "x" + std::to_string(i);
    writeFile(folder / (name + ".npy"),
              npy<float>("<f4", input.type.getShape().vec(), std::vector<float>(input.f.begin(), input.f.end())));
    options.data.push_back(*io::parseDataArgument(name + "=" + (folder / (name + ".npy"))));
  }
  exec::RunControl control;
  ::testing::internal::CaptureStderr();
  Status status = exec::run(options, control);
  ::testing::internal::GetCapturedStderr();
  if (!status.ok()) return status;

  Outcome outcome;
  std::istringstream log(readFile(folder / "log"));
  for (std::string line; std::getline(log, line);)
    if (auto value = json::parse(line); value.ok())
      if (const json::Value* loss = value->object()->find("loss")) (void)loss->number(outcome.loss);
  auto file = io::Safetensors::open(options.gradients);
  if (!file.ok()) return file.status();
  for (const auto& [name, parameter] : step.parameters) {
    const auto* tensor = file->find(name);
    if (!tensor) return Status::error("no gradient of " + name);
    std::vector<float> values(parameter.size());
    std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(float));
    outcome.gradients[name].assign(values.begin(), values.end());
  }
  return outcome;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

double distance(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm(a);
}

// What of the actual results is wrong, "" if nothing. A gradient is compared by its norm: one that is small compared
// with the others was computed from numbers as large as they are. Besides `tolerance` times that, results may be off by
// a few times as much as those of the same step `rounded` another way are: a step may amplify rounding errors.
std::string difference(const Outcome& actual, const Outcome& expected, double tolerance, const Outcome* rounded) {
  constexpr double kTimes = 4;
  double largest = 0.01;  // where all gradients vanish, what is left is rounding
  for (auto& [name, gradient] : expected.gradients) largest = std::max(largest, norm(gradient));
  std::string text;
  llvm::raw_string_ostream out(text);
  double allowed = tolerance * (std::abs(expected.loss) + largest);
  if (rounded) allowed += kTimes * std::abs(rounded->loss - expected.loss);
  if (!(std::abs(actual.loss - expected.loss) <= allowed))
    out << "the loss is " << actual.loss << ", not " << expected.loss << "\n";
  for (auto& [name, gradient] : expected.gradients) {
    allowed = tolerance * (norm(gradient) + 0.1 * largest);
    if (rounded) allowed += kTimes * distance(rounded->gradients.at(name), gradient);
    if (double error = distance(actual.gradients.at(name), gradient); !(error <= allowed))
      out << "the gradient of " << name << " is off by " << error << " of " << allowed << ", its norm is "
          << norm(gradient) << "\n";
  }
  return text;
}

// Tries one step in one precision.
std::string tried(unsigned seed, bool bf16) {
  std::unique_ptr<MLIRContext> context = makeContext();
  std::string diagnostics;
  ScopedDiagnosticHandler handler(context.get(), [&](Diagnostic& d) { diagnostics += d.str() + "\n"; });
  RandomStep step(*context, seed);
  if (step.parameters.empty()) return "";
  std::string written = textOf(*step.module);
  if (failed(verify(*step.module))) return "the step is not valid: " + diagnostics + written;
  FailureOr<Outcome> expected = evaluated(step);
  if (failed(expected)) return "the evaluator fails: " + diagnostics + written;
  FailureOr<Outcome> rounded = bf16 ? evaluated(step, true) : FailureOr<Outcome>();
  if (bf16 && failed(rounded)) return "the evaluator fails in bf16: " + diagnostics + written;
  TemporaryFolder folder;
  PipelineOptions options = randomOptions(seed, bf16);
  if (Status made = compiled(*step.module, options, folder / "plan"); !made.ok())
    return made.message() + "\n" + diagnostics + written;
  Expected<Outcome> actual = executed(step, folder, folder / "plan");
  if (!actual.ok()) return "the run fails: " + actual.status().message() + "\n" + written;
  std::string wrong = difference(*actual, *expected, bf16 ? 0.03 : 2e-5, bf16 ? &*rounded : nullptr);
  return wrong.empty() ? "" : wrong + written;
}

// By default those that have found most so far.
int64_t fromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

class Views : public ::testing::Test {
 protected:
  void SetUp() override { setenv("SHEAF_LIBRARY_PATH", sheaf::paths::kLibraries, 1); }

  static void tryAll(bool bf16) {
    const int64_t first = fromEnvironment("SHEAF_VIEWS_FIRST", 20), count = fromEnvironment("SHEAF_VIEWS_CASES", 14);
    for (int64_t seed = first; seed < first + count; ++seed) {
      std::string wrong = tried(unsigned(seed), bf16);
      EXPECT_EQ(wrong, "") << "SHEAF_VIEWS_FIRST=" << seed << " SHEAF_VIEWS_CASES=1";
    }
  }
};

TEST_F(Views, ComputeWhatTheEvaluatorDoes) {
  tryAll(false);
}

TEST_F(Views, ComputeWhatTheEvaluatorDoesInBf16) {
  tryAll(true);
}

}  // namespace
}  // namespace sheaf::test
