#include "runtime/plan/Summary.h"

#include "runtime/plan/StepWork.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

StageNeeds stageNeeds(const Plan& plan, int32_t within, int32_t between) {
  StageNeeds needs;
  auto part = [&](uint64_t bytes, int32_t least) {
    const int64_t parts = within < least ? 1 : between < least ? ranksPerNode(plan) : plan.ranks();
    return bytes / static_cast<uint64_t>(parts);
  };
  for (const Bucket& bucket : plan.buckets()) {
    needs.parameters += part(bucket.elements() * elementBytes(bucket.type()), 3);
    if (!bucket.trainable()) continue;
    needs.optimizer += part(bucket.elements() * sizeof(float) * static_cast<uint64_t>(bucket.states_size()), 1);
    needs.gradients += part(bucket.elements() * elementBytes(gradientType(bucket)), 2);
  }
  return needs;
}

}  // namespace

Summary summarize(const Plan& plan) {
  Summary summary;
  for (const Parameter& parameter : plan.parameters())
    (parameter.trainable() ? summary.parameters : summary.frozenParameters) +=
        elementCount(shapeOf(parameter)).value_or(0);
  summary.peakBytes = plan.memory().peak_bytes();
  summary.libraryBytes = plan.memory().library_bytes();
  summary.byKind = memoryByKind(plan);
  for (const SpaceMemory& memory : plan.memory().spaces()) {
    SpaceSummary& space = summary.spaces[memory.space()];
    space.peakBytes = memory.peak_bytes();
    for (const KindBytes& kind : memory.by_kind()) space.byKind[kind.kind()] = kind.bytes();
  }
  for (const Instruction* instruction : stepInstructions(plan))
    summary.updates += instruction->updates_bucket() > 0, summary.updatesOnHost += isOnHost(*instruction);
  for (const Instruction* instruction : stepInstructions(plan))
    if (instruction->has_transfer()) {
      Moved& moved = summary.transfers[instruction->transfer().kind()];
      ++moved.count;
      moved.bytes += sourceOf(*instruction).bytes();
    }
  for (const Instruction* instruction : stepInstructions(plan))
    if (instruction->has_collective()) {
      const Collective& collective = instruction->collective();
      const uint64_t bytes = collectiveBytes(plan, collective),
                     members = static_cast<uint64_t>(ranksOf(plan, collective));
      const uint64_t hops = collective.op() == ALL_REDUCE ? 2 : 1;
      summary.communication.push_back({collective.op(), collective.bucket(), collective.phase(), bytes,
                                       axisOf(plan, collective), hops * (bytes * (members - 1) / members),
                                       networkBytes(plan, collective)});
    }
  for (int32_t stage = 0; stage < 4; ++stage)
    summary.stages[static_cast<size_t>(stage)] = stageNeeds(plan, stage, stage);
  const bool nodes = plan.ranks_per_node() > 0;
  summary.own = stageNeeds(plan, plan.zero_stage(), nodes ? plan.network_stage() : plan.zero_stage());
  if (plan.has_floor()) summary.floor = plan.floor();
  summary.issued = issuedWork(plan);
  return summary;
}

}  // namespace sheaf::plan
