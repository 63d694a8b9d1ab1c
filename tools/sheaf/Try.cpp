#include "tools/sheaf/Try.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <random>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/NewFiles.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/exec/Run.h"
#include "runtime/io/Npy.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Types.h"
#include "tools/sheaf/Command.h"

namespace fs = std::filesystem;

namespace sheaf::tool {
namespace {

constexpr double kOfGradient = 1e-3, kOfAll = 1e-6;

// The least number of elements that an input's integers are positions in, or 0: they are none.
int64_t positions(mlir::Value value) {
  int64_t least = 0;
  auto bound = [&](int64_t size) { least = least ? std::min(least, size) : size; };
  for (mlir::OpOperand& use : value.getUses()) {
    mlir::Operation* op = use.getOwner();
    auto along = [&](mlir::Value data, int64_t axis) {
      bound(llvm::cast<mlir::RankedTensorType>(data.getType()).getDimSize(axis));
    };
    if (auto gather = llvm::dyn_cast<train::GatherOp>(op)) {
      if (use.getOperandNumber() == 1) along(gather.getData(), gather.getAxis());
    } else if (auto elements = llvm::dyn_cast<train::GatherElementsOp>(op)) {
      if (use.getOperandNumber() == 1) along(elements.getData(), elements.getAxis());
    } else if (auto scatter = llvm::dyn_cast<train::ScatterOp>(op)) {
      if (use.getOperandNumber() == 0) along(scatter.getResult(), scatter.getAxis());
    } else if (op->getNumResults() == 1 && op->getNumRegions() == 0) {
      if (const int64_t inner = positions(op->getResult(0))) bound(inner);
    }
  }
  return least;
}

// The type that an input's random values are written in.
io::DataType fileType(const plan::Input& input) {
  return io::convertible(io::DataType::F32, io::dataTypeOf(input.type())) ? io::DataType::F32 : io::DataType::I64;
}

// Random values for an input of a plan for one rank.
std::string randomBytes(const plan::Input& input, int64_t range, std::mt19937_64& random) {
  int64_t count = 1;
  for (int64_t size : input.shape()) count *= size;
  std::string bytes;
  auto append = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  auto unit = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const bool real = fileType(input) == io::DataType::F32;
  for (int64_t i = 0; i < count; ++i)
    if (real)
      append(static_cast<float>(std::sqrt(-2 * std::log(unit())) * std::cos(2 * std::numbers::pi * unit())));
    else
      append(static_cast<int64_t>(random() % static_cast<uint64_t>(range)));
  if (real) return bytes;
  // Integers that are neither labels nor positions may be a mask: the first of each row counts.
  const int64_t row = std::max<int64_t>(count / std::max<int64_t>(input.shape(0), 1), 1);
  for (int64_t i = 0; range == 2 && i < count; i += row) bytes[static_cast<size_t>(i) * sizeof(int64_t)] = 1;
  return bytes;
}

class Trials {
 public:
  Trials(const TrialOptions& options, const ScratchFolder& folder) : options_(options), folder_(folder) {}

  Expected<Trial> run() {
    const int64_t ranks = options_.import.ranks;
    Trial trial;
    trial.comparesRows = options_.import.batchNorm != frontend::ImportOptions::BatchNorm::local;
    const std::string leaves = cat(ranks);
    // A rank has a power of two of leaves in each micro-batch.
    const int64_t microBatches = ranks >> std::countr_zero(static_cast<uint64_t>(ranks));
    trial.steps = {{"one rank", 0, 0}, {cat("one rank, ", leaves, " leaves"), 0, 0}, {cat(leaves, " ranks"), 0, 0}};
    // All stages have the same bits. Stage 3 takes the least memory, and no search for a stage is needed.
    const std::vector<options::Arguments> divisions{
        {"--ranks", "1"},
        {"--ranks", "1", "--leaves", leaves, "--micro-batches", cat(microBatches)},
        {"--ranks", leaves, "--zero", "3"}};
    std::vector<io::Safetensors> gradients;
    for (size_t i = 0; i < divisions.size(); ++i) {
      const std::string plan = file(cat(i, ".plan"));
      if (!compile(divisions[i], plan))
        return Status::error(cat("the step does not compile for ", trial.steps[i].name, ", as the error says"));
      if (i == 0 && options_.data.empty()) SHEAF_RETURN_IF_ERROR(makeData(plan));
      const std::string to = file(cat(i, ".safetensors"));
      Expected<double> loss = step(plan, to);
      if (!loss.ok()) return Status::error(cat(trial.steps[i].name, ": ", loss.status().message()));
      trial.steps[i].loss = *loss;
      Expected<io::Safetensors> read = io::Safetensors::open(to);
      if (!read.ok()) return read.status();
      gradients.push_back(std::move(*read));
      trial.steps[i].norm = normOf(gradients.back());
    }
    trial.gradients = static_cast<int64_t>(gradients[0].tensors().size());
    for (const auto& [name, tensor] : gradients[0].tensors())
      if (llvm::all_of(floatsOf(tensor), [](float x) { return x == 0; })) trial.zero.push_back(name);
    compareBytes(gradients[1], gradients[2], trial);
    if (trial.comparesRows) compareRows(gradients[0], gradients[1], trial);
    return trial;
  }

