// sheaf diff: what differs between two plans, in people's terms.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "runtime/base/Json.h"
#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/PlanKinds.h"
#include "tools/sheaf/UsualProfile.h"

namespace sheaf::tool {
namespace {

struct DiffOptions {
  std::vector<std::string> plans;
  std::string profile, format = "text";
};

// A thing that both plans have in another way, or one does not have: then its text is empty.
struct Row {
  std::string what, first, second;
};
struct Section {
  std::string name;
  std::vector<Row> rows;
};

// What a plan says of each thing, in order.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Things of both plans in the order of the first, then those that only the second has.
std::vector<Row> differences(const Facts& first, const Facts& second) {
  std::map<std::string, std::string> other(second.begin(), second.end());
  std::vector<Row> rows;
  std::set<std::string> seen;
  for (const auto& [what, value] : first) {
    seen.insert(what);
    const auto found = other.find(what);
    const std::string theirs = found == other.end() ? "" : found->second;
    if (theirs != value) rows.push_back({what, value, theirs});
  }
  for (const auto& [what, value] : second)
    if (!seen.contains(what)) rows.push_back({what, "", value});
  return rows;
}

// As given to `sheaf compile`; of an option that may be repeated all values together.
Facts optionFacts(const plan::Plan& plan) {
  Facts facts;
  for (const std::string& option : plan.options()) {
    const size_t equals = option.find('=');
    const std::string name = option.substr(0, equals);
    const std::string value = equals == std::string::npos ? "given" : option.substr(equals + 1);
    if (!facts.empty() && facts.back().first == name)
      facts.back().second += " " + value;
    else
      facts.emplace_back(name, value);
  }
  return facts;
}

// Numbers and words of the summary that are not of the sections below.
Facts settingFacts(const plan::Plan& plan) {
  Facts facts;
  const json::Value summary = plan::summaryJson(plan);
  for (const auto& [name, value] : summary.object()->members())
    if (!value.object() && !value.array() && !value.isNull())
      facts.emplace_back(name, value.string() ? *value.string() : json::write(value));
  return facts;
}

Facts memoryFacts(const plan::Summary& summary) {
  Facts facts{{"arena", bytesText(summary.peakBytes)}, {"libraries", bytesText(summary.libraryBytes)}};
  for (const auto& [kind, bytes] : summary.byKind) facts.emplace_back(plan::word(kind), bytesText(bytes));
  for (const auto& [space, memory] : summary.spaces)
    for (const auto& [kind, bytes] : memory.byKind)
      facts.emplace_back(cat(plan::word(kind), " in ", plan::word(space)), bytesText(bytes));
  return facts;
}

Facts bucketFacts(const plan::Plan& plan) {
  Facts facts{{"buckets", cat(plan.buckets_size())}};
  for (const plan::Bucket& bucket : plan.buckets())
    facts.emplace_back(bucket.name(), cat(countText(bucket.elements()), " elements of ", plan::word(bucket.type()),
                                          bucket.parameters_sharded() ? ", sharded" : "",
                                          bucket.states_size() && bucket.states_sharded() ? ", sharded states" : ""));
  for (const plan::Parameter& parameter : plan.parameters())
    facts.emplace_back(cat("place of ", parameter.name()),
                       cat(plan.buckets(static_cast<int>(parameter.bucket())).name(), " at ", parameter.offset()));
  return facts;
}

Facts communicationFacts(const plan::Plan& plan, const plan::Summary& summary) {
  std::map<std::string, std::pair<int64_t, uint64_t>> sums;
  for (const plan::Communication& one : summary.communication) {
    auto& [count, bytes] = sums[cat(plan::word(one.op), " in ", plan::word(one.phase),
                                    plan.ranks_per_node() > 0 ? cat(" on ", plan::word(one.axis)) : "")];
    ++count, bytes += one.bytes;
  }
  Facts facts;
  for (const auto& [what, sum] : sums) facts.emplace_back(what, cat(sum.first, " of ", bytesText(sum.second)));
  for (const auto& [kind, moved] : summary.transfers)
    facts.emplace_back(plan::word(kind), cat(moved.count, " of ", bytesText(moved.bytes)));
  return facts;
}

Facts instructionFacts(const plan::Plan& plan) {
  std::map<std::string, int64_t> counts;
  for (const plan::Instruction* instruction : plan::stepInstructions(plan))
    ++counts[plan::instructionKind(*instruction)];
  Facts facts;
  for (const auto& [kind, count] : counts) facts.emplace_back(kind, cat(count));
  return facts;
}

// Where the steps first do something else, without events.
std::vector<Row> orderRows(const plan::Plan& first, const plan::Plan& second) {
  auto listed = [](const plan::Plan& plan) {
    std::vector<std::string> list;
    for (const plan::Instruction* instruction : plan::stepInstructions(plan))
      if (!instruction->has_record() && !instruction->has_wait())
        list.push_back(cat(plan::instructionKind(*instruction), " '", shownLine(instruction->label()), "'"));
    return list;
  };
  const std::vector<std::string> a = listed(first), b = listed(second);
  const size_t most = std::min(a.size(), b.size());
  size_t at = 0;
  while (at < most && a[at] == b[at]) ++at;
  if (at == a.size() && at == b.size()) return {};
  return {
      {cat("instruction ", at, ", the first that differs"), at < a.size() ? a[at] : "", at < b.size() ? b[at] : ""}};
}

std::vector<Row> decisionRows(const plan::Plan& first, const plan::Plan& second) {
  const std::set<std::string> a(first.decisions().begin(), first.decisions().end());
  const std::set<std::string> b(second.decisions().begin(), second.decisions().end());
  std::vector<Row> rows;
  for (const std::string& decision : first.decisions())
    if (!b.contains(decision)) rows.push_back({"", decision, ""});
  for (const std::string& decision : second.decisions())
    if (!a.contains(decision)) rows.push_back({"", "", decision});
  return rows;
}

// Of a step, on the profile.
Expected<Facts> predictionFacts(const plan::Plan& plan, const std::string& profile) {
  Expected<profile::Profile> machine = schedule::loadProfile(profile);
  if (!machine.ok()) return machine.status();
  machine = machine->withRanks(plan.ranks());
  if (!machine.ok()) return machine.status();
  const schedule::Timeline timeline = schedule::play(schedule::loopOf(plan, *machine).loop);
  return Facts{{cat("step on ", machine->name()), secondsText(timeline.period)},
               {"communication not hidden", secondsText(timeline.exposed)}};
}

std::string text(const std::vector<Section>& sections) {
  constexpr size_t kShown = 12;
  std::string out;
  for (const Section& section : sections) {
    if (section.rows.empty()) continue;
    out += cat(out.empty() ? "" : "\n", section.name, "\n");
    for (size_t i = 0; i < std::min(section.rows.size(), kShown); ++i) {
      const Row& row = section.rows[i];
      if (row.what.empty())
        out += cat("  ", row.second.empty() ? "- " : "+ ", row.second.empty() ? row.first : row.second, "\n");
      else
        out += cat("  ", row.what, ": ", row.first.empty() ? "none" : row.first, " -> ",
                   row.second.empty() ? "none" : row.second, "\n");
    }
    if (section.rows.size() > kShown)
      out += cat("  and ", section.rows.size() - kShown, " more; --format json has all\n");
  }
  return out.empty() ? "no difference\n" : out;
}

std::string jsonText(const DiffOptions& o, const std::vector<Section>& sections) {
  auto orNull = [](const std::string& value) {
    json::Value result;
    if (!value.empty()) result = json::Value(value);
    return result;
  };
  json::Object root{{"first", o.plans[0]}, {"second", o.plans[1]}};
  for (const Section& section : sections) {
    json::Array rows;
    for (const Row& row : section.rows)
      rows.push_back(json::Object{{"what", row.what}, {"first", orNull(row.first)}, {"second", orNull(row.second)}});
    root.set(section.name, std::move(rows));
  }
  return json::write(std::move(root), 2) + "\n";
}

int diff(DiffOptions& o, const options::Given&) {
  if (o.plans.size() != 2) return misuse("sheaf diff compares two plans");
  std::unique_ptr<plan::Plan> plans[2];
  Facts predictions[2];
  for (int i = 0; i < 2; ++i) {
    const std::string& path = o.plans[static_cast<size_t>(i)];
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(path, plan::Undigested::kAccepted);
    if (!plan.ok()) return fail(plan.status().message());
    if (Status status = requireModel(**plan, path); !status.ok()) return fail(status.message());
    plans[i] = std::move(*plan);
    if (plans[i]->body_size() == 0) continue;  // of an evaluation alone
    Expected<Facts> prediction = predictionFacts(*plans[i], o.profile.empty() ? usualProfile(*plans[i]) : o.profile);
    if (!prediction.ok()) return fail(prediction.status().message());
    predictions[i] = std::move(*prediction);
  }
  const plan::Plan &a = *plans[0], &b = *plans[1];
  const plan::Summary first = plan::summarize(a), second = plan::summarize(b);
  const std::vector<Section> sections{
      {"options", differences(optionFacts(a), optionFacts(b))},
      {"settings", differences(settingFacts(a), settingFacts(b))},
      {"prediction", differences(predictions[0], predictions[1])},
      {"memory", differences(memoryFacts(first), memoryFacts(second))},
      {"buckets", differences(bucketFacts(a), bucketFacts(b))},
      {"communication", differences(communicationFacts(a, first), communicationFacts(b, second))},
      {"instructions", differences(instructionFacts(a), instructionFacts(b))},
      {"order", orderRows(a, b)},
      {"decisions", decisionRows(a, b)}};
  return print(o.format == "json" ? jsonText(o, sections) : text(sections));
}

}  // namespace

Command diffCommand() {
  using O = DiffOptions;
  using Row = options::Rows<O>;
  options::Table table{"sheaf diff",
                       "Says what differs between two plans: options, settings, predicted step, memory, buckets, "
                       "communication, instructions and decisions.",
                       {"sheaf diff A.plan B.plan [--format text|json]"},
                       Row::positional<&O::plans>("A.plan B.plan"),
                       {},
                       "`sheaf same` says whether they compute the same bits."};
  table.sections = {{"Options",
                     {Row::word<&O::format>("--format", {"text", "json"}, "json: for programs."),
                      Row::text<&O::profile>("--profile", "NAME|FILE", "Machine that steps are predicted on.")
                          .defaultsTo("the shipped profile nearest to a plan's first target")}}};
  return command(std::move(table), diff);
}

}  // namespace sheaf::tool
