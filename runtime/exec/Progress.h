// What a person sees of a run: a line that renews itself on a terminal, a line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/exec/StepLedger.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class Progress {
 public:
  // `steps` of this run; the rate is in tokens if the model reads integer sequences, else in samples.
  // Nothing is shown unless `shown`: of several processes one speaks.
  Progress(const plan::Plan& plan, int64_t firstStep, int64_t steps, bool shown);
  void step(const StepResult& result);
  // A message on a line of its own.
  void note(const std::string& text);
  void finish();

 private:
  void show(const StepResult& result, bool last);

  using Clock = std::chrono::steady_clock;
  const bool shown_;
  bool terminal_ = false, open_ = false;  // open: the terminal's line is unfinished
  int64_t lastStep_ = 0;
  double unitsPerStep_ = 0;
  const char* unit_ = "samples";
  double smoothedSeconds_ = 0;  // of a step
  Clock::time_point lastShown_{};
  int64_t shownStep_ = -1;
  StepResult latest_;
};

}  // namespace sheaf::exec
