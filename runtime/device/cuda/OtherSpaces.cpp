#include "runtime/device/cuda/OtherSpaces.h"

#include <algorithm>
#include <set>

#include "runtime/device/cuda/World.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

// The thread that makes a step durable is the one that overwrites what was durable before (FilePersist.h).
Status openPersist(World& world, int64_t rank, OtherSpaces& spaces) {
  const plan::Generations generations(*world.plan);
  for (const plan::Instruction& instruction : world.plan->body()) {
    if (!instruction.has_persist()) continue;
    for (const plan::Instruction& other : world.plan->body())
      if (other.has_transfer() && generations.isNext(plan::destinationOf(other).buffer()) &&
          other.stream() != instruction.stream())
        return Status::error(cat("rank ", rank, ": ", plan::describe(*world.plan, instruction),
                                 ": it is not on the stream of ", plan::describe(*world.plan, other),
                                 ", as GPUs need it; compile the model again"));
    const auto stream = spaces.fileStreams.find(instruction.stream());
    if (stream == spaces.fileStreams.end())
      return Status::error(cat("rank ", rank, ": ", plan::describe(*world.plan, instruction),
                               ": its stream has no transfers of files; compile the model again"));
    auto persist = FilePersist::create(*spaces.durable, *stream->second, world.abort, rank, world.plan->ranks());
    if (!persist.ok()) return Status::error(cat("rank ", rank, ": ", persist.status().message()));
    spaces.persist = std::move(*persist);
  }
  return {};
}

Status openFiles(World& world, int64_t rank, int node, const HostThread::Fail& fail, OtherSpaces& spaces) {
  const plan::Plan& plan = *world.plan;
  if (plan::arenaTop(plan, plan::Buffer::FILE) == 0) return {};
  auto arena = cpu::openFiles(plan, world.options, rank);
  if (!arena.ok()) return arena.status();
  spaces.files = std::move(*arena);
  spaces.durable = std::make_unique<cpu::DurableState>(plan, *spaces.files);
  for (const auto& [index, staging] : plan::fileStagings(plan)) {
    auto stream = FileStream::create(*spaces.files, staging, node, fail);
    if (!stream.ok()) return Status::error(cat("rank ", rank, ": ", stream.status().message()));
    spaces.fileStreams.emplace(index, std::move(*stream));
  }
  return openPersist(world, rank, spaces);
}

Status openHostComputes(const World& world, int64_t rank, const HostThread::Fail& fail, OtherSpaces& spaces) {
  std::set<uint32_t> streams;
  plan::forEachInstruction(*world.plan, [&](const plan::Instruction& instruction) {
    if (plan::isOnHost(instruction)) streams.insert(instruction.stream());
  });
  const int threads = std::max(world.options.threadsPerRank, 1), node = spaces.host ? spaces.host->node() : -1;
  for (uint32_t index : streams) {
    auto compute = HostCompute::create(threads, node, fail);
    if (!compute.ok()) return Status::error(cat("rank ", rank, ": ", compute.status().message()));
    spaces.hostComputes.emplace(index, std::move(*compute));
  }
  return {};
}

}  // namespace

Status openSpaces(World& world) {
  const uint64_t host = plan::arenaTop(*world.plan, plan::Buffer::HOST);
  const int node = nodeOf(world.gpu.index);
  world.spaces.resize(static_cast<size_t>(world.localRanks));
  for (int64_t i = 0; i < world.localRanks; ++i) {
    const int64_t rank = world.options.firstRank + i;
    OtherSpaces& spaces = world.spaces[static_cast<size_t>(i)];
    if (host > 0) {
      auto arena = HostArena::create(host, node, world.options.poison, "what --offload keeps there");
      if (!arena.ok()) return Status::error(cat("rank ", rank, ": ", arena.status().message()));
      spaces.host = std::move(*arena);
    }
    const HostThread::Fail fail = [&world, rank](const plan::Instruction& instruction, const std::string& why) {
      world.abort.raise(Status::error(cat("rank ", rank, ": ", plan::describe(*world.plan, instruction), ": ", why)));
    };
    SHEAF_RETURN_IF_ERROR(openFiles(world, rank, node, fail, spaces));
    SHEAF_RETURN_IF_ERROR(openHostComputes(world, rank, fail, spaces));
  }
  world.abort.listen([&world] {
    for (const OtherSpaces& spaces : world.spaces) {
      for (const auto& [index, stream] : spaces.fileStreams) stream->stop();
      for (const auto& [index, compute] : spaces.hostComputes) compute->stop();
    }
  });
  return {};
}

void describeSpaces(const World& world, const std::function<void(const std::string&, const std::string&)>& note) {
  const OtherSpaces& spaces = world.spaces.front();
  if (const uint64_t bytes = plan::pinnedBytes(*world.plan)) note("pinned_bytes", std::to_string(bytes));
  if (spaces.host) {
    const int node = spaces.host->node();
    note("pinned_on_node", node < 0 ? "unknown" : std::to_string(node));
  }
  if (!spaces.hostComputes.empty())
    note("host_update_threads", std::to_string(spaces.hostComputes.begin()->second->threads()));
  if (spaces.files) note("file_input_output", spaces.files->isDirect() ? "direct" : "through the page cache");
}

}  // namespace sheaf::cuda
