// Shows the progress of a run on stderr. On a terminal it is one line that is redrawn, with a chart of the loss;
// elsewhere a line every 30 seconds and one for the last step. Functions may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "runtime/exec/Sparkline.h"
#include "runtime/exec/StepLedger.h"
#include "runtime/exec/Throughput.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class Progress {
 public:
  // kWarnings prints warnings alone. One process of a job prints, the others are kNothing.
  enum class Level { kNothing, kWarnings, kAll };

  // `steps`: of the whole training. Steps are counted from 1, so that the number is that of the steps done.
  Progress(const plan::Plan& plan, int64_t steps, Level level);
  void step(const StepResult& result);
  // Print a message on its own line.
  void note(const std::string& text);
  void warn(const std::string& text);
  // Shows the latest step, unless it is shown already.
  void finish();

 private:
  void show(const StepResult& result, bool last);
  void print(const std::string& text);

  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  const Level level_;
  bool terminal_ = false, open_ = false;  // open: the terminal's line is unfinished
  int64_t lastStep_ = 0;
  const Throughput throughput_;
  Sparkline losses_;
  double smoothedSeconds_ = 0;  // of a step
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point lastShown_ = begin_;
  int64_t shownStep_ = -1;
  StepResult latest_;
};

}  // namespace sheaf::exec
