// The events of a trace: what ran when, and how much memory was alive. ChromeTrace.h and PerfettoTrace.h write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"

namespace sheaf::io {

// Times are in microseconds from a common start.
struct TraceEvents {
  // Names for people.
  struct Process {
    int64_t process;
    std::string name;
  };
  struct Thread {
    int64_t process, thread;
    std::string name;
  };
  // Something that ran. The slices of a thread are in order of time and do not overlap; each thread has a name.
  struct Slice {
    int64_t process, thread;
    std::string name, kind;
    double begin, duration;
    json::Object arguments;  // shown with it: numbers and texts
  };
  // The value of a process's counter of bytes from a time on.
  struct Count {
    int64_t process;
    std::string counter;
    double time;
    uint64_t bytes;
  };

  std::vector<Process> processes;
  std::vector<Thread> threads;
  std::vector<Slice> slices;
  std::vector<Count> counts;
};

// Writes the file of --trace.
Status writeTraceFile(const std::string& path, const std::string& bytes);

}  // namespace sheaf::io
