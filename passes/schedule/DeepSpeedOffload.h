// DeepSpeed with state outside the device, as baselines: ZeRO-Offload, ZeRO-Infinity and SuperOffload.
// docs/schedule.md says how they are modelled, and from which sources.
#pragma once

#include "passes/schedule/DeepSpeed.h"

namespace sheaf::schedule {

struct DeepSpeedOffloadKnobs {
  DeepSpeedKnobs zero;
  plan::Buffer::Space optimizer = plan::Buffer::HOST;     // offload_optimizer.device: HOST or FILE
  plan::Buffer::Space parameters = plan::Buffer::DEVICE;  // offload_param.device, of stage 3
  double subGroupSize = 1e9;                              // elements of a rank that are updated together
  double ratio = 1;                                       // of the updates on the host, of stage 3 (Twin-Flow)
  bool pipelineRead = false, pipelineWrite = false;
  double bufferCount = 5;     // of parameters that are read from files (offload_param.buffer_count)
  bool superOffload = false;  // updates begin during the backward pass
};

// The step must have `move`.
BaselineSchedule deepSpeedOffloadSchedule(const BaselineStep& step, const DeepSpeedOffloadKnobs& knobs);

}  // namespace sheaf::schedule
