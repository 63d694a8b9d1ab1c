// When what ran, as a file of Chrome's trace event format (chrome://tracing, Perfetto).
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"

namespace sheaf::io {

class ChromeTrace {
 public:
  // Names for people.
  void nameProcess(int64_t process, const std::string& name) { nameThing("process_name", process, 0, name); }
  void nameThread(int64_t process, int64_t thread, const std::string& name) {
    nameThing("thread_name", process, thread, name);
  }
  // Something that ran, in microseconds from a common start; `arguments` are shown with it.
  void add(int64_t process, int64_t thread, const std::string& name, const std::string& kind, double begin,
           double duration, json::Object arguments);
  Status write(const std::string& path) &&;

 private:
  void nameThing(const char* what, int64_t process, int64_t thread, const std::string& name);

  json::Array events_;
};

}  // namespace sheaf::io