 private:
  const TrialOptions& options_;
  const ScratchFolder& folder_;
  std::vector<io::DataArgument> data_;

  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  bool compile(const options::Arguments& division, const std::string& plan) const {
    options::Arguments arguments{options_.model, "-o",     plan, "--batch", cat(options_.import.batch),
                                 "--no-graph",   "--quiet"};
    arguments.insert(arguments.end(), division.begin(), division.end());
    arguments.insert(arguments.end(), options_.others.begin(), options_.others.end());
    return compileCommand().run(arguments) == kDone;
  }

  // The bounds of an input's integers are in the plan, where they are labels, or in the graph.
  Status makeData(const std::string& path) {
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readPlan(path);
    if (!plan.ok()) return plan.status();
    std::unique_ptr<mlir::MLIRContext> context = makeContext();
    mlir::ScopedDiagnosticHandler quiet(context.get(), [](mlir::Diagnostic&) { return mlir::success(); });
    frontend::ImportOptions import = options_.import;
    import.ranks = 1;
    mlir::OwningOpRef<mlir::ModuleOp> module = frontend::importOnnx(*context, options_.model, import);
    if (!module) return Status::error("the model does not import for one rank");
    auto graph = module->lookupSymbol<mlir::func::FuncOp>("step");
    std::map<std::string, int64_t> ranges;
    for (unsigned i = 0; i < graph.getNumArguments(); ++i)
      ranges[graph.getArgAttrOfType<mlir::StringAttr>(i, "train.name").str()] = positions(graph.getArgument(i));
    std::mt19937_64 random(1);
    for (const plan::Input& input : (*plan)->inputs()) {
      if (!plan::isData(input)) continue;
      const int64_t range = input.classes() ? input.classes() : ranges[input.name()] ? ranges[input.name()] : 2;
      const std::string bytes = randomBytes(input, range, random);
      const std::vector<int64_t> shape(input.shape().begin(), input.shape().end());
      Expected<std::string> header = io::npyHeader(fileType(input), shape);
      if (!header.ok()) return header.status();
      const std::string name = file(cat("input", data_.size(), ".npy"));
      Expected<AtomicFile> file = AtomicFile::create(name);
      if (!file.ok()) return file.status();
      const std::string text = *header + bytes;
      SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
      SHEAF_RETURN_IF_ERROR(file->commit());
      data_.push_back({{input.name()}, name, ""});
    }
    return {};
  }

  // The loss of one step, whose gradients go to a file.
  Expected<double> step(const std::string& plan, const std::string& gradients) const {
    exec::RunOptions run;
    run.plan = plan;
    run.data = options_.data.empty() ? data_ : options_.data;
    run.steps = 1;
    run.gradients = gradients;
    run.log = file("log");
    run.silent = true;
    exec::RunControl control;
    SHEAF_RETURN_IF_ERROR(exec::run(run, control));
    Expected<MappedFile> log = MappedFile::open(run.log);
    if (!log.ok()) return log.status();
    const std::string_view text(reinterpret_cast<const char*>(log->bytes().data()), log->bytes().size());
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      Expected<json::Value> line = json::parse(text.substr(begin, end - begin));
      begin = end + 1;
      const json::Object* event = line.ok() ? line->object() : nullptr;
      const json::Value* loss = event ? event->find("loss") : nullptr;
      if (double number = 0; loss && loss->number(number)) return number;
    }
    return Status::error("the loss is not finite: give --data that the model takes");
  }

  static std::span<const float> floatsOf(const io::Tensor& tensor) {
    return {reinterpret_cast<const float*>(tensor.data.data()), tensor.data.size() / sizeof(float)};
  }

  static double normOf(const io::Safetensors& gradients) {
    double sum = 0;
    for (const auto& [name, tensor] : gradients.tensors())
      for (float x : floatsOf(tensor)) sum += double{x} * x;
    return std::sqrt(sum);
  }

