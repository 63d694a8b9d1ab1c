// Records when each instruction ran and writes Chrome's trace event format (chrome://tracing, Perfetto).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Keeps only the instructions of the latest steps.
  static constexpr int64_t kSteps = 16;

  Trace(const plan::Plan& plan, std::string path);

  // Called by the thread of the instruction's stream, without locking. Event records are not traced.
  void add(int64_t rank, int64_t step, const plan::Instruction& instruction, Time begin, Time end);
  // Call it after all streams are synchronized. In the trace a process is a rank and a thread a stream; times are in
  // microseconds.
  Status write() const;

 private:
  struct Span {
    int64_t step;
    const plan::Instruction* instruction;
    Time begin, end;
  };
  const plan::Plan& plan_;
  const std::string path_;
  const Time start_;
  std::unordered_map<const plan::Instruction*, int64_t> indices_;  // in the body
  std::vector<std::deque<Span>> spans_;                            // of rank * streams + stream
};

}  // namespace sheaf::exec
