// Chooses which buffers move to other spaces, and which updates run on the host; Mover moves them.
#include <algorithm>
#include <set>

#include "passes/plan/Finish.h"
#include "passes/plan/ListOrder.h"
#include "passes/plan/Mover.h"
#include "passes/plan/Transfers.h"
#include "passes/schedule/Construct.h"
#include "passes/schedule/Placement.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "runtime/profile/Profile.h"

namespace sheaf::plan_ir {
namespace {

using Space = plan::Buffer::Space;

// Between two uses an image is stored and fetched again if that takes less than this part of the computation between.
constexpr double kWorthMoving = 0.5;
// Values of the step that are smaller stay.
constexpr uint64_t kLeastActivation = 16 << 10;

// Two uses of a buffer that follow each other.
struct Inner {
  const Section* section = nullptr;
  size_t before = 0, after = 0;
};

// Moves buffers to stay within a limit: states a problem of placement over the plan's buffers, and carries out its
// solution.
class WithinLimit {
 public:
  WithinLimit(const profile::Profile& profile, const BufferUses& uses, Mover& mover)
      : profile_(profile), uses_(uses), mover_(mover) {}

  // Moves as much of these buffers as leaves `deviceBytes` alive on the device, by cost; state of `updates` all or
  // none of an update, which then runs on the host.
  void move(const std::vector<uint32_t>& movable, const std::vector<HostUpdate>& updates, uint64_t deviceBytes,
            uint64_t hostBytes) {
    schedule::PlacementProblem problem;
    problem.deviceBytes = deviceBytes, problem.hostBytes = hostBytes;
    problem.live = uses_.liveBytes();
    for (const Section& section : uses_.sections()) problem.computeSeconds += section.times * section.begin.back();
    std::set<uint32_t> together;
    for (const HostUpdate& update : updates) {
      problem.movables.push_back(movableOf(update, problem.computeSeconds));
      together.insert(update.states.begin(), update.states.end());
    }
    std::vector<uint32_t> single;
    std::vector<std::vector<Inner>> inner;
    for (uint32_t buffer : movable) {
      if (together.contains(buffer)) continue;
      single.push_back(buffer);
      problem.movables.push_back(movableOf(buffer, problem.computeSeconds, inner.emplace_back()));
    }
    const schedule::Placement placement = schedule::choosePlacement(problem, profile_);
    size_t next = 0;
    for (const HostUpdate& update : updates) {
      const schedule::Placed& placed = placement.placed[next++];
      if (placed.space == plan::Buffer::DEVICE) continue;
      mover_.runOnHost(update);
      for (uint32_t state : update.states)
        mover_.move(state, placed.space, [](const Section&, size_t, size_t) { return false; });
    }
    for (size_t i = 0; i < single.size(); ++i) {
      const schedule::Placed& placed = placement.placed[next++];
      const std::vector<Inner>& gaps = inner[i];
      if (placed.space == plan::Buffer::DEVICE) continue;
      const size_t first = placed.gaps.size() - gaps.size();  // of what persists, the gap between steps comes first
      auto away = [&](const Section& section, size_t before, size_t after) {
        for (size_t g = 0; g < gaps.size(); ++g)
          if (gaps[g].section == &section && gaps[g].before == before && gaps[g].after == after)
            return bool{placed.gaps[first + g]};
        return false;
      };
      mover_.move(single[i], placed.space, away);
    }
  }

 private:
  // The state of an update, which stays where it is moved to: the gradient goes there, and the parameters come back.
  schedule::Movable movableOf(const HostUpdate& update, double stepSeconds) const {
    schedule::Movable movable;
    movable.persistent = true;
    for (uint32_t state : update.states) movable.bytes += uses_.at(state).bytes();
    schedule::Gap home;
    home.between = stepSeconds;
    home.spans.emplace_back(0, uses_.positions());
    for (const plan::Operand& operand : update.instruction().operands()) {
      if (std::find(update.states.begin(), update.states.end(), operand.buffer()) != update.states.end()) continue;
      const double part = static_cast<double>(operand.bytes()) / static_cast<double>(movable.bytes);
      if (operand.access() != plan::WRITE) home.stores += part;
      if (operand.access() != plan::READ) home.fetches += part;
    }
    movable.gaps.push_back(std::move(home));
    movable.updateSeconds = profile_.hostUpdateSeconds(profile::workOf(update.instruction(), uses_.plan()));
    return movable;
  }

  // `stepSeconds`: of computation, under any of which what persists can move between steps.
  schedule::Movable movableOf(uint32_t buffer, double stepSeconds, std::vector<Inner>& inner) const {
    schedule::Movable movable;
    movable.bytes = uses_.at(buffer).bytes();
    movable.persistent = uses_.at(buffer).persistent();
    schedule::Gap home;
    home.between = stepSeconds;
    for (const Section& section : uses_.sections()) {
      const uint32_t end = section.first + static_cast<uint32_t>(section.size());
      auto found = section.uses.find(buffer);
      if (found == section.uses.end()) {
        home.spans.emplace_back(section.first, end);
        continue;
      }
      const std::vector<size_t>& uses = found->second;
      const Session all(uses.begin(), uses.end());
      home.spans.emplace_back(section.first, section.first + static_cast<uint32_t>(uses.front()));
      home.spans.emplace_back(section.first + static_cast<uint32_t>(uses.back()) + 1, end);
      home.fetches += uses_.writesWholeFirst(section, all, buffer) ? 0 : section.times;
      home.stores += uses_.writes(section, all, buffer) ? section.times : 0;
    }
    if (movable.persistent) movable.gaps.push_back(std::move(home));
    const Section* only = uses_.onlySectionOf(buffer);
    for (const Section& section : uses_.sections()) {
      auto found = section.uses.find(buffer);
      if (found == section.uses.end() || (!movable.persistent && &section != only)) continue;
      const std::vector<size_t>& uses = found->second;
      bool changed = true;  // since it was last stored
      for (size_t u = 1; u < uses.size(); ++u) {
        const size_t before = uses[u - 1], after = uses[u];
        changed |= uses_.writes(section, {before}, buffer);
        if (section.between(before, after) <= 0) continue;
        if (!movable.persistent &&
            !uses_.isWritten(section, Session(uses.begin(), uses.begin() + static_cast<std::ptrdiff_t>(u)), buffer))
          continue;
        inner.push_back({&section, before, after});
        const uint32_t first = section.first + static_cast<uint32_t>(before) + 1;
        movable.gaps.push_back({{{first, section.first + static_cast<uint32_t>(after)}},
                                section.times,
                                changed ? section.times : 0,
                                section.between(before, after)});
        changed = false;
      }
    }
    return movable;
  }

