// Detects that this process was suspended (SIGSTOP, a debugger, a frozen container) or its machine was. Others may then
// have given it up, and it must not blame them for it.
#pragma once

#include <chrono>

namespace sheaf {

class SuspendDetector {
 public:
  // Call at intervals much shorter than `timeout`, for which others wait for this process (SHEAF_TIMEOUT).
  static void heartbeat(std::chrono::milliseconds timeout);
  // Call when there will be no more heartbeats.
  static void end();
  // Returns the length of the last suspension; 0 if it was shorter than max(timeout / 2, 1 s), or ended more than
  // max(timeout, 1 s) ago.
  static std::chrono::milliseconds lastSuspension();
};

}  // namespace sheaf
