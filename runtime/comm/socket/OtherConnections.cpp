#include "runtime/comm/socket/OtherConnections.h"

#include <algorithm>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

constexpr size_t kMaxNames = 1000, kShownNames = 3;

}  // namespace

void OtherConnections::add(const std::string& name) {
  ++count_;
  if (names_.size() < kMaxNames || names_.contains(name)) ++names_[name];
}

std::string OtherConnections::text() const {
  if (count_ == 0) return {};
  std::vector<std::pair<uint64_t, std::string>> sorted;
  for (const auto& [name, count] : names_) sorted.emplace_back(count, name);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> names;
  for (const auto& [count, name] : sorted) names.push_back(cat(name, " (", countText(count), ")"));
  return cat("; ", countText(count_), count_ == 1 ? " connection" : " connections", " of others: from ",
             listText(names, kShownNames));
}

}  // namespace sheaf::comm
