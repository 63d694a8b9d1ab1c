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
  io::ChromeTrace trace;
  for (int64_t rank = 0; rank < plan_.ranks(); ++rank) {
    auto ours = spans_.begin() + rank * plan_.streams_size();
    // Other processes write their own ranks.
    if (std::all_of(ours, ours + plan_.streams_size(), [](auto& spans) { return spans.empty(); })) continue;
    trace.nameProcess(rank, cat("rank ", rank));
    for (int stream = 0; stream < plan_.streams_size(); ++stream) {
      trace.nameThread(rank, stream, plan_.streams(stream));
      for (const Span& span : spans_[rank * plan_.streams_size() + stream])
        trace.add(rank, stream, span.instruction->label(), plan::instructionKind(*span.instruction),
                  microseconds(span.begin - start_), microseconds(span.end - span.begin),
                  {{"step", span.step}, {"instruction", indices_.at(span.instruction)}});
    }
  }
  return std::move(trace).write(path_);
}

}  // namespace sheaf::exec
