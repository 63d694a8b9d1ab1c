// Notices that this process stood still: it was stopped (SIGSTOP, a debugger, a container that is frozen), or its
// machine was. Others may then have given it up, and it must not blame them for it.
#pragma once

#include <chrono>

namespace sheaf {

class Standstill {
 public:
  // Called again and again by a thread that sleeps for at most a small part of `limit`; how long others wait for this
  // process.
  static void tick(std::chrono::milliseconds limit);
  // The thread ends.
  static void end();
  // For how long the process stood still lately: 0 if that is less than half of the limit or than a second, or longer
  // ago than both.
  static std::chrono::milliseconds recent();
};

}  // namespace sheaf
