#include "runtime/exec/Trace.h"

#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/io/ChromeTrace.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

double microseconds(Trace::Time::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

Trace::Trace(const plan::Plan& plan, std::string path)
    : plan_(plan), path_(std::move(path)), start_(std::chrono::steady_clock::now()) {
  // The first place of an instruction that several micro-batches run.
  for (int i = 0; const plan::Instruction* instruction : plan::stepInstructions(plan))
    indices_.try_emplace(instruction, i++);
  spans_.resize(plan.ranks() * plan.streams_size());
}

void Trace::add(int64_t rank, int64_t step, const plan::Instruction& instruction, Time begin, Time end) {
  if (instruction.has_record() || !indices_.contains(&instruction)) return;
  std::deque<Span>& spans = spans_[rank * plan_.streams_size() + instruction.stream()];
  while (!spans.empty() && spans.front().step + kSteps <= step) spans.pop_front();
  spans.push_back({step, &instruction, begin, end});
}

Status Trace::write() const {
  io::TraceEvents events;
  for (int64_t rank = 0; rank < plan_.ranks(); ++rank) {
    auto ours = spans_.begin() + rank * plan_.streams_size();
    // Other processes write their own ranks.
    if (std::all_of(ours, ours + plan_.streams_size(), [](auto& spans) { return spans.empty(); })) continue;
    events.processes.push_back({rank, cat("rank ", rank)});
    for (int stream = 0; stream < plan_.streams_size(); ++stream) {
      events.threads.push_back({rank, stream, plan_.streams(stream)});
      for (const Span& span : spans_[rank * plan_.streams_size() + stream])
        events.slices.push_back({rank,
                                 stream,
                                 span.instruction->label(),
                                 plan::instructionKind(*span.instruction),
                                 microseconds(span.begin - start_),
                                 microseconds(span.end - span.begin),
                                 {{"step", span.step}, {"instruction", indices_.at(span.instruction)}}});
    }
  }
  return io::writeChromeTrace(std::move(events), path_);
}

}  // namespace sheaf::exec
