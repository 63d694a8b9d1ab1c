// How ranks are divided into nodes: --ranks-per-node, and what depends on it.
#pragma once

#include "passes/Choose.h"
#include "runtime/profile/Profile.h"
#include "tools/options/Rows.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {

// Of TrainedOptions::ranksPerNode: those of a node of the profile, if that makes the predicted step shorter.
inline constexpr int64_t kProfilesNodes = -1;

// Reads L or auto, which is kProfilesNodes.
Expected<int64_t> parseRanksPerNode(const std::string& text);

template <typename O>
options::Option nodesRow(const std::string& fallback) {
  return options::Rows<O>::template parsed<&O::ranksPerNode>(
             "--ranks-per-node", "L|auto", "a power of two that divides --ranks, or auto",
             "Number of consecutive ranks that form a node: a power of two that divides --ranks. Collectives then run "
             "in two hops, within nodes and between nodes, so that a node sends L times fewer bytes over the network. "
             "auto: as many as a node of --profile has, if that makes the predicted step shorter.",
             parseRanksPerNode)
      .defaultsTo(fallback);
}

// Writes what --ranks-per-node says into the options of the pipeline and of the choice, whose stages have been set. An
// error if the ranks cannot be divided so, or if the stages need nodes that there are not.
Status settleNodes(TrainedOptions& options, const profile::Profile& machine, ChooseOptions& choices);

}  // namespace sheaf::tool
