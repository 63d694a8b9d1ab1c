#include "passes/schedule/DeepSpeedOffload.h"

#include <algorithm>
#include <cmath>

#include "passes/schedule/BaselineGroups.h"
#include "runtime/base/Text.h"

namespace sheaf::schedule {
namespace {

using Space = plan::Buffer::Space;
using Transfer = plan::Transfer;

// The host keeps of each element weight, two moments and gradient, in f32.
constexpr uint64_t kState = 3 * sizeof(float), kGradient = sizeof(float);

class Offloader {
 public:
  Offloader(const BaselineStep& step, const DeepSpeedOffloadKnobs& knobs)
      : step_(step),
        knobs_(knobs),
        ranks_(static_cast<uint64_t>(step.ranks)),
        elements_(trainedElements(step) / ranks_),
        s_(deepSpeedSchedule(step, knobs.zero)) {}

  BaselineSchedule schedule() {
    const double ratio = knobs_.zero.stage == 3 ? knobs_.ratio : 1;
    onHost_ = static_cast<uint64_t>(static_cast<double>(elements_) * ratio);
    storeGradients();
    if (knobs_.zero.stage == 3 && knobs_.parameters != plan::Buffer::DEVICE) fetchParameters();
    updateOnHost();
    s_.updateSeconds *= 1 - ratio;
    free(static_cast<uint64_t>(static_cast<double>(step_.optimizerBytes / ranks_) * ratio));
    if (knobs_.zero.stage > 1) free(gradientBytes(step_) / ranks_);
    describe();
    return std::move(s_);
  }

 private:
  void free(uint64_t bytes) { s_.constantBytes -= std::min(s_.constantBytes, bytes); }

  bool stateInFiles() const { return knobs_.optimizer == plan::Buffer::FILE; }

  // A rank's shard of a reduced gradient goes to the host; where the state is in files, in f32 to a file.
  void storeGradients() {
    const uint64_t width = gradientWidth(step_);
    for (BaselineReduction& reduction : s_.reductions) {
      const uint64_t shard = reduction.elements / ranks_;
      reduction.store = step_.move(Transfer::TO_HOST, shard * width);
      if (stateInFiles()) reduction.write = step_.move(Transfer::WRITE_FILE, shard * kGradient);
    }
    (stateInFiles() ? s_.fileBytes : s_.hostBytes) += elements_ * kGradient;
  }

  // Each rank fetches its shard before it is gathered.
  void fetchParameters() {
    uint64_t largest = 0;
    for (BaselineGather& gather : s_.gathers) {
      uint64_t bytes = 0;
      for (const BaselineGather::Part& part : gather.parts) bytes += part.bytes;
      bytes /= ranks_;
      largest = std::max(largest, bytes);
      gather.fetch = step_.move(Transfer::TO_DEVICE, bytes);
      if (knobs_.parameters == plan::Buffer::FILE) gather.read = step_.move(Transfer::READ_FILE, bytes);
    }
    const uint64_t bytes = parameterBytes(step_) / ranks_;
    free(bytes);
    if (knobs_.parameters == plan::Buffer::FILE)
      s_.fileBytes += bytes, s_.hostBytes += static_cast<uint64_t>(knobs_.bufferCount) * largest;
    else
      s_.hostBytes += bytes;
  }

  // Sub-groups in the order in which SuperOffload's gradients are complete; otherwise their order does not matter.
  void updateOnHost() {
    const uint64_t group = std::max<uint64_t>(static_cast<uint64_t>(knobs_.subGroupSize), 1);
    const bool early = knobs_.superOffload && !step_.clips;
    uint64_t left = onHost_, pending = 0;
    auto update = [&](uint64_t elements, int64_t after) {
      if (elements == 0) return;
      BaselineHostUpdate& made = s_.hostUpdates.emplace_back();
      made.seconds = static_cast<double>(elements) / step_.hostUpdates;
      made.after = after;
      if (stateInFiles()) {
        made.read = step_.move(Transfer::READ_FILE, elements * (kState + kGradient));
        made.write = step_.move(Transfer::WRITE_FILE, elements * kState);
      }
      const uint64_t parameters = parameterBytes(step_) / std::max<uint64_t>(parameterElements(step_), 1) * elements;
      if (knobs_.zero.stage < 3 || knobs_.parameters == plan::Buffer::DEVICE)
        made.back = step_.move(Transfer::TO_DEVICE, parameters);
      else if (knobs_.parameters == plan::Buffer::FILE)
        made.write = step_.move(Transfer::WRITE_FILE, parameters + (stateInFiles() ? elements * kState : 0));
    };
    if (early) {
      for (size_t r = 0; r < s_.reductions.size() && left > 0; ++r) {
        const uint64_t some = std::min(left, s_.reductions[r].elements / ranks_);
        left -= some, pending += some;
        if (pending < group && left > 0) continue;
        update(pending, static_cast<int64_t>(r));
        pending = 0;
      }
      update(pending + left, s_.reductions.empty() ? -1 : static_cast<int64_t>(s_.reductions.size() - 1));
    } else {
      for (; left > 0; left -= std::min(left, group)) update(std::min(left, group), -1);
    }
    s_.pipelineRead = knobs_.pipelineRead, s_.pipelineWrite = knobs_.pipelineWrite;
    if (!stateInFiles()) {
      s_.hostBytes += onHost_ * kState;
      return;
    }
    s_.fileBytes += onHost_ * kState;
    // Buffers of a sub-group each: one in use, one for a read and one for a write that is under way.
    const uint64_t buffers = 1 + uint64_t{knobs_.pipelineRead} + uint64_t{knobs_.pipelineWrite};
    s_.hostBytes += buffers * std::min(group, onHost_) * (kState + kGradient);
  }

  void describe() {
    auto device = [](Space space) { return space == plan::Buffer::FILE ? "nvme" : "cpu"; };
    s_.knobs += cat(", offload_optimizer ", device(knobs_.optimizer));
    if (knobs_.zero.stage == 3 && knobs_.parameters != plan::Buffer::DEVICE)
      s_.knobs += cat(", offload_param ", device(knobs_.parameters));
    s_.knobs += cat(", sub_group_size ", numberText(knobs_.subGroupSize));
    if (knobs_.zero.stage == 3 && knobs_.ratio < 1) s_.knobs += cat(", ratio ", numberText(knobs_.ratio));
    if (stateInFiles())
      s_.knobs += cat(knobs_.pipelineRead ? ", pipeline_read" : "", knobs_.pipelineWrite ? ", pipeline_write" : "");
  }

  const BaselineStep& step_;
  const DeepSpeedOffloadKnobs& knobs_;
  const uint64_t ranks_, elements_;  // of a rank
  uint64_t onHost_ = 0;              // of them, updated there
  BaselineSchedule s_;
};

}  // namespace

BaselineSchedule deepSpeedOffloadSchedule(const BaselineStep& step, const DeepSpeedOffloadKnobs& knobs) {
  return Offloader(step, knobs).schedule();
}

}  // namespace sheaf::schedule
