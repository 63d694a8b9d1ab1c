// The device of libsheaf_cuda.so.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>

#include "runtime/base/AtomicFile.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/device/cuda/Blas.h"
#include "runtime/device/cuda/RankOnGpu.h"
#include "runtime/device/cuda/kernels/Reduce.h"
#include "runtime/device/cuda/nccl/NcclCommunicators.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::cuda {
namespace {

uint64_t arenaBytes(const plan::Plan& plan) {
  return std::max(plan.memory().peak_bytes(), plan::arenaTop(plan, plan::Buffer::DEVICE));
}

Status checkOptions(const DeviceOptions& options, int64_t localRanks) {
  if (options.ranks < 1) return Status::error("a run needs at least one rank");
  if (localRanks == options.ranks && localRanks > kMaxListedRanks)
    return Status::error(cat("at most ", kMaxListedRanks, " ranks share a GPU, not ", localRanks));
  if (localRanks != options.ranks && localRanks != 1)
    return Status::error(cat("ranks of several processes have a GPU each: one process a rank, not ", localRanks,
                             " ranks in each; start ", options.ranks, " processes, or one"));
  if (localRanks != options.ranks && !options.processes)
    return Status::error("ranks of several processes need a launcher's variables to find each other");
  return {};
}

// Known before the first step, and before arenas are allocated. What NCCL needs is allocated already: it depends on the
// machine and on NCCL's version.
Status checkMemory(const World& world) {
  const plan::Plan& plan = *world.plan;
  const uint64_t arena = Arena::allocatedBytes(arenaBytes(plan), world.options.poison);
  const uint64_t libraries = plan::cudaLibraryBytes();
  size_t free = 0, total = 0;
  SHEAF_RETURN_IF_ERROR(check(cudaMemGetInfo(&free, &total), "cannot ask for the GPU's memory"));
  // Each term is compared by itself first: a plan may say anything.
  if (arena <= free / static_cast<uint64_t>(world.localRanks) &&
      static_cast<uint64_t>(world.localRanks) * arena + libraries <= free)
    return {};
  const bool several = world.options.ranks > world.localRanks;
  const uint64_t taken = world.gpu.freeBytes - std::min<uint64_t>(world.gpu.freeBytes, free);
  return Status::error(cat("the run needs ", world.localRanks > 1 ? cat(world.localRanks, " x ") : "", bytesText(arena),
                           " for arenas and about ", bytesText(libraries), " for CUDA's libraries; ", world.gpu.name,
                           " has ", bytesText(free), " free of ", bytesText(total),
                           several ? cat(", after NCCL's communicators took ", bytesText(taken), ", ",
                                         bytesText(world.communicators->scratchBytes()), " of them to exchange sums")
                                   : "",
                           "; use more ranks, a higher ZeRO stage or a smaller batch"));
}

Status openWorld(World& world) {
  const bool several = world.localRanks < world.options.ranks;
  Expected<Gpu> gpu = openGpu(world.options.processes);
  if (!gpu.ok()) return gpu.status();
  world.gpu = *gpu;
  if (several) SHEAF_RETURN_IF_ERROR(requireOwnGpus(world.gpu, *world.options.processes));
  Expected<std::unique_ptr<FusedKernels>> kernels = FusedKernels::load(*world.plan, world.gpu);
  if (!kernels.ok()) return kernels.status();
  world.kernels = std::move(*kernels);
  if (plan::updatesOnHost(*world.plan)) {
    auto hostKernels = cpu::KernelImages::loadForHost(*world.plan);
    if (!hostKernels.ok()) return hostKernels.status();
    world.hostKernels = std::move(*hostKernels);
  }
  for (int64_t i = 0; i < world.localRanks; ++i) {
    auto progress = Progress::create(*world.plan);
    if (!progress.ok()) return progress.status();
    world.progress.push_back(std::move(*progress));
  }
  if (!several) {
    world.communicators = makePeerCommunicators(*world.plan, world.localRanks, world.abort);
  } else {
    auto communicators =
        nccl::makeCommunicators(*world.plan, world.options, world.abort, *world.progress[0], world.gpu.index);
    if (!communicators.ok()) return communicators.status();
    world.communicators = std::move(*communicators);
  }
  SHEAF_RETURN_IF_ERROR(checkMemory(world));
  SHEAF_RETURN_IF_ERROR(openSpaces(world));
  for (int64_t i = 0; i < world.localRanks; ++i) {
    auto arena = Arena::create(world.communicators->memory(), arenaBytes(*world.plan), world.options.poison);
    if (!arena.ok()) return Status::error(cat("rank ", world.options.firstRank + i, ": ", arena.status().message()));
    world.arenas.push_back(std::move(*arena));
  }
  return world.communicators->setArenas(world.arenas);
}

std::string hashText(const Blas& blas) {
  std::ostringstream hash;
  hash << std::hex << blas.hash();
  return hash.str();
}

// For the process of rank 0: reads the table of products, or, where there is none, says that one is to be measured and
// returns the file for it, so that one that cannot be written is an error before anything is measured.
Expected<std::optional<AtomicFile>> openProducts(World& world) {
  const std::string& path = world.options.products;
  if (path.empty() || world.options.firstRank > 0) return std::optional<AtomicFile>();
  if (std::error_code ignored; std::filesystem::exists(path, ignored)) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    world.products = std::move(text).str();
    if (world.products.empty())
      return Status::error(
          cat("the table of products ", path, " is empty or cannot be read; without the file one is measured"));
    return std::optional<AtomicFile>();
  }
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return Status::error(cat("the table of products: ", file.status().message()));
  world.measureProducts = true;
  return std::optional(std::move(*file));
}

