#include "test/codegen/KernelRunner.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "llvm/ADT/APFloat.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "passes/train/Passes.h"
#include "test/codegen/Programs.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::test {

MappedImage::MappedImage(const std::string& code, const std::map<std::string, uint64_t>& entries)
    : size(code.size()), entries(entries) {
  if (!size) return;
  memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  std::memcpy(memory, code.data(), size);
  mprotect(memory, size, PROT_READ | PROT_EXEC);
}
MappedImage::~MappedImage() {
  if (memory) munmap(memory, size);
}
void* MappedImage::find(const std::string& symbol) const {
  return static_cast<char*>(memory) + entries.at(symbol);
}

static int64_t bytesPerElement(Type element) {
  return element.isInteger(1) ? 1 : element.getIntOrFloatBitWidth() / 8;
}

std::vector<uint8_t> toBytes(const Tensor& tensor) {
  Type element = tensor.type.getElementType();
  int64_t width = bytesPerElement(element);
  std::vector<uint8_t> bytes(tensor.size() * width);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    uint64_t bits = 0;
    if (auto type = dyn_cast<FloatType>(element)) {
      llvm::APFloat value(tensor.f[i]);
      bool lossy;
      value.convert(type.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &lossy);
      bits = value.bitcastToAPInt().getZExtValue();
    } else {
      bits = static_cast<uint64_t>(tensor.i[i]);
    }
    std::memcpy(&bytes[i * width], &bits, width);
  }
  return bytes;
}

Tensor fromBytes(RankedTensorType type, const uint8_t* bytes) {
  Tensor tensor = Tensor::zeros(type);
  Type element = type.getElementType();
  int64_t width = bytesPerElement(element);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes + i * width, width);
    if (auto floating = dyn_cast<FloatType>(element)) {
      llvm::APFloat value(floating.getFloatSemantics(), llvm::APInt(8 * width, bits));
      tensor.f[i] = value.convertToDouble();
    } else if (element.isInteger(1) || element.isUnsignedInteger()) {
      tensor.i[i] = static_cast<int64_t>(bits);
    } else {
      int64_t shift = 64 - 8 * width;
      tensor.i[i] = static_cast<int64_t>(bits << shift) >> shift;
    }
  }
  return tensor;
}

double maxError(const Tensor& a, const Tensor& b) {
  double infinity = std::numeric_limits<double>::infinity(), worst = 0;
  if (a.size() != b.size()) return infinity;
  for (int64_t i = 0; i < a.size(); ++i) {
    if (!a.isFloat()) {
      if (a.i[i] != b.i[i]) return infinity;
      continue;
    }
    if (std::isnan(a.f[i]) != std::isnan(b.f[i])) return infinity;
    if (std::isnan(a.f[i]) || a.f[i] == b.f[i]) continue;
    if (std::isinf(a.f[i]) || std::isinf(b.f[i])) return infinity;
    worst = std::max(worst, std::abs(a.f[i] - b.f[i]) / (1 + std::abs(b.f[i])));
  }
  return worst;
}

Program::Program(const std::string& source, const std::string& pipeline, const std::string& cpu) {
  static bool registered = [] {
    registerTrainPasses();
    return true;
  }();
  (void)registered;
  context = std::make_unique<MLIRContext>(MLIRContext::Threading::DISABLED);
  context->loadDialect<TrainDialect, func::FuncDialect>();
  original = parseSourceString<ModuleOp>(source, context.get());
  if (!original) {
    ADD_FAILURE() << "cannot parse " << source;
    std::abort();
  }
  module = original->clone();
  PassManager manager(context.get());
  if (!pipeline.empty() && (failed(parsePassPipeline(pipeline, manager)) || failed(manager.run(*module)))) {
    ADD_FAILURE() << "pipeline failed: " << pipeline;
    std::abort();
  }
  function = *module->getOps<func::FuncOp>().begin();
  function->walk([&](FusionOp fusion) { fusions.push_back(fusion); });
  std::vector<std::string> names;
  auto compiled = codegen::compileFusions(fusions, names, {cpu, 1});
  if (failed(compiled)) {
    module->print(llvm::errs());
    ADD_FAILURE() << "fusions do not compile";
    std::abort();
  }
  image = std::move(*compiled);
  distinct = *codegen::distinctPrograms(fusions);
  for (auto [fusion, program] : llvm::zip(fusions, distinct.programOf)) kernels[fusion] = program;
  mapped = std::make_unique<MappedImage>(image.code, image.entries);
}

