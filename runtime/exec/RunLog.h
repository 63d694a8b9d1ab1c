// A run's log: one JSON object per line. Steps have the key "step", other lines "event".
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
  // With an empty path nothing is logged. `append` continues the log of a resumed run.
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
