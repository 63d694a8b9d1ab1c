// The device of libsheaf_cpu.so.
#include <algorithm>
#include <thread>

#include "runtime/comm/local/LocalCommunicator.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/socket/SocketCommunicator.h"
#include "runtime/device/cpu/CpuContext.h"
#include "runtime/device/cpu/LibraryThreads.h"

namespace sheaf::cpu {
namespace {

// How often a thread looks before it sleeps: some 20 us where every compute thread has a core of its own, hardly at all
// where several share one, because then the awaited thread needs the core.
constexpr int kPatientSpins = 400;
constexpr int kBriefSpins = 8;

uint64_t arenaBytes(const plan::Plan& plan) {
  uint64_t bytes = plan.memory().peak_bytes();
  for (const plan::Buffer& buffer : plan.buffers()) bytes = std::max(bytes, buffer.offset() + buffer.bytes());
  return bytes;
}

Status makeFunctions(const plan::Plan& plan, World& world) {
  for (const auto* section : {&plan.prologue(), &plan.body(), &plan.epilogue()}) {
    for (const plan::Instruction& instruction : *section) {
      if (!instruction.has_call()) continue;
      std::shared_ptr<const LibraryFunction> function = makeLibraryFunction(instruction.call(), plan.training().seed());
      if (!function)
        return Status::error(instruction.label() + ": unknown library function '" + instruction.call().function() +
                             "'");
      world.functions.emplace(&instruction, std::move(function));
    }
  }
  return Status();
}

// Between threads if all ranks are in this process, else over sockets.
Status makeCommunicators(const plan::Plan& plan, const std::shared_ptr<World>& world) {
  const DeviceOptions& options = world->options;
  if (options.localRanks == options.ranks) {
    for (uint32_t i = 0; i < plan.communicators(); ++i)
      world->communicators.push_back(
          std::make_unique<comm::LocalCommunicator>(options.ranks, world->abort, world->spins));
    return Status();
  }
  options.processes->watch([held = std::weak_ptr<World>(world)](const Status& why) {
    if (std::shared_ptr<World> world = held.lock()) world->abort.raise(why);
  });
  Expected<comm::PeerSockets> sockets =
      comm::PeerSockets::connect(*options.processes, plan.communicators(), options.localRanks, world->abort);
  if (!sockets.ok()) return sockets.status();
  for (uint32_t i = 0; i < plan.communicators(); ++i)
    world->communicators.push_back(std::make_unique<comm::SocketCommunicator>(
        *options.processes, options.localRanks, i, *sockets, comm::exchangeBytes(plan, i, options.processes->size()),
        world->abort, world->spins));
  return Status();
}

class CpuDevice : public Device {
 public:
  Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan& plan,
                                                           const DeviceOptions& options) override {
    if (options.ranks < 1) return Status::error("a run needs at least one rank");
    if (options.threadsPerRank < 1) return Status::error("a rank needs at least one thread");
    if (plan.max_threads() > 0 && static_cast<uint32_t>(options.threadsPerRank) > plan.max_threads())
      return Status::error("the plan has scratch for " + std::to_string(plan.max_threads()) + " threads a rank, not " +
                           std::to_string(options.threadsPerRank) + "; compile it with --max-threads-per-rank");
    int64_t localRanks = options.localRanks > 0 ? options.localRanks : options.ranks;
    if (localRanks != options.ranks && (!options.processes || options.processes->size() * localRanks != options.ranks ||
                                        options.processes->rank() * localRanks != options.firstRank))
      return Status::error("the processes do not hold the ranks in order, each as many");
    keepLibraryMemory();
    auto world = std::make_shared<World>();
    world->plan = &plan;
    world->options = options;
    world->options.localRanks = localRanks;
    bool ownCores = options.ranks * options.threadsPerRank <= std::thread::hardware_concurrency();
    world->spins = ownCores ? kPatientSpins : kBriefSpins;
    Expected<std::unique_ptr<KernelImages>> kernels = KernelImages::load(plan);
    if (!kernels.ok()) return kernels.status();
    world->kernels = std::move(*kernels);
    if (Status status = makeFunctions(plan, *world); !status.ok()) return status;
    for (int64_t rank = 0; rank < localRanks; ++rank)
      world->events.push_back(
          std::make_unique<Events>(plan.events(), std::max(plan.streams_size(), 1), world->abort, world->spins));
    for (int64_t rank = options.firstRank; rank < options.firstRank + localRanks; ++rank) {
      Expected<std::unique_ptr<Arena>> arena = Arena::create(arenaBytes(plan), options.poison);
      if (!arena.ok()) return Status::error("rank " + std::to_string(rank) + ": " + arena.status().message());
      world->arenas.push_back(std::move(*arena));
    }
    SHEAF_RETURN_IF_ERROR(makeCommunicators(plan, world));
    std::vector<std::unique_ptr<RankContext>> contexts;
    for (int64_t rank = options.firstRank; rank < options.firstRank + localRanks; ++rank)
      contexts.push_back(std::make_unique<CpuContext>(world, rank));
    return contexts;
  }
};

}  // namespace
}  // namespace sheaf::cpu

extern "C" __attribute__((visibility("default"))) sheaf::Device* sheaf_open_device() {
  static sheaf::cpu::CpuDevice device;
  return &device;
}
