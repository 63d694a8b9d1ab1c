#include "passes/schedule/PlanLoop.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/plan/AccessHistory.h"
#include "runtime/plan/Images.h"
#include "runtime/plan/StepWork.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::schedule {
namespace {

// Buffers that hold a rank's shard: sharded state, sources of all-gathers, destinations of reduce-scatters.
std::vector<bool> shardedBuffers(const plan::Plan& plan) {
  std::vector<bool> sharded(static_cast<size_t>(plan.buffers_size()));
  for (const plan::Bucket& bucket : plan.buckets()) {
    if (bucket.parameters_sharded()) sharded[bucket.parameter_buffer()] = true;
    if (bucket.states_sharded())
      for (const plan::State& state : bucket.states()) sharded[state.buffer()] = true;
  }
  for (const plan::Instruction* instruction : plan::stepInstructions(plan)) {
    if (!instruction->has_collective()) continue;
    const plan::CollectiveOp op = instruction->collective().op();
    const plan::Operand& own =
        op == plan::ALL_GATHER ? plan::sourceOf(*instruction) : plan::destinationOf(*instruction);
    if (op != plan::ALL_REDUCE && own.shard_stride() == 0 &&
        plan.buffers(static_cast<int>(own.buffer())).bytes() == own.bytes())
      sharded[own.buffer()] = true;
  }
  const std::vector<uint32_t> images = plan::imageGroups(plan);
  for (size_t b = 0; b < sharded.size(); ++b)
    if (sharded[b]) sharded[images[b]] = true;
  for (size_t b = 0; b < sharded.size(); ++b) sharded[b] = sharded[images[b]];
  return sharded;
}

// The size of a shard on `ranks` ranks, relative to that on the plan's number of ranks.
double shareScale(const plan::Plan& plan, int64_t ranks) {
  return static_cast<double>(plan.ranks()) / static_cast<double>(ranks);
}

// The instruction's work with the bytes of shards scaled.
profile::Work scaledWork(const plan::Instruction& instruction, const plan::Plan& plan, const std::vector<bool>& sharded,
                         double scale) {
  profile::Work work = profile::workOf(instruction, plan);
  if (scale == 1) return work;
  double whole = 0, shares = 0;
  plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
    const double bytes = static_cast<double>(operand.bytes());
    (operand.shard_stride() > 0 || sharded[operand.buffer()] ? shares : whole) += bytes;
  });
  if (shares > 0) {
    const double ratio = (whole + shares * scale) / (whole + shares);
    work.bytes *= ratio;
    if (work.kind == profile::Work::Kind::kKernel) work.flops *= ratio;
  }
  return work;
}

// On another number of ranks than the plan's there are more or fewer nodes, of as many ranks.
profile::Transfer transferOf(const plan::Collective& collective, const plan::Plan& plan, int64_t ranks) {
  const int64_t node = plan::ranksPerNode(plan);
  const uint64_t bytes = plan::collectiveBytes(plan, collective);
  switch (plan::axisOf(plan, collective)) {
    case plan::NODE:
      return {collective.op(), bytes, node, 1};
    case plan::NETWORK:
      return {collective.op(), bytes, std::max<int64_t>(ranks / node, 1), node};
    default:
      return {collective.op(), bytes, ranks, 1};
  }
}

Unit unitOf(plan::Transfer::Kind kind) {
  switch (kind) {
    case plan::Transfer::TO_DEVICE:
      return Unit::kToDevice;
    case plan::Transfer::TO_HOST:
      return Unit::kToHost;
    case plan::Transfer::READ_FILE:
      return Unit::kFileIn;
    default:
      return Unit::kFileOut;
  }
}

// Progress of a stream: its latest op that is known to be done, and that op's round.
struct Reached {
  uint32_t op = 0;
  int64_t round = -1;  // none
  bool operator<(const Reached& other) const { return round != other.round ? round < other.round : op < other.op; }
};
using Clock = std::vector<Reached>;

void join(Clock& into, const Clock& from) {
  for (size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], from[s]);
}

