// Builds an order for a step by simulating it: a list schedule of computation and link together.
#pragma once

#include <vector>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

// The parameters of one construction. The scheduler tries many.
struct ConstructionOptions {
  // Seconds by which a gather may start before its latest start. A larger lead hides more where the link is busy, and
  // keeps more bytes alive.
  double gatherLead = 0;
  // Seconds of computation at the end of the step that are issued by priority (longest remaining path first) instead of
  // in the given order. Weight gradients, which nothing else in the step needs, then run while the link serves the step
  // boundary.
  double tailSeconds = 0;
  // An update runs as soon as its reduction is done, which frees gradients early; otherwise when computation would be
  // idle.
  bool eagerUpdates = true;
  // Computation stalls while more reductions than this are unfinished, so that gradients do not pile up before a slow
  // link. Negative: no limit.
  int64_t maxPendingReductions = -1;
  // Upper bound on the gathers that have been issued and whose first use has not begun; replaces gatherLead. Negative:
  // gatherLead decides.
  int64_t maxGathersAhead = -1;
  // Upper bound on gathered bytes not yet consumed; 0 means none.
  uint64_t maxGatheredBytes = 0;
};

class Constructor {
 public:
  // `sequence`: a fixed order of all nodes of the computing stream; empty: the options decide.
  explicit Constructor(const StepModel& model, std::vector<uint32_t> sequence = {});
  // An order that respects the model's dependences.
  Order construct(const ConstructionOptions& options) const;

  double computeSeconds() const { return computeSeconds_; }
  double longestGather() const { return longestGather_; }
  double gatherSeconds() const { return gatherSeconds_; }

 private:
  friend class Simulation;
  // Whether a node's place in the order of computation is given.
  bool isFixed(const Node& node) const {
    return node.stream == 0 && (node.kind == Node::Kind::kCompute || !sequence_.empty());
  }
  void findUsers();
  void findIdealStarts();
  void findPaths();
  void findLatestStarts();

  const StepModel& model_;
  const std::vector<uint32_t> sequence_;
  uint32_t streams_ = 1;  // of the model
  // By node, unless said otherwise. Times are in seconds from the start of the round.
  std::vector<std::vector<Dependence>> predecessors_, successors_;
  std::vector<uint64_t> gatheredBytes_;             // of a gather's destination
  std::vector<std::vector<uint32_t>> usedGathers_;  // gathers of the same round whose destination it accesses
  std::vector<uint32_t> userCount_;                 // of a gather's destination
  std::vector<bool> carriable_;                     // gathers that the body before may issue
  std::vector<double> remainingPath_;               // longest path from the node's start through the next round
  std::vector<double> idealStart_;                  // of a computation, if computation never waited
  std::vector<double> needed_;             // by when it must end, so that every computation keeps its ideal start
  std::vector<double> latestStart_;        // of a collective, so that every computation keeps its ideal start
  std::vector<int64_t> reductionsBefore_;  // in the model's order
  std::vector<uint32_t> gathers_;          // by first use
  std::vector<int64_t> gatherIndex_;       // of a gather, in gathers_
  std::vector<double> firstUses_;          // by gatherIndex_: the ideal start of the first use
  double computeSeconds_ = 0, longestGather_ = 0, gatherSeconds_ = 0;
};

}  // namespace sheaf::schedule
