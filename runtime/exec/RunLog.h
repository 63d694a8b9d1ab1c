// What a run writes about itself while it runs: JSON lines, TensorBoard's event files, and metrics for Prometheus.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/exec/EvaluationRunner.h"
#include "runtime/exec/MetricsFile.h"
#include "runtime/exec/StepLedger.h"
#include "runtime/exec/Throughput.h"
#include "runtime/io/EventFile.h"

namespace sheaf::exec {

class RunLog {
 public:
  // Empty: is not written.
  struct Paths {
    std::string lines;    // --log: one JSON object a line; steps have the key "step", other lines "event"
    std::string folder;   // --log-dir: of event files
    std::string metrics;  // --metrics-file
  };

  RunLog() = default;
  // `resumed`: continues the lines of an earlier run. Otherwise begin() removes those of an earlier one, so that a run
  // which is refused before leaves them.
  static Expected<RunLog> open(Paths paths, bool resumed);

  // Before the first step, which is number `step`.
  void begin(const std::string& planPath, const plan::Plan& plan, int64_t step);
  void step(const StepResult& result, uint64_t residentBytes);
  void evaluation(int64_t step, const EvaluationResult& result);
  void event(const std::string& name, json::Object fields = {});
  // The run has ended, or failed.
  void end();
  // The first error while writing, if any.
  Status status() const { return error_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void line(json::Object object);
  void keep(const char* option, const Status& status);

  Paths paths_;
  std::unique_ptr<std::FILE, Close> lines_;
  bool keepsLines_ = false;  // the file has lines of an earlier run
  std::optional<io::EventFile> events_;
  std::unique_ptr<MetricsFile> metrics_;
  std::optional<Throughput> throughput_;
  Status error_;
};

}  // namespace sheaf::exec
