#include "tools/sheaf/Like.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/Text.h"
#include "tools/sheaf/PlanKinds.h"

namespace sheaf::tool {
namespace {

using Values = std::vector<std::string>;

std::string optionText(const options::Option& option, const std::string& value) {
  return option.syntax.empty() ? option.name : cat(option.name, " ", value);
}

std::string optionText(const options::Option& option, const Values& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + optionText(option, value);
  return text;
}

bool same(const options::Option& option, const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const std::string& x, const std::string& y) { return x == y || option.same(x, y); });
}

// As a plan has it.
std::string assigned(const options::Option& option, const std::string& value) {
  return option.syntax.empty() ? option.name : cat(option.name, "=", value);
}

// Removes an entry, if it is there.
std::optional<Values> take(std::map<std::string, Values>& map, const std::string& name) {
  auto node = map.extract(name);
  return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
}

}  // namespace

std::vector<std::string> givenOptions(const options::Table& table, const options::Given& given) {
  static const std::set<std::string> kLeftOut{
      "-o",       "--verbose", "--no-weight-hashes", "--no-graph", "--compile-to",
      "--format", "--like",    "--deepspeed",        "--ignore",   "--quiet"};
  std::vector<std::string> list;
  for (const options::Option& option : table.all()) {
    const auto values = given.values.find(option.name);
    if (values == given.values.end() || kLeftOut.contains(option.name)) continue;
    for (const std::string& value : values->second) list.push_back(assigned(option, value));
  }
  return list;
}

std::vector<std::string> decidingOptions(const options::Table& table, const options::Given& given,
                                         const std::map<std::string, std::string>& settled) {
  std::vector<std::string> list;
  for (const options::Option& option : table.all()) {
    if (!option.bits) continue;
    Values values;
    if (auto own = given.values.find(option.name); own != given.values.end()) values = own->second;
    if (auto chosen = settled.find(option.name); chosen != settled.end()) values = {chosen->second};
    for (const std::string& value : values) list.push_back(assigned(option, value));
  }
  return list;
}

Status takeOver(const options::Table& table, const plan::Plan& plan, const std::string& name, options::Given& given,
                void* target) {
  if (Status status = requireModel(plan, name); !status.ok()) return Status::error(cat("--like ", status.message()));
  if (!plan.has_origin())
    return Status::error(cat("--like ", name, ": the plan does not state what it was compiled from; compile it again"));
  std::map<std::string, Values> theirs;
  for (const std::string& text : plan.origin().options()) {
    const size_t equals = text.find('=');
    theirs[text.substr(0, equals)].push_back(equals == std::string::npos ? "" : text.substr(equals + 1));
  }
  for (const options::Option& option : table.all()) {
    if (!option.bits) continue;
    const std::optional<Values> stated = take(theirs, option.name);
    const auto own = given.values.find(option.name);
    if (own == given.values.end()) {
      if (!stated) continue;
      if (Status taken = table.take(option.name, *stated, target, given); !taken.ok())
        return Status::error(cat("--like ", name, ": ", taken.message()));
    } else if (stated) {
      if (!same(option, own->second, *stated))
        return Status::error(cat(optionText(option, own->second), " contradicts --like ", name,
                                 ", which was compiled with ", optionText(option, *stated)));
    } else if (option.settledLater) {
      // It may be what the plan was compiled with: compareOrigins() finds that out.
    } else if (option.repeats || option.syntax.empty() || !same(option, own->second, {option.fallback})) {
      return Status::error(cat(optionText(option, own->second), " contradicts --like ", name,
                               ", which was compiled without ", option.name,
                               option.fallback.empty() ? "" : cat(" (default: ", option.fallback, ")")));
    }
  }
  if (!theirs.empty())
    return Status::error(cat("--like ", name, ": the plan was compiled with ", theirs.begin()->first,
                             ", which this version does not have; compile it again"));
  return {};
}

}  // namespace sheaf::tool