  const profile::Profile& profile_;
  const BufferUses& uses_;
  Mover& mover_;
};

// Puts the instructions of a list into an order that keeps few bytes alive: the schedule's where memory is short.
void orderLeanly(plan::Plan& plan, plan::InstructionList& list, const profile::Profile& profile) {
  if (list.empty()) return;
  const schedule::StepModel model = modelOfList(plan, list, profile);
  schedule::ConstructionOptions lean;
  lean.maxGathersAhead = 0;
  moveToBegin(list, reorder(list, model, schedule::Constructor(model).construct(lean)));
}

std::optional<Space> spaceNamed(const std::string& word) {
  return plan::valueOf<plan::Buffer::Space>(word);
}

// The kinds of buffers that can be moved.
class Movables {
 public:
  explicit Movables(const plan::Plan& plan) {
    for (const plan::Bucket& bucket : plan.buckets()) {
      parameters_.insert(bucket.parameter_buffer());
      for (const plan::State& state : bucket.states()) states_.insert(state.buffer());
    }
    for (int i = 0; i < plan.buffers_size(); ++i) {
      const plan::Buffer& buffer = plan.buffers(i);
      if (buffer.persistent()) continue;
      if (buffer.kind() == plan::GRADIENTS) gradients_.insert(static_cast<uint32_t>(i));
      if (buffer.kind() == plan::ACTIVATIONS && buffer.bytes() >= kLeastActivation)
        values_.insert(static_cast<uint32_t>(i));
    }
  }

  const std::set<uint32_t>& states() const { return states_; }
  const std::set<uint32_t>& parameters() const { return parameters_; }
  const std::set<uint32_t>& gradients() const { return gradients_; }
  const std::set<uint32_t>& values() const { return values_; }
  // In the order of the plan.
  std::vector<uint32_t> all() const {
    std::set<uint32_t> all(states_);
    for (const auto* kind : {&parameters_, &gradients_, &values_}) all.insert(kind->begin(), kind->end());
    return {all.begin(), all.end()};
  }

 private:
  std::set<uint32_t> states_, parameters_, gradients_, values_;
};

// Moves buffers whole, and between uses that are far apart.
void moveKind(const std::set<uint32_t>& kind, Space space, const profile::Profile& profile, const BufferUses& uses,
              Mover& mover) {
  if (space == plan::Buffer::DEVICE) return;
  for (uint32_t buffer : kind) {
    const uint64_t bytes = uses.at(buffer).bytes();
    const double moving =
        profile.seconds(transferKind(space, true), bytes) + profile.seconds(transferKind(space, false), bytes);
    mover.move(buffer, space, [moving](const Section& section, size_t before, size_t after) {
      return kWorthMoving * section.between(before, after) > moving;
    });
  }
}

}  // namespace

Status offload(Draft& draft, const OffloadOptions& options) {
  const auto optimizer = spaceNamed(options.optimizer), parameters = spaceNamed(options.parameters);
  const auto gradients = spaceNamed(options.gradients), activations = spaceNamed(options.activations);
  if (!optimizer || !parameters || !gradients || !activations)
    return Status::error(
        cat("a kind can lie in one of these spaces: ", listText(plan::words<plan::Buffer::Space>(), SIZE_MAX)));
  if (options.updateOn != "device" && options.updateOn != "host")
    return Status::error("updates are made on one of: device, host");
  Expected<profile::Profile> profile = schedule::loadProfile(options.profileName);
  if (!profile.ok()) return profile.status();
  Expected<profile::Profile> scaled = profile->withRanks(draft.plan.ranks());
  if (!scaled.ok()) return scaled.status();
  if (options.within >= 0)
    for (plan::InstructionList* list : roundsOf(draft.plan)) orderLeanly(draft.plan, *list, *scaled);
  const plan::Plan before = draft.plan;
  const BufferUses uses(before, *scaled);
  const Movables movables(before);
  Mover mover(draft.plan, uses);
  std::vector<HostUpdate> updates;
  if (options.updateOn == "host") updates = mover.hostUpdates();
  if (options.within >= 0) {
    WithinLimit(*scaled, uses, mover)
        .move(movables.all(), updates, static_cast<uint64_t>(options.within),
              options.hostBytes < 0 ? UINT64_MAX : static_cast<uint64_t>(options.hostBytes));
    return {};
  }
  if (*optimizer != plan::Buffer::DEVICE)
    for (const HostUpdate& update : updates) mover.runOnHost(update);
  moveKind(movables.states(), *optimizer, *scaled, uses, mover);
  moveKind(movables.parameters(), *parameters, *scaled, uses, mover);
  moveKind(movables.gradients(), *gradients, *scaled, uses, mover);
  moveKind(movables.values(), *activations, *scaled, uses, mover);
  return {};
}

}  // namespace sheaf::plan_ir
