#include "runtime/plan/Proof.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/Conflicts.h"
#include "runtime/plan/Dataflow.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Images.h"
#include "runtime/plan/InitialisedReads.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/OperandOverlap.h"
#include "runtime/plan/Places.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

class Proof {
 public:
  explicit Proof(const Plan& plan)
      : plan_(plan),
        sequence_(plan),
        places_(plan),
        order_(sequence_.issued(), static_cast<uint32_t>(plan.streams_size()), plan.events()) {}

  Status run() const {
    SHEAF_RETURN_IF_ERROR(checkTables(plan_));
    SHEAF_RETURN_IF_ERROR(stage());
    SHEAF_RETURN_IF_ERROR(events());
    SHEAF_RETURN_IF_ERROR(communicators());
    SHEAF_RETURN_IF_ERROR(checkOperandOverlap(places_));
    SHEAF_RETURN_IF_ERROR(races());
    SHEAF_RETURN_IF_ERROR(checkInitialisedReads(sequence_, places_));
    SHEAF_RETURN_IF_ERROR(dataflow());
    return memory();
  }

 private:
  // The operands of a bucket's update determine its stage on each axis: the parameters are the same on all its ranks;
  // the rank updates its part of parameters that all hold, with the gradient's part in a gradient of all parts or on
  // its own; or it holds its part of the parameters only.
  Status stage() const {
    if (plan_.ranks() == 1) return {};
    const bool nodes = plan_.ranks_per_node() > 0;
    std::string breaks = cat("the plan breaks ZeRO stage ", plan_.zero_stage(),
                             nodes ? cat(" within nodes and ", plan_.network_stage(), " between them") : "", ": ");
    for (const Bucket& bucket : plan_.buckets()) {
      if (plan_.zero_stage() >= 3 && !bucket.parameters_sharded())
        return Status::error(cat(breaks, "bucket '", bucket.name(), "' keeps whole parameters on every rank"));
      if (plan_.zero_stage() >= 1 && !bucket.states_sharded() && bucket.states_size() > 0)
        return Status::error(cat(breaks, "bucket '", bucket.name(), "' keeps whole optimizer state on every rank"));
    }
    for (const Buffer& buffer : plan_.buffers())
      if (plan_.zero_stage() >= 2 && buffer.persistent() && buffer.kind() == GRADIENTS)
        return Status::error(cat(breaks, "buffer '", buffer.name(), "' keeps gradients from step to step"));
    const std::vector<uint32_t> images = imageGroups(plan_);
    for (int i = 0; i < plan_.body_size(); ++i) {
      const Instruction& update = plan_.body(i);
      if (update.updates_bucket() == 0) continue;
      const Bucket& bucket = plan_.buckets(static_cast<int>(update.updates_bucket() - 1));
      RankStrides part;
      for (const Operand& operand : update.operands())
        if (images[operand.buffer()] == images[bucket.parameter_buffer()] && operand.shard_stride() != 0)
          part = stridesOf(plan_, operand);
      const RankStrides gradient = stridesOf(plan_, update.operands(1));
      const int64_t parts = parameterParts(plan_, bucket);
      auto held = [](bool sharded, uint64_t part, uint64_t ofGradient) {
        return sharded ? 3 : !part ? 0 : ofGradient ? 1 : 2;
      };
      auto check = [&](const char* where, int held, int stage) {
        if (held == stage) return Status();
        return Status::error(cat(breaks, describe(plan_, "body", i, update), " holds bucket '", bucket.name(),
                                 "' as stage ", held, " does", where));
      };
      if (ranksPerNode(plan_) > 1)
        SHEAF_RETURN_IF_ERROR(
            check(nodes ? " within a node" : "", held(parts > 1, part.local, gradient.local), plan_.zero_stage()));
      if (nodesOf(plan_) > 1)
        SHEAF_RETURN_IF_ERROR(
            check(" between nodes", held(parts == plan_.ranks(), part.node, gradient.node), plan_.network_stage()));
    }
    return {};
  }

  // A wait for an event that nothing records would order nothing.
  Status events() const {
    std::set<uint32_t> recorded;
    for (const IssuedInstruction& issued : sequence_.issued())
      if (issued.kind == IssuedInstruction::kRecord) recorded.insert(issued.event);
    for (size_t i = 0; i < sequence_.size(); ++i)
      if (const IssuedInstruction& issued = sequence_.issued()[i];
          issued.kind == IssuedInstruction::kWait && !recorded.contains(issued.event))
        return Status::error(cat("the plan is refused: ", sequence_.name(i), " waits for event ", issued.event,
                                 ", which nothing records"));
    return {};
  }

