// Compiles the fusions of a small module and runs them in this process, for comparison with the reference evaluator.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cpu/CpuKernels.h"
#include "ir/Train/Evaluator.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "test/codegen/GpuEmulator.h"
#include "test/codegen/HostCpu.h"

namespace sheaf::test {

using Kernel = void (*)(void** args, int64_t begin, int64_t end);

// An image mapped as the runtime maps it: written, then made executable.
class MappedImage {
 public:
  MappedImage(const std::string& code, const std::map<std::string, uint64_t>& entries);
  ~MappedImage();
  MappedImage(const MappedImage&) = delete;
  void* find(const std::string& symbol) const;

 private:
  void* memory = nullptr;
  size_t size = 0;
  std::map<std::string, uint64_t> entries;
};

// How a kernel is called. `rowsPerCall` is rounded up to blocks; 0 means all rows at once. `inPlace` lets results take
// the memory of elementwise operands of their type. `gpu`: the kernel for GPUs, emulated, mapped as at that register
// pressure.
struct Calls {
  int64_t rowsPerCall = 0;
  bool inPlace = false;
  std::optional<int> gpu;
};

class Program {
 public:
  // Parses `source`, a module with one function; `pipeline` (a pass pipeline, may be empty) is then run on a copy,
  // whose fusions are compiled. Failures are fatal test failures.
  Program(const std::string& source, const std::string& pipeline, const std::string& cpu = hostCpu());
  ~Program();

  // The function's results: by kernels and, for ops outside of fusions, by the evaluator; and by the evaluator alone,
  // in f64 or rounding each op's results.
  std::vector<train::Tensor> run(llvm::ArrayRef<train::Tensor> arguments, Calls calls = {});
  std::vector<train::Tensor> reference(llvm::ArrayRef<train::Tensor> arguments, bool round = false);

  // Arguments of the function: normal with the given deviation (floats) or uniform in [0, limit) (integers).
  std::vector<train::Tensor> randomArguments(unsigned seed, double deviation = 1.0, int64_t limit = 10);

  mlir::Operation* compiled() { return function; }
  // The mapping of a fusion's GPU kernel.
  const codegen::Mapping& gpuMapping(size_t fusion, int pressure = 0);
  std::vector<train::FusionOp> fusions;
  codegen::CpuImage image;

 private:
  std::vector<train::Tensor> runFusion(train::FusionOp fusion, llvm::ArrayRef<train::Tensor> operands, Calls calls);
  GpuEmulator& emulator(int pressure);

  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> original, module;
  mlir::Operation* function = nullptr;
  codegen::DistinctPrograms distinct;
  std::map<mlir::Operation*, size_t> kernels;  // of each fusion, in `distinct`
  std::unique_ptr<MappedImage> mapped;
  std::map<int, std::unique_ptr<GpuEmulator>> emulators;  // by pressure
};

// Elements as they lie in memory, and back.
std::vector<uint8_t> toBytes(const train::Tensor& tensor);
train::Tensor fromBytes(mlir::RankedTensorType type, const uint8_t* bytes);

// Kernels and evaluator agree within `tolerance`, for all ways of calling; all ways give the same bits on the CPU, and
// so do those on a GPU. Where nothing is summed, both devices give the same.
void checkKernels(Program& program, llvm::ArrayRef<train::Tensor> arguments, double tolerance);

// Compiles a function with the rows of its matrices padded where they may be, checks it, and that no bit of what the
// CPU computes depends on the padding. Returns the function with padding.
std::unique_ptr<Program> checkPadding(const std::string& source, double tolerance);

// The largest |a - b| / (1 + |b|); infinite where one is NaN and the other is not, or integers differ.
double maxError(const train::Tensor& a, const train::Tensor& b);

}  // namespace sheaf::test
