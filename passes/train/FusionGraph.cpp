#include "passes/train/FusionGraph.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;

namespace sheaf::train {

unsigned FusionGraph::addNode(Operation* op) {
  unsigned id = static_cast<unsigned>(nodes.size());
  Node& node = nodes.emplace_back();
  node.members = {op};
  node.order = id;
  current[op] = id;
  return id;
}

void FusionGraph::addEdge(unsigned producer, unsigned consumer, bool separates) {
  nodes[producer].consumers.insert(consumer);
  nodes[consumer].producers.insert(producer);
  if (separates) nodes[producer].separated.insert(consumer);
}

// Finds what lies beyond `from` on this side of `bound` in the order, not through the edge from `from` to `avoid`.
// Returns whether `avoid` is reached nevertheless.
bool FusionGraph::collect(unsigned from, unsigned avoid, int64_t bound, bool forward,
                          SmallVectorImpl<unsigned>& found) {
  llvm::DenseSet<unsigned> seen{from};
  SmallVector<unsigned> stack{from};
  while (!stack.empty()) {
    unsigned at = stack.pop_back_val();
    for (unsigned next : forward ? nodes[at].consumers : nodes[at].producers) {
      if (next == avoid) {
        if (at == from) continue;
        return true;
      }
      if (forward ? nodes[next].order > bound : nodes[next].order < bound) continue;
      if (!seen.insert(next).second) continue;
      found.push_back(next);
      stack.push_back(next);
    }
  }
  return false;
}

// The order is repaired locally (Pearce and Kelly, 2006): what b needs moves before the merged node, what needs a moves
// after it, all within the positions these nodes had.
std::optional<unsigned> FusionGraph::merge(unsigned a, unsigned b) {
  if (nodes[a].order > nodes[b].order) std::swap(a, b);
  if (nodes[a].separated.contains(b)) return std::nullopt;
  SmallVector<unsigned> after, before;
  if (collect(a, b, nodes[b].order, /*forward=*/true, after)) return std::nullopt;
  collect(b, a, nodes[a].order, /*forward=*/false, before);

  auto byOrder = [&](unsigned x, unsigned y) { return nodes[x].order < nodes[y].order; };
  llvm::sort(after, byOrder);
  llvm::sort(before, byOrder);
  SmallVector<int64_t> positions;
  for (unsigned n : after) positions.push_back(nodes[n].order);
  for (unsigned n : before) positions.push_back(nodes[n].order);
  positions.push_back(nodes[a].order);
  llvm::sort(positions);
  size_t next = 0;
  for (unsigned n : before) nodes[n].order = positions[next++];
  nodes[a].order = positions[next++];
  for (unsigned n : after) nodes[n].order = positions[next++];

  Node& into = nodes[a];
  Node& from = nodes[b];
  for (Operation* op : from.members) current[op] = a;
  SmallVector<Operation*> members;
  members.append(into.members);
  members.append(from.members);
  llvm::sort(members, [](Operation* x, Operation* y) { return x->isBeforeInBlock(y); });
  into.members = std::move(members);
  from.members.clear();
  if (!into.columns) into.columns = from.columns;
  auto redirect = [&](auto Node::*side, auto Node::*opposite) {
    for (unsigned n : from.*side) {
      (nodes[n].*opposite).remove(b);
      if (n == a) continue;
      (nodes[n].*opposite).insert(a);
      (into.*side).insert(n);
    }
    (into.*side).remove(b);
  };
  for (unsigned n : from.producers)
    if (nodes[n].separated.remove(b)) nodes[n].separated.insert(a);
  for (unsigned n : from.separated) into.separated.insert(n);
  redirect(&Node::producers, &Node::consumers);
  redirect(&Node::consumers, &Node::producers);
  from.producers.clear();
  from.consumers.clear();
  from.separated.clear();
  return a;
}

SmallVector<unsigned> FusionGraph::ordered() const {
  SmallVector<unsigned> result;
  for (unsigned n = 0; n < nodes.size(); ++n)
    if (!nodes[n].members.empty()) result.push_back(n);
  llvm::sort(result, [&](unsigned x, unsigned y) { return nodes[x].order < nodes[y].order; });
  return result;
}

}  // namespace sheaf::train
