#include "codegen/cuda/CudaKernels.h"

#include <atomic>

#include "codegen/cuda/GpuRowKernel.h"
#include "codegen/cuda/PtxCompiler.h"
#include "codegen/fusion/DistinctPrograms.h"
#include "llvm/Target/TargetMachine.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/Threads.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

struct Job {
  const RowProgram* program;
  CudaKernel kernel;
  bool spilled = false;
  std::string ptx, error;
};

// Contexts and target machines are not shared between threads, so that no lock is taken.
void emitJobs(ArrayRef<Job*> jobs, std::atomic<size_t>& next, int architecture) {
  std::string ignored;  // the caller has made such a machine
  std::unique_ptr<llvm::TargetMachine> machine = std::move(*createGpuTargetMachine(architecture, ignored));
  std::unique_ptr<MLIRContext> context = createGpuContext();
  for (size_t i; (i = next++) < jobs.size();) {
    Job& job = *jobs[i];
    job.kernel.mapping = chooseMapping(*job.program, job.kernel.pressure);
    OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(context.get()));
    OpBuilder builder = OpBuilder::atBlockEnd(module->getBody());
    auto kernels = gpu::GPUModuleOp::create(builder, module->getLoc(), "kernels");
    GpuEmission emission;
    emission.oneBlockSuffices = job.spilled;
    job.kernel.operands = emitGpuRowKernel(*job.program, job.kernel.mapping, emission, job.kernel.symbol, kernels);
    FailureOr<std::string> ptx = compileToPtx(kernels, *machine, job.error);
    job.ptx = succeeded(ptx) ? *ptx : "";
  }
}

LogicalResult emitAll(ArrayRef<Job*> jobs, const CudaTargetOptions& options) {
  std::atomic<size_t> next{0};
  runOnThreads(std::min<size_t>(options.threads, jobs.size()), [&] { emitJobs(jobs, next, options.architecture); });
  for (Job* job : jobs)
    if (job->ptx.empty()) {
      FusionOp fusion = job->program->fusion;
      return fusion.emitOpError("cannot be compiled for the GPU: ") << job->error, failure();
    }
  return success();
}

// One module of all kernels: the directives at the head of each are the same.
std::string joined(ArrayRef<Job*> jobs) {
  std::string result;
  for (Job* job : jobs) {
    StringRef text = job->ptx;
    if (!result.empty()) {
      StringRef last = ".address_size 64";
      text = text.drop_front(text.find(last) + last.size());
    }
    result += text;
  }
  return result;
}

}  // namespace

FailureOr<CudaImage> compileCudaKernels(ArrayRef<FusionOp> fusions, const CudaTargetOptions& options) {
  std::string error;
  auto fail = [&]() -> FailureOr<CudaImage> {
    if (!fusions.empty()) {
      FusionOp first = fusions.front();
      (void)first->getParentOfType<ModuleOp>()->emitError(error);
    }
    return failure();
  };
  if (failed(createGpuTargetMachine(options.architecture, error))) return fail();
  CudaImage image;
  image.chip = "sm_" + std::to_string(options.architecture);
  FailureOr<Toolkit> toolkit = findToolkit(error);
  if (failed(toolkit)) return error = "the target cuda:" + image.chip + " " + error, fail();
  image.toolkit = toolkit->version;
  FailureOr<DistinctPrograms> distinct = distinctPrograms(fusions);
  if (failed(distinct)) return failure();
  if (distinct->programs.empty()) return image;

  std::vector<Job> jobs;
  for (auto [program, symbol] : llvm::zip(distinct->programs, distinct->symbols))
    jobs.push_back({&program, {symbol, {}, {}, 0, {}}, false, {}, {}});
  SmallVector<Job*> all, pending;
  for (Job& job : jobs) all.push_back(&job);
  pending = all;
  FailureOr<Assembled> assembled;
  while (!pending.empty()) {
    if (failed(emitAll(pending, options))) return failure();
    assembled = assemblePtx(*toolkit, options.architecture, joined(pending), error);
    if (failed(assembled)) return fail();
    llvm::StringMap<KernelUsage> usage;
    for (const KernelUsage& kernel : assembled->usage) usage[kernel.symbol] = kernel;
    SmallVector<Job*> spilling;
    for (Job* job : pending) {
      job->kernel.usage = usage.lookup(job->kernel.symbol);
      if (job->kernel.usage.spillBytes == 0 || job->kernel.pressure == kMostPressure) continue;
      // First only fewer blocks run at once; what still does not fit is shared out to more threads.
      if (job->spilled) ++job->kernel.pressure;
      job->spilled = true;
      spilling.push_back(job);
    }
    pending = spilling;
    if (pending.empty() && assembled->usage.size() != jobs.size()) {
      assembled = assemblePtx(*toolkit, options.architecture, joined(all), error);
      if (failed(assembled)) return fail();
    }
  }
  FailureOr<std::string> code = makeFatBinary(*toolkit, options.architecture, assembled->code, joined(all), error);
  if (failed(code)) return fail();
  image.code = std::move(*code);
  for (Job& job : jobs) image.kernels.push_back(std::move(job.kernel));
  image.kernelOf = distinct->programOf;
  return image;
}

}  // namespace sheaf::codegen
