// Runs mutated inputs in child processes and reports those that crash, hang or take too much memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "test/fuzz/Mutator.h"

namespace sheaf::fuzz {

struct Target {
  std::string name;
  unsigned share = 1;                // its part of all runs
  std::function<void(Random&)> run;  // makes one input and feeds it; refusing it with an error is success
};

struct RunnerOptions {
  uint64_t runs = 200000;
  uint64_t seed = 1;
  uint64_t first = 0;                          // number of the first input of each target
  unsigned jobs = 1;                           // child processes at a time
  double secondsPerInput = 20;                 // of processor time; ten times as many of wall time
  uint64_t residentBytes = uint64_t{1} << 30;  // of a child process, whatever its inputs
};

// Returns the number of findings. Each is printed with the command that repeats it. Input i of a target depends on
// nothing but the seed, the target's name and i. Must be called before the process has threads.
uint64_t runTargets(const std::vector<Target>& targets, const RunnerOptions& options);

}  // namespace sheaf::fuzz