// Turns records and waits into dependences. After kRounds rounds, waits refer to the same records in every round.
void addDependences(const plan::Plan& plan, const std::vector<const plan::Instruction*>& step,
                    const std::vector<int64_t>& opOf, Loop& loop) {
  constexpr int64_t kRounds = 3;
  const size_t streams = static_cast<size_t>(std::max(plan.streams_size(), 1));
  std::vector<Clock> waited(streams, Clock(streams));  // by stream: what its waits since its latest op cover
  std::vector<Clock> recorded(plan.events(), Clock(streams));
  Clock latest(streams);
  for (int64_t round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < step.size(); ++i) {
      const plan::Instruction& instruction = *step[i];
      const uint32_t stream = instruction.stream();
      if (instruction.has_record()) {
        recorded[instruction.record().event()] = waited[stream];
        recorded[instruction.record().event()][stream] = latest[stream];
      } else if (instruction.has_wait()) {
        join(waited[stream], recorded[instruction.wait().event()]);
      } else {
        const uint32_t op = static_cast<uint32_t>(opOf[i]);
        for (size_t other = 0; other < streams; ++other) {
          const Reached& r = waited[stream][other];
          if (other == stream || r.round < 0 || round + 1 < kRounds) continue;
          loop.dependences.push_back({r.op, op, static_cast<uint32_t>(round - r.round)});
        }
        std::fill(waited[stream].begin(), waited[stream].end(), Reached{});
        latest[stream] = {op, round};
      }
    }
}

}  // namespace

Unit linkOf(const profile::Transfer& transfer, int64_t ranks, int64_t ranksPerNode) {
  if (ranks <= ranksPerNode) return Unit::kLink;  // there is one link only
  if (transfer.ranks * transfer.stride <= ranksPerNode) return Unit::kNodeLink;
  return transfer.stride >= ranksPerNode ? Unit::kNetwork : Unit::kLink;
}

PlanLoop loopOf(const plan::Plan& plan, const profile::Profile& profile) {
  const std::vector<bool> sharded = shardedBuffers(plan);
  const double scale = shareScale(plan, profile.ranks());
  PlanLoop result;
  result.loop.slowdown = profile.slowdown();
  result.loop.networkSlowdown = profile.networkSlowdown();
  result.loop.copySlowdown = profile.copySlowdown();
  double fileSeconds = 0, lost = 0;
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  std::vector<int64_t> opOf(step.size(), -1);
  for (size_t i = 0; i < step.size(); ++i) {
    const plan::Instruction& instruction = *step[i];
    if (instruction.has_record() || instruction.has_wait()) continue;
    Op op;
    op.stream = instruction.stream();
    if (instruction.has_collective()) {
      const profile::Transfer transfer = transferOf(instruction.collective(), plan, profile.ranks());
      op.unit = linkOf(transfer, profile.ranks(), profile.ranksPerNode());
      op.seconds = profile.seconds(transfer);
      // Ranks that share a machine copy what they exchange.
      op.hostLoad = profile.isOfGpus() ? 0 : 1;
    } else if (instruction.has_transfer()) {
      const plan::Transfer& transfer = instruction.transfer();
      const plan::Operand& source = plan::sourceOf(instruction);
      uint64_t bytes = source.bytes();
      if (sharded[source.buffer()] || source.shard_stride() > 0)
        bytes = static_cast<uint64_t>(std::llround(static_cast<double>(bytes) * scale));
      op.unit = unitOf(transfer.kind());
      op.seconds = profile.seconds(transfer.kind(), bytes);
      op.hostLoad = profile.hostLoad(transfer.kind(), bytes);
      if (isFile(op.unit)) fileSeconds += op.seconds, lost += lostTo(op.seconds, profile.fileSlowdown(bytes));
    } else if (plan::isOnHost(instruction)) {
      op.unit = Unit::kHostCompute;
      op.seconds = profile.hostUpdateSeconds(scaledWork(instruction, plan, sharded, scale));
      op.hostLoad = profile.hostUpdateLoad();
    } else if (instruction.has_persist()) {
      op.unit = Unit::kFileOut;
      op.seconds = profile.persistSeconds().value_or(0);
    } else {
      op.unit = instruction.has_kernel() || instruction.has_call() ? Unit::kCompute : Unit::kHost;
      op.seconds = profile.seconds(scaledWork(instruction, plan, sharded, scale));
    }
    opOf[i] = static_cast<int64_t>(result.loop.ops.size());
    result.loop.ops.push_back(op);
    result.instructions.push_back(static_cast<int>(i));
  }
  // The loop has one slowdown for all files: with it computation loses as much to all of them together.
  result.loop.fileSlowdown = lost > 0 ? lost / (fileSeconds - lost) : 0;
  addDependences(plan, step, opOf, result.loop);
  return result;
}