Program::~Program() = default;

GpuEmulator& Program::emulator(int pressure) {
  std::unique_ptr<GpuEmulator>& emulator = emulators[pressure];
  if (!emulator) emulator = std::make_unique<GpuEmulator>(distinct, pressure);
  return *emulator;
}

const codegen::Mapping& Program::gpuMapping(size_t fusion, int pressure) {
  return emulator(pressure).mapping(distinct.programOf[fusion]);
}

// Bytes of a row, and from one to the next, of a fusion's operand or result, results last.
struct Rows {
  Rows(FusionOp fusion, size_t i, Type type) {
    auto tensor = cast<RankedTensorType>(type);
    int64_t width = bytesPerElement(tensor.getElementType()),
            pitch = fusion.getPitches() ? (*fusion.getPitches())[i] : 0;
    bytes = tensor.getNumElements() * width;
    if (pitch) bytes = tensor.getShape().back() * width, stride = pitch * width;
    count = pitch ? tensor.getNumElements() / tensor.getShape().back() : 1;
    if (!pitch) stride = bytes;
  }
  std::vector<uint8_t> padded(const std::vector<uint8_t>& dense) const {
    std::vector<uint8_t> result(count * stride, 0xff);
    for (int64_t row = 0; row < count; ++row)
      std::memcpy(result.data() + row * stride, dense.data() + row * bytes, bytes);
    return result;
  }
  std::vector<uint8_t> dense(const uint8_t* padded) const {
    std::vector<uint8_t> result(count * bytes);
    for (int64_t row = 0; row < count; ++row) std::memcpy(result.data() + row * bytes, padded + row * stride, bytes);
    return result;
  }
  int64_t count, bytes, stride;
};

std::vector<Tensor> Program::runFusion(FusionOp fusion, ArrayRef<Tensor> operands, Calls calls) {
  std::vector<std::vector<uint8_t>> memory;
  for (auto [i, t] : llvm::enumerate(operands)) memory.push_back(Rows(fusion, i, t.type).padded(toBytes(t)));
  std::vector<void*> args;
  for (auto& bytes : memory) args.push_back(bytes.data());
  std::vector<bool> taken(operands.size());
  memory.reserve(operands.size() + fusion.getNumResults());
  for (auto [index, type] : llvm::enumerate(fusion.getResultTypes())) {
    Rows rows(fusion, operands.size() + index, type);
    void* place = nullptr;
    for (int64_t i : calls.inPlace ? fusion.getElementwise() : ArrayRef<int64_t>()) {
      if (taken[i] || fusion.getOperand(i).getType() != type || Rows(fusion, i, type).stride != rows.stride) continue;
      taken[i] = true;
      place = memory[i].data();
      break;
    }
    if (!place) {
      // Garbage, for what a kernel forgets to write.
      memory.emplace_back(rows.count * rows.stride, 0x5a);
      place = memory.back().data();
    }
    args.push_back(place);
  }
  size_t program = kernels.at(fusion);
  if (calls.gpu) {
    emulator(*calls.gpu).launch(program, args.data());
  } else {
    auto kernel = reinterpret_cast<Kernel>(mapped->find(distinct.symbols[program]));
    int64_t rows = fusion.getRows(), block = fusion.getBlock();
    int64_t step = calls.rowsPerCall ? (calls.rowsPerCall + block - 1) / block * block : rows;
    for (int64_t begin = 0; begin < rows; begin += step) kernel(args.data(), begin, std::min(begin + step, rows));
  }
  std::vector<Tensor> results;
  for (auto [i, type] : llvm::enumerate(fusion.getResultTypes())) {
    size_t index = fusion.getNumOperands() + i;
    Rows rows(fusion, index, type);
    results.push_back(fromBytes(cast<RankedTensorType>(type), rows.dense(static_cast<uint8_t*>(args[index])).data()));
  }
  return results;
}

