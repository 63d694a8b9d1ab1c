// When what ran, and how much memory lived, as a file of Perfetto's protobuf format (ui.perfetto.dev).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/io/perfetto_trace.pb.h"

namespace sheaf::io {

class PerfettoTrace {
 public:
  // Names for people. A process is to be named before its threads and counters.
  void nameProcess(int64_t process, const std::string& name);
  void nameThread(int64_t process, int64_t thread, const std::string& name);
  // Something that ran, in microseconds from a common start, as in ChromeTrace; its times are rounded to nanoseconds.
  // What runs on one thread is to be added in order of time, and must not overlap.
  void add(int64_t process, int64_t thread, const std::string& name, const std::string& kind, double begin,
           double duration, const json::Object& arguments);
  // A value of a counter of bytes from a time on, in microseconds.
  void count(int64_t process, const std::string& counter, double time, uint64_t bytes);
  Status write(const std::string& path) &&;

 private:
  perfetto::TracePacket& packet();
  perfetto::TrackEvent& event(uint64_t track, double time, perfetto::TrackEvent::Type type);
  perfetto::TrackDescriptor& descriptor(uint64_t track);

  perfetto::Trace trace_;
  std::map<std::pair<int64_t, int64_t>, uint64_t> threads_;
  std::map<std::pair<int64_t, std::string>, uint64_t> counters_;
  std::map<int64_t, uint64_t> processes_;
  uint64_t tracks_ = 0;
};

}  // namespace sheaf::io
