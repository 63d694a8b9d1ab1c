// What a step's rate is counted in.
#pragma once

#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// Tokens where the plan has labels of tokens, else samples.
struct Throughput {
  explicit Throughput(const plan::Plan& plan) : perStep(static_cast<double>(plan.batch())) {
    for (const plan::Input& input : plan.inputs()) {
      if (!input.tokens() || input.shape_size() != 2) continue;
      unit = "tokens";
      perStep *= static_cast<double>(input.shape(1));
      break;
    }
  }

  const char* unit = "samples";
  double perStep;  // of all ranks
};

}  // namespace sheaf::exec
