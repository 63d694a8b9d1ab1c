// Shows the progress of a run on a terminal: one line that is redrawn, with the course of the loss. Elsewhere only
// notes and the last step are printed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/exec/Sparkline.h"
#include "runtime/exec/StepLedger.h"
#include "runtime/exec/Throughput.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class Progress {
 public:
  // `steps`: of the whole training. `shown` is true on one process of a job only. Steps are counted from 1, so that the
  // number is that of the steps done.
  Progress(const plan::Plan& plan, int64_t steps, bool shown);
  void step(const StepResult& result);
  // Prints a message on its own line.
  void note(const std::string& text);
  // Shows the latest step, unless it is shown already.
  void finish();

 private:
  void show(const StepResult& result, bool last);

  using Clock = std::chrono::steady_clock;
  const bool shown_;
  bool terminal_ = false, open_ = false;  // open: the terminal's line is unfinished
  int64_t lastStep_ = 0;
  const Throughput throughput_;
  Sparkline losses_;
  double smoothedSeconds_ = 0;  // of a step
  Clock::time_point lastShown_{};
  int64_t shownStep_ = -1;
  StepResult latest_;
};

}  // namespace sheaf::exec
