// A run's log: one JSON object a line; steps have "step", everything else has "event".
#pragma once

#include <cstdio>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/exec/StepLedger.h"

namespace sheaf::exec {

class RunLog {
 public:
  RunLog() = default;
  // An empty path logs nothing. `append` continues the log of the run that is resumed.
  static Expected<RunLog> open(const std::string& path, bool append);
  RunLog(RunLog&& other) noexcept;
  RunLog& operator=(RunLog&& other) noexcept;
  ~RunLog();

  void step(const StepResult& result);
  void event(const std::string& name, json::Object fields = {});
  // The first error while writing, if any.
  Status status() const;

 private:
  void line(json::Object object);
  std::FILE* file_ = nullptr;
  std::string path_;
  int error_ = 0;
};

}  // namespace sheaf::exec
