// Ops of a block as an acyclic graph whose nodes can be merged, kept in topological order.
#pragma once

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/Operation.h"

namespace sheaf::train {

class FusionGraph {
 public:
  struct Node {
    llvm::SmallVector<mlir::Operation*> members;  // in program order
    bool fusable = false;
    int64_t rows = 0;     // of the iteration space
    int64_t columns = 0;  // 0 if so far there are only values of one element a row
    int64_t order = 0;    // position in the topological order
    llvm::SmallSetVector<unsigned, 4> producers, consumers;
    // Consumers that read a value in a way a kernel cannot: across rows, or under a shape with other rows.
    llvm::SmallSetVector<unsigned, 2> separated;
  };

  unsigned addNode(mlir::Operation* op);
  void addEdge(unsigned producer, unsigned consumer, bool separates);

  // Makes a new op, which adds no dependencies, part of a node; its place among the members is the caller's choice.
  void adopt(unsigned node, mlir::Operation* op) { current[op] = node; }

  // The node an op ended up in.
  unsigned nodeOf(mlir::Operation* op) const { return current.lookup(op); }
  bool contains(mlir::Operation* op) const { return current.count(op); }
  Node& operator[](unsigned node) { return nodes[node]; }

  // Merges two nodes into one unless that would make a cycle or put a separated consumer into its producer's node; its
  // place in the order is then as near to both as dependencies allow. Returns the node they became, or nothing.
  std::optional<unsigned> merge(unsigned a, unsigned b);

  // Living nodes in topological order.
  llvm::SmallVector<unsigned> ordered() const;

 private:
  bool collect(unsigned from, unsigned avoid, int64_t bound, bool forward, llvm::SmallVectorImpl<unsigned>& found);

  std::vector<Node> nodes;
  llvm::DenseMap<mlir::Operation*, unsigned> current;
};

}  // namespace sheaf::train
