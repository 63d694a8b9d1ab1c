#include "runtime/exec/Trace.h"

#include <algorithm>
#include <span>

#include "runtime/base/Json.h"
#include "runtime/base/Text.h"
#include "runtime/io/AtomicFile.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

double microseconds(Trace::Time::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

json::Value metadata(const char* what, int64_t rank, int64_t stream, const std::string& name) {
  return json::Object{
      {"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", stream}, {"args", json::Object{{"name", name}}}};
}

}  // namespace

Trace::Trace(const plan::Plan& plan, std::string path)
    : plan_(plan), path_(std::move(path)), start_(std::chrono::steady_clock::now()) {
  for (int i = 0; i < plan.body_size(); ++i) indices_[&plan.body(i)] = i;
  spans_.resize(plan.ranks() * plan.streams_size());
}

void Trace::add(int64_t rank, int64_t step, const plan::Instruction& instruction, Time begin, Time end) {
  if (instruction.has_record() || !indices_.contains(&instruction)) return;
  std::deque<Span>& spans = spans_[rank * plan_.streams_size() + instruction.stream()];
  while (!spans.empty() && spans.front().step + kSteps <= step) spans.pop_front();
  spans.push_back({step, &instruction, begin, end});
}

Status Trace::write() const {
  json::Array events;
  for (int64_t rank = 0; rank < plan_.ranks(); ++rank) {
    auto ours = spans_.begin() + rank * plan_.streams_size();
    // Other processes write their own ranks.
    if (std::all_of(ours, ours + plan_.streams_size(), [](auto& spans) { return spans.empty(); })) continue;
    events.push_back(metadata("process_name", rank, 0, cat("rank ", rank)));
    for (int stream = 0; stream < plan_.streams_size(); ++stream) {
      events.push_back(metadata("thread_name", rank, stream, plan_.streams(stream)));
      for (const Span& span : spans_[rank * plan_.streams_size() + stream])
        events.push_back(
            json::Object{{"name", span.instruction->label()},
                         {"cat", plan::instructionKind(*span.instruction)},
                         {"ph", "X"},
                         {"pid", rank},
                         {"tid", stream},
                         {"ts", microseconds(span.begin - start_)},
                         {"dur", microseconds(span.end - span.begin)},
                         {"args", json::Object{{"step", span.step}, {"instruction", indices_.at(span.instruction)}}}});
    }
  }
  std::string text = json::write(json::Object{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}) + "\n";
  Expected<io::AtomicFile> file = io::AtomicFile::create(path_);
  if (!file.ok()) return Status::error(cat("--trace: ", file.status().message()));
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

}  // namespace sheaf::exec
