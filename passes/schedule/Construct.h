// Builds an order for a step by simulating it: a list schedule of computation and link together.
#pragma once

#include <vector>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

// What a construction is free to vary.
struct Shape {
  // A gather may start this many seconds before it must, so as to be done when it is needed. More hides more where the
  // link is busy, and keeps more bytes alive.
  double horizon = 0;
  // Computation of the last part of a step, in seconds, that is issued by urgency instead of the order given: weight
  // gradients, which nothing in the step waits for, then run while the link serves the step boundary.
  double window = 0;
  // Computation does not go on while more reductions than this are to be done whose gradients are complete: gradients
  // would pile up where the link is the slower one. Negative: it does.
  int64_t pending = -1;
  // Instead of the horizon: gathers under way beyond those whose first use has begun; negative: by the horizon.
  int64_t prefetch = -1;
  // A gather waits while what gathers brought that is still to be used would come to more bytes with it; 0: it does
  // not.
  uint64_t gatheredBytes = 0;
};

class Constructor {
 public:
  // `sequence`: an order of all nodes of the first stream that is to be kept; empty: the shape decides.
  explicit Constructor(const StepModel& model, std::vector<uint32_t> sequence = {});
  // The order; it respects the model's dependences.
  Order construct(const Shape& shape) const;

  double computeSeconds() const { return computeSeconds_; }
  double longestGather() const { return longestGather_; }
  double gatherSeconds() const { return gatherSeconds_; }

 private:
  friend class Simulation;
  // Computation whose place in the order is given.
  bool isFixed(const Node& node) const {
    return node.stream == 0 && (node.kind == Node::Kind::kCompute || !sequence_.empty());
  }
  void findUsers();

  const StepModel& model_;
  const std::vector<uint32_t> sequence_;
  std::vector<std::vector<Dependence>> waits_, releases_;  // by node
  std::vector<uint64_t> bytes_;                            // that a gather brings
  std::vector<std::vector<uint32_t>> brings_;              // by node: gathers of its round whose bytes it uses
  std::vector<uint32_t> users_;                            // how many nodes use what a gather brings
  std::vector<bool> carriable_;                            // gathers that may belong to the next round
  std::vector<double> tail_;                               // longest chain from a node's start through the next round
  std::vector<double> ideal_;              // when a computation would start if it never waited, from the round's start
  std::vector<double> latest_;             // latest start of a collective by which ideal_ can be kept
  std::vector<int64_t> reductionsBefore_;  // how many stand before a node in the model's order
  std::vector<uint32_t> gathers_;          // in the order in which computation needs them
  std::vector<int64_t> turn_;              // place of a gather among them
  std::vector<double> firstUses_;          // when computation first needs each of them, in that order
  double computeSeconds_ = 0, longestGather_ = 0, gatherSeconds_ = 0;
};

}  // namespace sheaf::schedule