LinkUse linkUseOf(const plan::Plan& plan, const PlanLoop& loop, const profile::Profile& profile) {
  double within = 0, between = 0;
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  for (int index : loop.instructions) {
    const plan::Instruction& instruction = *step[static_cast<size_t>(index)];
    if (!instruction.has_collective()) continue;
    const profile::Transfer transfer = transferOf(instruction.collective(), plan, profile.ranks());
    const double ranks = static_cast<double>(transfer.ranks), nodes = static_cast<double>(profile.nodes(transfer));
    const double hops = transfer.op == plan::ALL_REDUCE ? 2 : 1;
    // A rank sends to the next one of a ring; of the ring's hops as many as it has nodes are between them.
    const double sent = hops * static_cast<double>(transfer.bytes) * (ranks - 1) / ranks;
    const double part = nodes > 1 ? nodes / ranks : 0;
    within += sent * (1 - part);
    between += sent * part;
  }
  return {static_cast<uint64_t>(std::llround(within)), static_cast<uint64_t>(std::llround(between))};
}

std::vector<Dependence> dataDependences(const plan::Plan& plan, const PlanLoop& loop) {
  std::vector<Dependence> dependences;
  std::vector<plan::AccessHistory> histories(static_cast<size_t>(plan.buffers_size()));
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  const auto count = static_cast<uint32_t>(loop.instructions.size());
  std::set<uint32_t> writers;  // ops of two rounds
  // All ranks run the same instructions: rank 0's addresses stand for all.
  auto access = [&](uint32_t op, const plan::Operand& operand, plan::Access access) {
    histories[operand.buffer()].add(operand.offset(), operand.offset() + operand.bytes(), op, 0, access,
                                    [&](size_t earlier, uint64_t, uint64_t, plan::Conflict kind) {
                                      if (kind == plan::Conflict::kTrue) writers.insert(static_cast<uint32_t>(earlier));
                                    });
  };
  for (uint32_t op = 0; op < 2 * count; ++op) {
    const plan::Instruction& instruction = *step[static_cast<size_t>(loop.instructions[op % count])];
    writers.clear();
    // An instruction reads what was there before it writes anything.
    plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
      if (operand.access() != plan::WRITE) access(op, operand, plan::READ);
    });
    plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
      if (operand.access() != plan::READ) access(op, operand, plan::WRITE);
    });
    if (op >= count)
      for (uint32_t writer : writers) dependences.push_back({writer % count, op - count, writer < count});
    if (instruction.has_persist())
      for (const plan::Generation& generation : plan.generations())
        std::swap(histories[generation.current()], histories[generation.next()]);
  }
  return dependences;
}

Status checkCosts(const plan::Plan& plan, const profile::Profile& profile) {
  Status status;
  plan::forEachInstruction(plan, [&](const plan::Instruction& instruction) {
    if (status.ok() && plan::isOnHost(instruction) && !profile.knowsHostUpdates())
      status = Status::error(cat("profile ", profile.name(),
                                 " does not say what the plan's updates on the host cost; give it an entry "
                                 "\"host_updates\", or compile with --update-on device"));
    if (!status.ok() || !instruction.has_transfer() || profile.knows(instruction.transfer().kind())) return;
    const std::string& kind = plan::word(instruction.transfer().kind());
    status = Status::error(cat("profile ", profile.name(), " does not say what the plan's transfers of kind ", kind,
                               " cost; give it an entry \"", kind, "\" in its list \"transfers\""));
  });
  return status;
}

uint64_t peakBytes(const plan::Plan& plan, int64_t ranks) {
  const uint64_t peak = plan.memory().peak_bytes();
  if (ranks == plan.ranks()) return peak;
  const std::vector<bool> sharded = shardedBuffers(plan);
  uint64_t state = 0;
  for (int i = 0; i < plan.buffers_size(); ++i)
    if (const plan::Buffer& buffer = plan.buffers(i); buffer.persistent() && buffer.space() == plan::Buffer::DEVICE)
      if (sharded[static_cast<size_t>(i)]) state += buffer.bytes();
  state = std::min(state, peak);
  return peak - state + static_cast<uint64_t>(static_cast<double>(state) * shareScale(plan, ranks));
}

}  // namespace sheaf::schedule
