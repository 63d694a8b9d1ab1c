#include "tools/sheaf/Nodes.h"

#include <bit>

#include "runtime/base/Text.h"

namespace sheaf::tool {
namespace {

bool divides(int64_t each, int64_t ranks) {
  return each >= 1 && std::has_single_bit(static_cast<uint64_t>(each)) && ranks % each == 0;
}

}  // namespace

Expected<int64_t> parseRanksPerNode(const std::string& text) {
  if (text == "auto") return kProfilesNodes;
  int64_t each = 0;
  if (parseInteger(text, each) && each >= 1 && each <= 65536) return each;
  return Status::error("expected a power of two up to 65536, or auto");
}

Status settleNodes(TrainedOptions& o, const profile::Profile& machine, ChooseOptions& choices) {
  const int64_t ranks = o.import.ranks, theirs = machine.ranksPerNode();
  const bool two = choices.stage && choices.stage->within != choices.stage->between;
  int64_t& each = o.pipeline.ranksPerNode;
  each = o.ranksPerNode;
  if (each == kProfilesNodes) {
    const bool several = theirs > 1 && theirs < ranks && divides(theirs, ranks);
    if (!several && two)
      return Status::error(cat("--ranks-per-node auto: --ranks ", ranks, " do not fill several nodes of the profile ",
                               machine.name(), ", as two stages of --zero need: give a number of ranks"));
    each = two ? theirs : 0;
    choices.ranksPerNode = several && !two ? theirs : 0;
    return {};
  }
  if (each == 0)
    return two ? Status::error("--zero: a stage within nodes and one between them need --ranks-per-node") : Status();
  if (!divides(each, ranks)) {
    std::vector<std::string> possible;
    for (int64_t power = 1; ranks % power == 0; power *= 2) possible.push_back(std::to_string(power));
    return Status::error(cat("--ranks-per-node ", each, " is not a power of two that divides --ranks ", ranks,
                             ": give ", listText(possible, 20)));
  }
  if (two && (each == 1 || each == ranks))
    return Status::error(cat("--zero: two stages need several nodes of several ranks, and --ranks-per-node ", each,
                             " of --ranks ", ranks, " makes ", ranks / each,
                             ranks == each ? " node" : " nodes of one"));
  return {};
}

}  // namespace sheaf::tool