// All ranks choose by what rank 0 has chosen, so that no two of them differ. The other processes wait for it before
// they open their ranks. `first`: rank 0's, null in other processes.
Status shareProducts(World& world, const Blas* first, std::optional<AtomicFile>& file) {
  const DeviceOptions& options = world.options;
  if (options.products.empty()) return {};
  if (first) world.products = first->table();
  if (options.ranks > world.localRanks) {
    auto all = options.processes->allGather(world.products, "the table of matrix products");
    if (!all.ok()) return all.status();
    world.products = all->front();
  }
  if (!file) return {};
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(world.products))));
  return file->commit();
}

// Other algorithms have other bits, and the sums over the ranks would be those of no single process.
Status compareProducts(const Blas& blas, comm::ProcessGroup& processes, const DeviceOptions& options) {
  Expected<std::vector<std::string>> all = processes.allGather(hashText(blas), "the algorithms of matrix products");
  if (!all.ok()) return all.status();
  for (size_t process = 1; process < all->size(); ++process)
    if ((*all)[process] != all->front())
      return Status::error(cat("cuBLASLt chose other algorithms for the matrix products of ", processes.describe(0),
                               " (hash ", all->front(), ") than for those of ",
                               processes.describe(static_cast<int64_t>(process)), " (hash ",
                               (*all)[process].substr(0, 16), "): with --tuned FILE all take those of process 0; ",
                               "their GPUs and their versions of cuBLASLt must be the same"));
  return {};
}

class CudaDevice : public Device {
 public:
  Expected<std::vector<Committed>> committed(const plan::Plan& plan, uint64_t planHash,
                                             const std::vector<std::string>& folders, int64_t rank,
                                             FileLayer* files) override {
    return cpu::committedStates(plan, planHash, folders, rank, files);
  }

  Expected<DeviceFacts> facts(comm::ProcessGroup* processes, bool severalNodes) override {
    Expected<Gpu> gpu = openGpu(processes);
    if (!gpu.ok()) return gpu.status();
    uint64_t taken = plan::cudaLibraryBytes();
    if (processes) {
      // A plan's communicators: one gathers, one exchanges sums.
      const uint64_t ranks = static_cast<uint64_t>(processes->size());
      taken += plan::ncclLibraryBytes({.collectives = true}, ranks, severalNodes) +
               plan::ncclLibraryBytes({.exchanges = true}, ranks, severalNodes);
    }
    return DeviceFacts{gpu->name, gpu->freeBytes > taken ? gpu->freeBytes - taken : 0};
  }

  Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan& plan,
                                                           const DeviceOptions& options) override {
    auto world = std::make_shared<World>();
    world->plan = &plan;
    world->options = options;
    world->localRanks = options.localRanks == 0 ? options.ranks : options.localRanks;
    if (options.aborted) world->abort.listen(options.aborted);
    SHEAF_RETURN_IF_ERROR(checkOptions(options, world->localRanks));
    // NCCL's communicators listen themselves: they know where the rank is.
    if (options.processes && options.ranks == world->localRanks)
      options.processes->watch([held = std::weak_ptr<World>(world)](const Status& why) {
        if (std::shared_ptr<World> world = held.lock()) world->abort.raise(why);
      });
    SHEAF_RETURN_IF_ERROR(openWorld(*world));
    Expected<std::optional<AtomicFile>> products = openProducts(*world);
    if (!products.ok()) return products.status();
    if (options.firstRank > 0) SHEAF_RETURN_IF_ERROR(shareProducts(*world, nullptr, *products));
    std::vector<std::unique_ptr<RankContext>> contexts;
    for (int64_t local = 0; local < world->localRanks; ++local) {
      auto context = CudaContext::create(world, local);
      if (!context.ok()) return context.status();
      if (options.firstRank + local == 0) {
        if (options.note) options.note("products", hashText((*context)->blas()));
        SHEAF_RETURN_IF_ERROR(shareProducts(*world, &(*context)->blas(), *products));
      }
      if (options.ranks > world->localRanks)
        SHEAF_RETURN_IF_ERROR(compareProducts((*context)->blas(), *options.processes, options));
      contexts.push_back(std::make_unique<RankOnGpu>(std::move(*context), world->gpu.index));
    }
    if (options.note) {
      options.note("gpu", world->gpu.name);
      if (!world->kernels->target().empty()) options.note("kernels", world->kernels->target());
      options.note("graphs", options.graphs && world->communicators->capturable() ? "on" : "off");
      world->communicators->describe(options.note);
      describeSpaces(*world, options.note);
    }
    return contexts;
  }
};

}  // namespace
}  // namespace sheaf::cuda

extern "C" __attribute__((visibility("default"))) sheaf::Device* sheaf_open_device() {
  static sheaf::cuda::CudaDevice device;
  return &device;
}