  // Ranks meet in collectives only. If those of a communicator are totally ordered, all ranks meet in the same order;
  // and since waits look back in issue order, the first instruction that is not complete on all ranks can always go on.
  Status communicators() const {
    std::map<uint32_t, size_t> latest;
    for (size_t i = 0; i < sequence_.size(); ++i) {
      if (sequence_.isHost(i)) continue;
      const std::optional<uint32_t> communicator = communicatorOf(plan_, *sequence_[i].instruction);
      if (!communicator) continue;
      auto [entry, first] = latest.try_emplace(*communicator, i);
      if (first) continue;
      if (!order_.ordered(entry->second, i))
        return Status::error(cat("the plan may deadlock: ranks may meet in ", both(entry->second, i),
                                 " in different orders on communicator ", entry->first, ": ",
                                 missing(entry->second, i)));
      entry->second = i;
    }
    return {};
  }

  Status races() const {
    Status status;
    Conflicts conflicts(sequence_, [&](size_t entry, uint32_t buffer) { return sequence_.addressAt(entry, buffer); });
    for (size_t i = 0; i < sequence_.size() && status.ok(); ++i)
      conflicts.visit(i, [&](size_t earlier, uint32_t buffer, uint64_t begin, uint64_t end, Conflict kind) {
        if (status.ok() && !order_.ordered(earlier, i))
          status = race(earlier, i, buffer, begin, end, kind != Conflict::kTrue);
      });
    return status;
  }

  Status race(size_t earlier, size_t later, uint32_t buffer, uint64_t begin, uint64_t end, bool write) const {
    return Status::error(cat("the plan may race: nothing orders ", both(earlier, later), ": the second ",
                             write ? "writes " : "reads ", arenaText(begin, end), " as buffer '", bufferName(buffer),
                             "', the first ", accessOf(earlier, buffer, begin, end), "; ", missing(earlier, later)));
  }

  std::string bufferName(uint32_t buffer) const { return shortName(plan_.buffers(static_cast<int>(buffer)).name()); }

  // What the earlier instruction does with the bytes, and as which buffer if it is another.
  std::string accessOf(size_t earlier, uint32_t buffer, uint64_t begin, uint64_t end) const {
    bool writes = false;
    std::string other;
    forEachOperand(*sequence_[earlier].instruction, [&](const Operand& operand) {
      ArenaRange range = sequence_.rangeAt(earlier, operand);
      if (range.begin >= end || begin >= range.end) return;
      writes |= operand.access() != READ;
      if (operand.buffer() != buffer) other = cat(" as buffer '", bufferName(operand.buffer()), "'");
    });
    return cat(writes ? "writes them" : "reads them", other);
  }

  std::string both(size_t earlier, size_t later) const {
    bool before = sequence_[earlier].step < sequence_[later].step && sequence_[earlier].part == sequence_[later].part;
    const char* which = sequence_[later].part == Part::kEvaluation ? " of the batch before" : " of the step before";
    return cat(sequence_.name(earlier), before ? which : "", " and ", sequence_.name(later));
  }
  std::string missing(size_t earlier, size_t later) const {
    return cat("stream ", sequence_.streamName(later), " must wait before the second for an event that stream ",
               sequence_.streamName(earlier), " records after the first");
  }

  Status dataflow() const {
    Dataflow dataflow = followDataflow(places_);
    SHEAF_RETURN_IF_ERROR(dataflow.induction);
    return checkDataflow(plan_, dataflow.digests);
  }

  // What is declared of the kinds of memory; the peak, and that no kind is missing, is a matter of the tables.
  Status memory() const {
    SHEAF_RETURN_IF_ERROR(memory(Buffer::DEVICE, plan_.memory().by_kind()));
    for (const SpaceMemory& space : plan_.memory().spaces())
      SHEAF_RETURN_IF_ERROR(memory(space.space(), space.by_kind()));
    return {};
  }

  Status memory(Buffer::Space space, const google::protobuf::RepeatedPtrField<KindBytes>& list) const {
    std::map<BufferKind, uint64_t> kinds = memoryByKind(plan_, space);
    for (const KindBytes& declared : list)
      if (uint64_t held = kinds[declared.kind()]; held != declared.bytes())
        return Status::error(cat("the plan declares ", declared.bytes(), " bytes of ", word(declared.kind()),
                                 space == Buffer::DEVICE ? "" : cat(" in space ", word(space)),
                                 ", its instructions hold ", held));
    return {};
  }

  const Plan& plan_;
  const Unrolled sequence_;
  const Places places_;
  const HappensBefore order_;
};

}  // namespace

Status provePlan(const Plan& plan) {
  return Proof(plan).run();
}

Expected<std::unique_ptr<Plan>> readProvedPlan(const std::string& path, Undigested undigested) {
  Expected<std::unique_ptr<Plan>> plan = readPlan(path);
  if (!plan.ok()) return plan;
  // First the tables: an entry that was changed by accident is named as such, not by what no longer fits it.
  Status proved = checkTables(**plan);
  if (proved.ok()) proved = verifyPlan(**plan);
  if (proved.ok()) proved = provePlan(**plan);
  if (proved.ok() && undigested == Undigested::kRefused) proved = requireDigests(**plan);
  if (!proved.ok()) return Status::error(cat(path, ": ", proved.message()));
  return plan;
}

}  // namespace sheaf::plan
