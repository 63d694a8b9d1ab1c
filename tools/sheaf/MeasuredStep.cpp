#include "tools/sheaf/MeasuredStep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/base/Json.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::tool {
namespace {

constexpr uint64_t kMaxTraceBytes = uint64_t{1} << 30;

struct Span {
  int64_t step = 0, instruction = 0;
  double begin = 0, seconds = 0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

const json::Value* member(const json::Value& value, std::string_view name) {
  return value.object() ? value.object()->find(name) : nullptr;
}

bool integer(const json::Value* value, int64_t& result) {
  if (!value || !value->integer()) return false;
  result = *value->integer();
  return true;
}

// The spans of instructions, by rank.
Expected<std::map<int64_t, std::vector<Span>>> spansOf(const std::string& path, const plan::Plan& plan) {
  Expected<std::string> text = readSmallFile(path, kMaxTraceBytes, "a trace");
  if (!text.ok()) return text.status();
  Expected<json::Value> root = json::parse(*text);
  if (!root.ok()) return Status::error(cat(path, ": ", root.status().message()));
  const json::Value* events = member(*root, "traceEvents");
  if (!events || !events->array())
    return Status::error(cat(path, ": not a trace: it has no traceEvents; `sheaf-run --trace` writes one"));
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  std::map<int64_t, std::vector<Span>> ranks;
  for (size_t i = 0; i < events->array()->size(); ++i) {
    const json::Value& event = (*events->array())[i];
    const json::Value *phase = member(event, "ph"), *arguments = member(event, "args");
    if (!phase || !phase->string() || *phase->string() != "X" || !arguments) continue;
    Span span;
    int64_t rank = 0;
    const json::Value *begin = member(event, "ts"), *seconds = member(event, "dur"), *name = member(event, "name");
    if (!integer(member(*arguments, "instruction"), span.instruction) || !integer(member(event, "pid"), rank) ||
        !begin || !begin->number(span.begin) || !seconds || !seconds->number(span.seconds) || !name || !name->string())
      return Status::error(cat(path, ": event ", i, " is not an instruction's; `sheaf-run --trace` writes them"));
    integer(member(*arguments, "step"), span.step);  // a predicted trace has one step
    const bool known = span.instruction >= 0 && span.instruction < static_cast<int64_t>(step.size());
    if (!known || step[static_cast<size_t>(span.instruction)]->label() != *name->string())
      return Status::error(cat(path, ": event ", i, " is instruction ", span.instruction, " '",
                               plan::shortName(*name->string()), "', which the plan ",
                               known ? "has under another name" : "does not have", ": the trace is of another plan"));
    span.begin /= 1e6, span.seconds /= 1e6;
    ranks[rank].push_back(span);
  }
  if (ranks.empty()) return Status::error(cat(path, ": the trace has no instructions"));
  return ranks;
}

}  // namespace

Expected<MeasuredStep> readMeasuredStep(const std::string& path, const plan::Plan& plan,
                                        const schedule::PlanLoop& loop) {
  Expected<std::map<int64_t, std::vector<Span>>> ranks = spansOf(path, plan);
  if (!ranks.ok()) return ranks.status();
  const auto& [rank, spans] = *ranks->begin();
  std::map<int64_t, int64_t> opOf;
  for (size_t op = 0; op < loop.instructions.size(); ++op) opOf[loop.instructions[op]] = static_cast<int64_t>(op);
  std::map<int64_t, double> starts;
  double last = 0;
  for (const Span& span : spans) {
    if (!opOf.contains(span.instruction)) continue;  // a wait
    auto [at, fresh] = starts.try_emplace(span.step, span.begin);
    if (!fresh) at->second = std::min(at->second, span.begin);
  }
  if (starts.empty()) return Status::error(cat(path, ": the trace has no instructions but waits"));
  if (starts.size() > 1) starts.erase(starts.begin());
  std::vector<std::vector<double>> begins(loop.instructions.size()), lengths(loop.instructions.size());
  for (const Span& span : spans) {
    const auto start = starts.find(span.step);
    const auto op = opOf.find(span.instruction);
    if (start == starts.end() || op == opOf.end()) continue;
    begins[static_cast<size_t>(op->second)].push_back(span.begin - start->second);
    lengths[static_cast<size_t>(op->second)].push_back(span.seconds);
  }
  MeasuredStep measured{rank, static_cast<int64_t>(starts.size()), 0, {}, {}};
  for (size_t op = 0; op < begins.size(); ++op) {
    const bool traced = !begins[op].empty();
    measured.begin.push_back(traced ? median(begins[op]) : -1);
    measured.end.push_back(traced ? measured.begin.back() + median(lengths[op]) : -1);
    last = std::max(last, measured.end.back());
  }
  std::vector<double> periods;
  for (auto at = starts.begin(); std::next(at) != starts.end(); ++at)
    periods.push_back(std::next(at)->second - at->second);
  measured.period = periods.empty() ? last : median(periods);
  return measured;
}

std::vector<Difference> largestDifferences(const MeasuredStep& measured, const schedule::Timeline& predicted,
                                           size_t most) {
  std::vector<Difference> all;
  for (uint32_t op = 0; op < predicted.begin.size(); ++op)
    if (measured.begin[op] >= 0)
      all.push_back({op, predicted.end[op] - predicted.begin[op], measured.end[op] - measured.begin[op]});
  auto size = [](const Difference& d) { return std::abs(d.measured - d.predicted); };
  std::stable_sort(all.begin(), all.end(), [&](const Difference& a, const Difference& b) { return size(a) > size(b); });
  all.resize(std::min(all.size(), most));
  return all;
}

}  // namespace sheaf::tool