  static void compareBytes(const io::Safetensors& a, const io::Safetensors& b, Trial& trial) {
    for (const auto& [name, tensor] : a.tensors()) {
      const io::Tensor* other = b.find(name);
      const bool same = other && other->data.size() == tensor.data.size() &&
                        std::memcmp(other->data.data(), tensor.data.data(), tensor.data.size()) == 0;
      if (!same) return void(trial.divisions = cat("the gradient of '", name, "' has other bytes"));
    }
    if (trial.steps[1].loss != trial.steps[2].loss) trial.divisions = "the loss has other bytes";
  }

  static void compareRows(const io::Safetensors& a, const io::Safetensors& b, Trial& trial) {
    const double all = trial.steps[0].norm;
    for (const auto& [name, tensor] : a.tensors()) {
      const io::Tensor* other = b.find(name);
      const std::span<const float> x = floatsOf(tensor), y = other ? floatsOf(*other) : std::span<const float>();
      if (x.size() != y.size()) return void(trial.rows = cat("the gradient of '", name, "' has another size"));
      double norm = 0, difference = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        norm += double{x[i]} * x[i];
        difference += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
      }
      const double allowed = kOfGradient * std::sqrt(norm) + kOfAll * all;
      trial.largest = std::max(trial.largest, std::sqrt(difference) / std::max(allowed, 1e-300));
      if (std::sqrt(difference) <= allowed || !trial.rows.empty()) continue;
      trial.rows = cat("the gradient of '", name, "' differs by a norm of ", std::sqrt(difference), ", its own is ",
                       std::sqrt(norm), ", allowed are ", allowed);
    }
    const double one = trial.steps[0].loss, leaves = trial.steps[1].loss;
    if (trial.rows.empty() && !(std::abs(one - leaves) <= kOfGradient * std::abs(one) + kOfAll))
      trial.rows = cat("the loss is ", leaves, " instead of ", one);
  }
};

}  // namespace

Expected<Trial> tryDivisions(const TrialOptions& options) {
  // For the plans, the data and the gradients.
  Expected<ScratchFolder> folder = ScratchFolder::makeTemporary("sheaf-try-");
  if (!folder.ok()) return folder.status();
  return Trials(options, *folder).run();
}

json::Value trialJson(const Trial& trial) {
  json::Array steps;
  for (const TrialStep& step : trial.steps)
    steps.push_back(json::Object{{"division", step.name}, {"loss", step.loss}, {"gradient_norm", step.norm}});
  json::Array zero;
  for (const std::string& name : trial.zero) zero.push_back(name);
  return json::Object{{"same", trial.same()},
                      {"steps", std::move(steps)},
                      {"gradients", trial.gradients},
                      {"zero_gradients", std::move(zero)},
                      {"rows_compared", trial.comparesRows},
                      {"leaves_and_ranks", trial.divisions},
                      {"one_rank_and_leaves", trial.rows}};
}

void printTrial(const Trial& trial) {
  out::printf("tried:   one step on the CPU, three ways\n");
  for (const TrialStep& step : trial.steps)
    out::printf("  %-22s loss %-12.7g norm of the gradients %.7g\n", step.name.c_str(), step.loss, step.norm);
  const std::string last = cat(trial.steps[1].name, ", and ", trial.steps[2].name);
  if (trial.divisions.empty())
    out::printf("  %s: %s, equal byte for byte\n", last.c_str(), counted(trial.gradients, "gradient").c_str());
  else
    out::printf("  DIFFERENT: %s: %s\n", last.c_str(), trial.divisions.c_str());
  if (!trial.comparesRows)
    out::printf("  one rank is not compared: --batch-norm local normalizes each rank's rows by themselves\n");
  else if (trial.rows.empty())
    out::printf("  one rank, with leaves and without: equal but for rounding, at most %.2g of what is allowed\n",
                trial.largest);
  else
    out::printf("  DIFFERENT: one rank, with leaves and without: %s\n", trial.rows.c_str());
  if (trial.zero.empty()) return;
  std::vector<std::string> names;
  for (const std::string& name : trial.zero) names.push_back(cat("'", name, "'"));
  out::printf("  note: %zu of %s %s zero for these data, so that a first step does not train %s\n", trial.zero.size(),
              counted(trial.gradients, "gradient").c_str(), trial.zero.size() == 1 ? "is" : "are",
              listText(names, 5).c_str());
}

}  // namespace sheaf::tool
