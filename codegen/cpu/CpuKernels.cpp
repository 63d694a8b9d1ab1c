#include "codegen/cpu/CpuKernels.h"

#include <atomic>

#include "codegen/cpu/FlatImage.h"
#include "codegen/cpu/KernelCompiler.h"
#include "codegen/cpu/RowKernel.h"
#include "codegen/fusion/DistinctPrograms.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Target/TargetMachine.h"
#include "runtime/base/Threads.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

constexpr uint64_t kAlignment = 64;

struct Job {
  RowProgram program;
  std::string symbol;
  KernelOperands operands;
  FlatImage image;
  std::string error;
};

// Contexts and target machines are not shared between threads, so that no lock is taken.
void compileJobs(MutableArrayRef<Job> jobs, std::atomic<size_t>& next, const CpuTarget& target) {
  std::unique_ptr<llvm::TargetMachine> machine = createTargetMachine(target);
  std::unique_ptr<MLIRContext> context = createKernelContext();
  for (size_t i; (i = next++) < jobs.size();) {
    Job& job = jobs[i];
    OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(context.get()));
    job.operands = emitRowKernel(job.program, job.symbol, *module);
    SmallVector<char, 0> object;
    if (failed(compileKernels(*module, *machine, object, job.error))) continue;
    FailureOr<FlatImage> image = flattenObject(StringRef(object.data(), object.size()), job.error);
    if (succeeded(image)) job.image = std::move(*image);
  }
}

}  // namespace

FailureOr<CpuImage> compileFusions(ArrayRef<FusionOp> fusions, std::vector<std::string>& symbols,
                                   const CpuTargetOptions& options) {
  std::string error;
  FailureOr<CpuTarget> target = resolveCpuTarget(options.cpu, error);
  if (failed(target)) {
    if (!fusions.empty()) (void)fusions.front()->getParentOfType<ModuleOp>()->emitError(error);
    return failure();
  }
  FailureOr<DistinctPrograms> distinct = distinctPrograms(fusions);
  if (failed(distinct)) return failure();
  symbols.clear();
  for (size_t program : distinct->programOf) symbols.push_back(distinct->symbols[program]);
  std::vector<Job> jobs;
  for (auto [program, symbol] : llvm::zip(distinct->programs, distinct->symbols))
    jobs.push_back({program, symbol, {}, {}, {}});

  std::atomic<size_t> next{0};
  if (!jobs.empty())
    runOnThreads(std::min<size_t>(options.threads, jobs.size()), [&] { compileJobs(jobs, next, *target); });

  CpuImage image{{}, target->cpu, target->features, {}, {}};
  for (Job& job : jobs) {
    auto entry = job.image.entries.find(job.symbol);
    if (entry == job.image.entries.end())
      return job.program.fusion.emitOpError("cannot be compiled for the CPU: ") << job.error, failure();
    image.code.resize(llvm::alignTo(image.code.size(), kAlignment));
    image.entries[job.symbol] = image.code.size() + entry->second;
    image.operands[job.symbol] = std::move(job.operands);
    image.code += job.image.code;
  }
  return image;
}

}  // namespace sheaf::codegen