std::vector<Tensor> Program::run(ArrayRef<Tensor> arguments, Calls calls) {
  Block& body = function->getRegion(0).front();
  DenseMap<Value, Tensor> values;
  for (auto [argument, tensor] : llvm::zip(body.getArguments(), arguments)) values[argument] = tensor;
  for (Operation& op : body) {
    std::vector<Tensor> operands;
    for (Value v : op.getOperands()) operands.push_back(values.at(v));
    if (op.hasTrait<OpTrait::IsTerminator>()) return operands;
    std::vector<Tensor> results;
    if (auto fusion = dyn_cast<FusionOp>(op)) {
      results = runFusion(fusion, operands, calls);
    } else {
      EvaluatorOptions options;
      options.round = true;
      auto evaluated = evaluate(&op, operands, options);
      if (failed(evaluated)) {
        ADD_FAILURE() << "cannot evaluate " << op.getName().getStringRef().str();
        return {};
      }
      results = *evaluated;
    }
    for (auto [value, tensor] : llvm::zip(op.getResults(), results)) values[value] = tensor;
  }
  return {};
}

std::vector<Tensor> Program::reference(ArrayRef<Tensor> arguments, bool round) {
  auto function = *original->getOps<func::FuncOp>().begin();
  EvaluatorOptions options;
  options.round = round;
  auto evaluation = evaluateFunction(function, arguments, {}, options);
  if (failed(evaluation)) {
    ADD_FAILURE() << "the reference has no value";
    return {};
  }
  return evaluation->results;
}

std::vector<Tensor> Program::randomArguments(unsigned seed, double deviation, int64_t limit) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::uniform_int_distribution<int64_t> uniform(0, limit - 1);
  std::vector<Tensor> result;
  for (Value argument : function->getRegion(0).getArguments()) {
    Tensor tensor = Tensor::zeros(cast<RankedTensorType>(argument.getType()));
    for (double& x : tensor.f) x = normal(random);
    for (int64_t& x : tensor.i) x = tensor.type.getElementType().isInteger(1) ? uniform(random) & 1 : uniform(random);
    // What the kernel reads is what the reference reads.
    result.push_back(fromBytes(tensor.type, toBytes(tensor).data()));
  }
  return result;
}

void checkKernels(Program& program, ArrayRef<Tensor> arguments, double tolerance) {
  auto expected = program.reference(arguments);
  bool sums = false;
  for (FusionOp fusion : program.fusions) fusion.walk([&](ReduceOp) { sums = true; });
  auto same = [&](const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(toBytes(a[i]), toBytes(b[i])) << "result " << i << ", " << what;
  };
  auto near = [&](const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_LE(maxError(a[i], b[i]), tolerance) << "result " << i << ", " << what;
  };
  auto cpu = program.run(arguments);
  near(cpu, expected, "on the CPU");
  for (Calls calls : {Calls{1, false, {}}, Calls{0, true, {}}, Calls{1, true, {}}})
    same(cpu, program.run(arguments, calls), "on the CPU, called in another way");
  for (int pressure : {0, 3}) {
    SCOPED_TRACE("register pressure " + std::to_string(pressure));
    auto gpu = program.run(arguments, {0, false, pressure});
    if (sums)
      near(gpu, expected, "on a GPU");
    else
      same(gpu, cpu, "on a GPU");
    same(gpu, program.run(arguments, {0, true, pressure}), "on a GPU, in place");
  }
}

std::unique_ptr<Program> checkPadding(const std::string& source, double tolerance) {
  Program dense(source, kPipeline);
  auto padded = std::make_unique<Program>(source, kPitchPipeline);
  bool any = false;
  for (FusionOp fusion : padded->fusions) any |= fusion.getPitches().has_value();
  EXPECT_TRUE(any) << "no rows are padded";
  auto arguments = padded->randomArguments(12, 1.0, 40);
  checkKernels(*padded, arguments, tolerance);
  auto expected = dense.run(arguments), found = padded->run(arguments);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(toBytes(found[i]), toBytes(expected[i])) << "result " << i << " differs from that of dense rows";
  return padded;
}

}  // namespace sheaf::test
