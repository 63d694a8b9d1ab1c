// Shows on stderr the phase of a command that takes long: on a terminal after 2 seconds, in a line that is redrawn
// every second; elsewhere in a line every 30 seconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "runtime/base/Threads.h"

namespace sheaf {

class PhaseProgress {
 public:
  // `command`: "sheaf compile". The innermost one shows the phases.
  explicit PhaseProgress(std::string command);
  ~PhaseProgress();
  PhaseProgress(const PhaseProgress&) = delete;

  // Says what the command does from now on, as in "importing model.onnx". Without a PhaseProgress this does nothing.
  static void phase(const std::string& text);

 private:
  void run();

  const std::string command_;
  PhaseProgress* const outer_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::string phase_;
  Thread thread_;
};

}  // namespace sheaf
