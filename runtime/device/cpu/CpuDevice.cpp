// The device of libsheaf_cpu.so.
#include <algorithm>
#include <thread>

#include "runtime/comm/local/LocalCommunicator.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/socket/SocketTransport.h"
#include "runtime/comm/transport/ProcessCommunicator.h"
#include "runtime/device/cpu/CpuContext.h"
#include "runtime/device/cpu/LibraryThreads.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"

namespace sheaf::cpu {
namespace {

// How often a thread checks before it sleeps: for about 20 us if every compute thread has a core of its own, a few
// times if several share one, because then the awaited thread needs the core.
constexpr int kPatientSpins = 400;
constexpr int kBriefSpins = 8;

uint64_t arenaBytes(const plan::Plan& plan) {
  uint64_t bytes = plan.memory().peak_bytes();
  for (const plan::Buffer& buffer : plan.buffers()) bytes = std::max(bytes, buffer.offset() + buffer.bytes());
  return bytes;
}

Status makeFunctions(const plan::Plan& plan, World& world) {
  return plan::checkInstructions(plan, [&](std::string_view, int, const plan::Instruction& instruction) -> Status {
    if (!instruction.has_call()) return {};
    Expected<Function> function = makeLibraryFunction(instruction.call(), plan.training().seed());
    if (!function.ok()) return Status::error(instruction.label() + ": " + function.status().message());
    world.functions.emplace(&instruction, std::move(*function));
    return {};
  });
}

// A rank's state of a communicator's rendezvous, between processes.
uint64_t stateBytes(int64_t ranks) {
  return plan::aligned(comm::Rendezvous::stateBytes(ranks));
}

Status makeArenas(const plan::Plan& plan, World& world) {
  const DeviceOptions& options = world.options;
  const uint64_t bytes = arenaBytes(plan), room = Arena::room(bytes, options.poison);
  if (options.processesPerNode > 1) {
    const uint64_t local = static_cast<uint64_t>(options.localRanks), ranks = local * world.node->size();
    if (bytes > UINT64_MAX / 4 / local)
      return Status::error("the plan's arena of " + std::to_string(bytes) + " bytes does not fit in memory");
    // The states of the communicators follow the arenas of the node's first process.
    const uint64_t states = world.node->rank() == 0 ? plan.communicators() * stateBytes(ranks) : 0;
    Expected<std::unique_ptr<comm::SharedMemory>> shared =
        comm::SharedMemory::create(*world.node, room * local + states, world.abort);
    if (!shared.ok()) return shared.status();
    world.shared = std::move(*shared);
    std::byte* block = world.shared->block(world.node->rank()).data();
    for (uint64_t i = 0; i < local; ++i) world.arenas.push_back(Arena::inside(block + i * room, bytes, options.poison));
    return Status();
  }
  for (int64_t i = 0; i < options.localRanks; ++i) {
    Expected<std::unique_ptr<Arena>> arena = Arena::create(bytes, options.poison);
    if (!arena.ok())
      return Status::error("rank " + std::to_string(options.firstRank + i) + ": " + arena.status().message());
    world.arenas.push_back(std::move(*arena));
  }
  return Status();
}

// The rendezvous of a communicator between the processes of this node; nothing if there is one process.
comm::Rendezvous::Shared sharedRendezvous(const plan::Plan& plan, World& world, uint32_t communicator) {
  comm::Rendezvous::Shared shared;
  if (!world.shared) return shared;
  const int64_t local = world.options.localRanks, ranks = local * world.node->size();
  const uint64_t room = Arena::room(arenaBytes(plan), world.options.poison);
  shared.state = world.shared->block(0).data() + room * static_cast<uint64_t>(local) + communicator * stateBytes(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank)
    shared.memory.push_back(world.shared->block(rank / local).data() + room * static_cast<uint64_t>(rank % local));
  shared.limit = world.options.processes->limit();
  shared.describe = [&world, local](int64_t rank) { return world.node->describe(rank / local); };
  return shared;
}

// Within a node ranks read each other's memory; nodes exchange over the transport.
Status makeCommunicators(const plan::Plan& plan, World& world) {
  const DeviceOptions& options = world.options;
  const int64_t nodes = options.ranks / options.localRanks / options.processesPerNode;
  if (nodes == 1) {
    for (uint32_t i = 0; i < plan.communicators(); ++i)
      world.communicators.push_back(std::make_unique<comm::LocalCommunicator>(options.ranks, world.abort, world.spins,
                                                                              sharedRendezvous(plan, world, i)));
    return Status();
  }
  world.counterparts.emplace(*options.processes, nodes, options.processesPerNode);
  const comm::ConnectTransport connect =
      options.connectTransport ? options.connectTransport : comm::SocketTransport::connect;
  auto transport = connect(*world.counterparts,
                           {.communicators = plan.communicators(),
                            .rails = options.localRanks,
                            .sendRate = options.sendRate,
                            .traffic = options.traffic,
                            .abandon = options.abandon},
                           world.abort);
  if (!transport.ok()) return transport.status();
  world.transport = std::move(*transport);
  world.abort.listen([&world] { world.transport->abort(); });
  const int64_t place = options.processes->rank() % options.processesPerNode;
  for (uint32_t i = 0; i < plan.communicators(); ++i)
    world.communicators.push_back(std::make_unique<comm::ProcessCommunicator>(
        *world.counterparts,
        comm::ProcessCommunicator::NodeRanks{options.localRanks * options.processesPerNode, place * options.localRanks,
                                             options.localRanks},
        i, *world.transport, comm::exchangeBytes(plan, i, nodes), world.abort, world.spins,
        sharedRendezvous(plan, world, i)));
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
      return Status::error("each process must hold the same number of consecutive ranks, in order");
    if (options.processesPerNode < 1 || options.ranks / localRanks % options.processesPerNode != 0)
      return Status::error("every node must have the same number of processes");
    keepLibraryMemory();
    auto world = std::make_shared<World>();
    world->plan = &plan;
    world->options = options;
    world->options.localRanks = localRanks;
    if (options.aborted) world->abort.listen(options.aborted);
    bool ownCores = options.ranks * options.threadsPerRank <= std::thread::hardware_concurrency();
    world->spins = ownCores ? kPatientSpins : kBriefSpins;
    Expected<std::unique_ptr<KernelImages>> kernels = KernelImages::load(plan);
    if (!kernels.ok()) return kernels.status();
    world->kernels = std::move(*kernels);
    if (Status status = makeFunctions(plan, *world); !status.ok()) return status;
    for (int64_t rank = 0; rank < localRanks; ++rank)
      world->events.push_back(
          std::make_unique<Events>(plan.events(), std::max(plan.streams_size(), 1), world->abort, world->spins));
    if (localRanks != options.ranks) {
      world->node.emplace(*options.processes, options.processesPerNode);
      options.processes->watch([held = std::weak_ptr<World>(world)](const Status& why) {
        if (std::shared_ptr<World> world = held.lock()) world->abort.raise(why);
      });
    }
    SHEAF_RETURN_IF_ERROR(makeArenas(plan, *world));
    SHEAF_RETURN_IF_ERROR(makeCommunicators(plan, *world));
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
