// A file of metrics that Prometheus reads: the text format of node exporter's textfile collector
// (github.com/prometheus/docs, exposition_formats). It appears whole: readers never see half a file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/exec/EvaluationRunner.h"
#include "runtime/exec/StepLedger.h"
#include "runtime/exec/Throughput.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class MetricsFile {
 public:
  // `planPath`: a label of every metric. `step`: steps done before this run.
  MetricsFile(std::string path, const std::string& planPath, const plan::Plan& plan, int64_t step);

  // Writes the file if it is older than a second.
  Status step(const StepResult& result, uint64_t residentBytes);
  Status evaluation(const EvaluationResult& result);
  // The run has ended, or failed.
  Status end();
  Status write();

 private:
  using Clock = std::chrono::steady_clock;
  const std::string path_, labels_;
  const Throughput throughput_;
  Clock::time_point written_{};
  bool running_ = true;
  int64_t stepsDone_;
  double lastStepTime_ = 0;  // seconds since 1970
  uint64_t residentBytes_ = 0, skipped_ = 0;
  std::optional<StepResult> latest_;
  std::optional<EvaluationResult> evaluated_;
};

}  // namespace sheaf::exec
