// The device of libsheaf_cpu.so.
#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "runtime/base/Text.h"
#include "runtime/comm/local/LocalCommunicator.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/socket/SocketTransport.h"
#include "runtime/comm/transport/ExchangeBytes.h"
#include "runtime/comm/transport/ProcessCommunicator.h"
#include "runtime/comm/transport/SubTransport.h"
#include "runtime/device/cpu/CpuContext.h"
#include "runtime/device/cpu/LibraryThreads.h"
#include "runtime/device/cpu/functions/OneDnn.h"
#include "runtime/device/cpu/functions/Sgemm.h"
#include "runtime/plan/Types.h"

namespace sheaf::cpu {
namespace {

// How often a thread checks before it sleeps: for about 20 us if every compute thread has a core of its own, a few
// times if several share one, because then the awaited thread needs the core.
constexpr int kPatientSpins = 400;
constexpr int kBriefSpins = 8;

uint64_t arenaBytes(const plan::Plan& plan) {
  return std::max(plan.memory().peak_bytes(), plan::arenaTop(plan, plan::Buffer::DEVICE));
}

// Of the spaces besides the device's; no other process has anything there.
Status makeOwnArenas(const plan::Plan& plan, World& world) {
  const DeviceOptions& options = world.options;
  const uint64_t host = plan::arenaTop(plan, plan::Buffer::HOST), file = plan::arenaTop(plan, plan::Buffer::FILE);
  for (int64_t i = 0; i < options.localRanks; ++i) {
    const int64_t rank = options.firstRank + i;
    if (host > 0) {
      Expected<std::unique_ptr<Arena>> arena = Arena::create(host, options.poison);
      if (!arena.ok()) return Status::error(cat("rank ", rank, ": host memory: ", arena.status().message()));
      world.hostArenas.push_back(std::move(*arena));
    }
    if (file > 0) {
      Expected<std::unique_ptr<FileArena>> arena = openFiles(plan, options, rank);
      if (!arena.ok()) return arena.status();
      world.fileArenas.push_back(std::move(*arena));
    }
  }
  if (!world.fileArenas.empty() && options.note)
    options.note("file_input_output", world.fileArenas.front()->isDirect() ? "direct" : "through the page cache");
  return {};
}

// A group of ranks that meet in a communicator, as far as they are on this node: a block of processes that share
// memory. All processes of the node list the same.
struct LocalGroup {
  uint32_t communicator = 0;
  plan::Axis axis = plan::WORLD;
  int64_t number = 0;
  std::vector<int64_t> ranks;  // of this node
  uint64_t state = 0;          // where the state of its rendezvous lies between processes, and how long it is
  uint64_t stateBytes = 0;
};

int64_t ranksHere(const World& world) {
  return world.options.localRanks * world.options.processesPerNode;
}

std::vector<LocalGroup> localGroupsOf(const plan::Plan& plan, const World& world) {
  const int64_t here = ranksHere(world), first = world.options.firstRank / here * here;
  std::vector<LocalGroup> groups;
  uint64_t state = 0;
  for (uint32_t i = 0; i < plan.communicators(); ++i) {
    const plan::Axis axis = plan::axisOf(plan, static_cast<int>(i));
    std::map<int64_t, std::vector<int64_t>> byNumber;
    for (int64_t rank = first; rank < first + here; ++rank) byNumber[plan::groupOn(plan, axis, rank)].push_back(rank);
    for (auto& [number, ranks] : byNumber) {
      const uint64_t bytes = plan::aligned(comm::Rendezvous::stateBytes(static_cast<int64_t>(ranks.size())));
      groups.push_back({i, axis, number, std::move(ranks), state, bytes});
      state += bytes;
    }
  }
  return groups;
}

Status makeArenas(const plan::Plan& plan, World& world) {
  const DeviceOptions& options = world.options;
  const uint64_t bytes = arenaBytes(plan), room = Arena::room(bytes, options.poison);
  if (options.processesPerNode > 1) {
    const uint64_t local = static_cast<uint64_t>(options.localRanks);
    if (bytes > UINT64_MAX / 4 / local)
      return Status::error("the plan's arena of " + std::to_string(bytes) + " bytes does not fit in memory");
    // The states of the communicators follow the arenas of the node's first process.
    const std::vector<LocalGroup> groups = localGroupsOf(plan, world);
    const bool hasStates = world.node->rank() == 0 && !groups.empty();
    const uint64_t states = hasStates ? groups.back().state + groups.back().stateBytes : 0;
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
comm::Rendezvous::Shared sharedRendezvous(const plan::Plan& plan, World& world, const LocalGroup& group) {
  comm::Rendezvous::Shared shared;
  if (!world.shared) return shared;
  const int64_t local = world.options.localRanks, first = world.options.firstRank / ranksHere(world) * ranksHere(world);
  const uint64_t room = Arena::room(arenaBytes(plan), world.options.poison);
  shared.state = world.shared->block(0).data() + room * static_cast<uint64_t>(local) + group.state;
  std::vector<int64_t> processes;
  for (int64_t rank : group.ranks) {
    processes.push_back((rank - first) / local);
    shared.memory.push_back(world.shared->block(processes.back()).data() + room * static_cast<uint64_t>(rank % local));
  }
  shared.limit = world.options.processes->limit();
  shared.describe = [&world, processes](int64_t member) {
    return world.node->describe(processes[static_cast<size_t>(member)]);
  };
  return shared;
}

// The nodes, by their numbers, that ranks of a group are on.
std::vector<int64_t> nodesOf(const plan::Plan& plan, const World& world, plan::Axis axis, int64_t group) {
  std::vector<int64_t> nodes;
  for (int64_t rank = 0; rank < world.options.ranks; ++rank)
    if (const int64_t node = rank / ranksHere(world); plan::groupOn(plan, axis, rank) == group)
      if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
  return nodes;
}

Status connectNodes(const plan::Plan& plan, World& world, const std::vector<LocalGroup>& groups, int64_t nodes) {
  const DeviceOptions& options = world.options;
  const int64_t here = ranksHere(world), each = plan::ranksPerNode(plan);
  if (plan.ranks_per_node() > 0 && here % each != 0 && each % here != 0)
    return Status::error(cat("the plan has nodes of ", each, " ranks, and ", here,
                             " ranks share memory: one must divide the other; start as many processes on each host as "
                             "make it so"));
  world.counterparts.emplace(*options.processes, nodes, options.processesPerNode);
  const comm::ConnectTransport connect =
      options.connectTransport ? options.connectTransport : comm::SocketTransport::connect;
  // Pairs of a communicator and a node with which this process exchanges there.
  std::set<std::pair<int64_t, int64_t>> needed;
  for (const LocalGroup& group : groups)
    for (int64_t node : nodesOf(plan, world, group.axis, group.number)) needed.emplace(group.communicator, node);
  auto transport = connect(*world.counterparts,
                           {.communicators = plan.communicators(),
                            .rails = options.localRanks,
                            .sendRate = options.sendRate,
                            .traffic = options.traffic,
                            .abandon = options.abandon,
                            .meets =
                                [&](int64_t communicator, int64_t node) {
                                  return needed.contains({communicator, node});
                                }},
                           world.abort);
  if (!transport.ok()) return transport.status();
  world.transport = std::move(*transport);
  world.abort.listen([&world] { world.transport->abort(); });
  return Status();
}

// Within a node ranks read each other's memory; nodes exchange over the transport.
Status makeCommunicators(const plan::Plan& plan, World& world) {
  const DeviceOptions& options = world.options;
  const int64_t nodes = options.ranks / ranksHere(world);
  const std::vector<LocalGroup> groups = localGroupsOf(plan, world);
  if (nodes > 1) SHEAF_RETURN_IF_ERROR(connectNodes(plan, world, groups, nodes));
  world.communicators.resize(plan.communicators());
  for (const LocalGroup& group : groups) {
    comm::ProcessCommunicator::NodeRanks ranks{static_cast<int64_t>(group.ranks.size()), 0, 0};
    std::vector<int64_t> rails;
    for (int64_t rank : group.ranks) {
      ranks.first += rank < options.firstRank;
      if (const int64_t rail = rank - options.firstRank; rail >= 0 && rail < options.localRanks) rails.push_back(rail);
    }
    ranks.own = static_cast<int64_t>(rails.size());
    if (rails.empty()) continue;
    auto& made = world.communicators[group.communicator][group.number];
    if (ranks.count == (group.axis == plan::WORLD ? options.ranks : plan::ranksOn(plan, group.axis))) {
      made = std::make_unique<comm::LocalCommunicator>(ranks.count, world.abort, world.spins,
                                                       sharedRendezvous(plan, world, group));
      continue;
    }
    std::vector<int64_t> reached = nodesOf(plan, world, group.axis, group.number);
    const int64_t stride = reached[1] - reached[0];
    world.groups.push_back(
        std::make_unique<comm::SubGroup>(*world.counterparts, static_cast<int64_t>(reached.size()), stride));
    world.subTransports.push_back(std::make_unique<comm::SubTransport>(*world.transport, std::move(reached), rails));
    made = std::make_unique<comm::ProcessCommunicator>(*world.groups.back(), ranks, group.communicator,
                                                       *world.subTransports.back(),
                                                       comm::exchangeBytes(plan, group.communicator, nodes),
                                                       world.abort, world.spins, sharedRendezvous(plan, world, group));
  }
  return Status();
}

// `first`: the entries of the process's first rank, whose library functions the others share; null for that rank.
Expected<std::shared_ptr<Entries>> makeEntries(const World& world, int64_t rank, const Entries* first) {
  const plan::Plan& plan = *world.plan;
  const size_t local = world.local(rank);
  auto entries = std::make_shared<Entries>();
  auto finish = [&](Entry& entry) -> Status {
    if (entry.kind == plan::Instruction::kCall) {
      if (first) {
        entry.function = (*first)[entry.number].function;
        return {};
      }
      Expected<Function> function = makeLibraryFunction(*entry.instruction, plan.training().seed());
      if (!function.ok()) return function.status();
      entry.function = std::move(*function);
    } else if (const auto communicator = plan::communicatorOf(plan, *entry.instruction);
               communicator && *communicator < world.communicators.size()) {
      const plan::Axis axis = plan::axisOf(plan, static_cast<int>(*communicator));
      const auto& groups = world.communicators[*communicator];
      const auto group = groups.find(plan::groupOn(plan, axis, rank));
      if (group != groups.end()) entry.communicator = group->second.get();
      entry.place = plan::placeOn(plan, axis, rank);
    }
    return {};
  };
  std::byte* const host = world.hostArenas.empty() ? nullptr : world.hostArenas[local]->data();
  const Status filled = entries->fill({plan, rank, world.arenas[local]->data(), host, world.kernels.get()}, finish);
  return filled.ok() ? Expected<std::shared_ptr<Entries>>(std::move(entries)) : filled;
}

class CpuDevice : public Device {
 public:
  Expected<std::vector<Committed>> committed(const plan::Plan& plan, uint64_t planHash,
                                             const std::vector<std::string>& folders, int64_t rank,
                                             FileLayer* files) override {
    return committedStates(plan, planHash, folders, rank, files);
  }

  std::optional<plan::CpuIdentity> cpuIdentity(const plan::Plan& plan) const override {
    const plan::KernelImage* image = plan::imageFor(plan, "cpu");
    return plan::CpuIdentity{.processor = {},
                             .library = cpu::oneDnnVersion(),
                             .products = cpu::usesOwnProducts() ? "Sheaf" : "oneDNN",
                             .instructions = cpu::effectiveInstructions(),
                             .bf16 = cpu::bf16Instructions(),
                             .kernels = image ? image->cpu() : std::string()};
  }

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
    SHEAF_RETURN_IF_ERROR(makeOwnArenas(plan, *world));
    SHEAF_RETURN_IF_ERROR(makeCommunicators(plan, *world));
    std::vector<std::unique_ptr<RankContext>> contexts;
    std::shared_ptr<Entries> first;
    for (int64_t rank = options.firstRank; rank < options.firstRank + localRanks; ++rank) {
      Expected<std::shared_ptr<Entries>> entries = makeEntries(*world, rank, first.get());
      if (!entries.ok()) return Status::error(cat("rank ", rank, ": ", entries.status().message()));
      if (!first) first = *entries;
      auto context = std::make_unique<CpuContext>(world, rank, std::move(*entries));
      if (Status status = context->status(); !status.ok())
        return Status::error(cat("rank ", rank, ": ", status.message()));
      contexts.push_back(std::move(context));
    }
    return contexts;
  }
};

}  // namespace
}  // namespace sheaf::cpu

extern "C" __attribute__((visibility("default"))) sheaf::Device* sheaf_open_device() {
  static sheaf::cpu::CpuDevice device;
  return &device;
}
