// Decides which ops become one kernel.
//
// Ops of one iteration space (rows x columns) that feed one another are merged as long as no cycle arises, the last op
// of the block first: what an op computes is then placed at its first use, so that nothing of the backward pass is
// computed early and kept. Then neighbours that read the same tensor are merged, so that it is read once. Broadcasts,
// indices and splats are cloned into every group that uses them, and so is what a group can compute from tensors it
// reads anyway: it need not be kept from one kernel to the other.
#include "ir/Train/FusionCost.h"
#include "ir/Train/RowPitches.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "passes/train/FusionGraph.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_ASSIGNFUSIONS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Beyond this a kernel's code and its registers grow more than its memory traffic shrinks.
constexpr size_t kLargestGroup = 160;
// The verifier refuses kernels of more than 256 operands (runtime/plan/VerifyInstructions.cpp), and later passes add
// some. A member adds at most three.
constexpr size_t kMaxOperands = 240, kMembersWithinLimit = kMaxOperands / 3;
// Scalars are not merged into a kernel with a row longer than this: it would lose its parallel rows.
constexpr int64_t kLongestLoneRow = 1024;
// Groups that share an operand are merged only if they stand this near in the order, so that none of their other
// operands and results has to live long.
constexpr int64_t kSiblingDistance = 32;
// What may be computed twice instead of stored and loaded: so many ops, of which so many elementary functions, by so
// many other kernels.
constexpr size_t kMostRecomputed = 16;
constexpr int64_t kMostRecomputedFunctions = 1;
constexpr size_t kMostRecomputing = 2;

class Grouping {
 public:
  explicit Grouping(Block& block) : block(block) {}

  void run() {
    materialize();
    buildGraph();
    mergeAlongEdges();
    mergeSiblings();
    for (unsigned id : graph.ordered())
      if (graph[id].fusable) recomputeElsewhere(id);
    place();
  }

 private:
  // A free op whose value is used outside of kernels must be computed by a kernel of its own.
  void materialize() {
    SmallVector<Operation*> ops;
    for (Operation& op : block) ops.push_back(&op);
    for (Operation* op : llvm::reverse(ops)) {
      if (!isa<BroadcastOp, IotaOp>(op)) continue;
      SmallVector<OpOperand*> wanted;
      for (OpOperand& use : op->getUses())
        if (wantsMemory(use.getOwner())) wanted.push_back(&use);
      if (wanted.empty()) continue;
      OpBuilder builder(op);
      builder.setInsertionPointAfter(op);
      Operation* copy = builder.clone(*op);
      materialized.insert(copy);
      for (OpOperand* use : wanted) use->set(copy->getResult(0));
    }
  }

  bool isFusable(Operation* op) {
    return isa<FusableElementwise>(op) || isRowReduction(op) || isColumnReduction(op) || materialized.contains(op);
  }

  // Reshapes are looked through where they keep rows and all who use them do compute in kernels.
  bool wantsMemory(Operation* user) {
    if (auto reshape = dyn_cast<ReshapeOp>(user))
      return !keepsRows(reshape) || llvm::any_of(user->getUsers(), [&](Operation* op) { return wantsMemory(op); });
    return !isFree(user) && !isFusable(user);
  }

  bool isTransparent(Operation* op) { return isFree(op) && !materialized.contains(op); }

  // Calls `visit(producer, separates)` for every node op whose value reaches `v` through free ops.
  void trace(Value v, bool separates, function_ref<void(Operation*, bool)> visit) {
    Operation* op = v.getDefiningOp();
    if (!op || op->getBlock() != &block) return;
    if (!isTransparent(op)) return visit(op, separates || isColumnReduction(op));
    if (auto reshape = dyn_cast<ReshapeOp>(op)) separates |= !keepsRows(reshape);
    for (Value operand : op->getOperands()) trace(operand, separates, visit);
  }

  void buildGraph() {
    for (Operation& op : block.without_terminator()) {
      if (isTransparent(&op)) continue;
      unsigned id = graph.addNode(&op);
      FusionGraph::Node& node = graph[id];
      node.fusable = isFusable(&op);
      if (node.fusable) {
        Value space = isa<ReduceOp>(op) ? op.getOperand(0) : op.getResult(0);
        node.rows = rowsOf(space);
        node.columns = columnsOf(space) == 1 ? 0 : columnsOf(space);
      }
      for (Value operand : op.getOperands())
        trace(operand, false,
              [&](Operation* producer, bool separates) { graph.addEdge(graph.nodeOf(producer), id, separates); });
    }
  }

  // Tensors that a kernel of two groups would read or write, at most.
  size_t operandsOf(const FusionGraph::Node& x, const FusionGraph::Node& y) {
    llvm::SmallPtrSet<Operation*, 16> inside(x.members.begin(), x.members.end());
    inside.insert(y.members.begin(), y.members.end());
    DenseSet<Value> tensors;
    for (Operation* op : inside) {
      for (Value operand : op->getOperands())
        if (Value root = rootOf(operand); root && !inside.contains(root.getDefiningOp())) tensors.insert(root);
      for (Value result : op->getResults())
        if (llvm::any_of(result.getUsers(), [&](Operation* user) { return !inside.contains(user); }))
          tensors.insert(result);
    }
    return tensors.size();
  }

  bool fit(unsigned a, unsigned b) {
    FusionGraph::Node &x = graph[a], &y = graph[b];
    if (!x.fusable || !y.fusable || x.rows != y.rows) return false;
    const size_t members = x.members.size() + y.members.size();
    if (members > kLargestGroup || (members > kMembersWithinLimit && operandsOf(x, y) > kMaxOperands)) return false;
    if (x.columns == y.columns) return true;
    return (!x.columns || !y.columns) && (x.rows > 1 || std::max(x.columns, y.columns) <= kLongestLoneRow);
  }

  void mergeAlongEdges() {
    SmallVector<Operation*> ops;
    for (Operation& op : block.without_terminator())
      if (!isTransparent(&op) && isFusable(&op)) ops.push_back(&op);
    for (Operation* op : llvm::reverse(ops)) {
      // Merging changes the consumers, so they are examined again, the nearest first, until none fits.
      llvm::DenseSet<unsigned> refused;
      for (bool changed = true; changed;) {
        changed = false;
        unsigned node = graph.nodeOf(op);
        SmallVector<unsigned> consumers(graph[node].consumers.begin(), graph[node].consumers.end());
        llvm::sort(consumers, [&](unsigned x, unsigned y) { return graph[x].order < graph[y].order; });
        for (unsigned consumer : consumers) {
          if (refused.contains(consumer)) continue;
          if (fit(node, consumer) && graph.merge(node, consumer)) {
            changed = true;
            break;
          }
          refused.insert(consumer);
        }
      }
    }
  }

  // Groups that read all of one tensor. What is broadcast to them does not count.
  void mergeSiblings() {
    llvm::MapVector<Value, llvm::SmallSetVector<unsigned, 4>> readers;
    for (unsigned id : graph.ordered()) {
      if (!graph[id].fusable) continue;
      for (Operation* op : graph[id].members)
        for (Value v : op->getOperands()) {
          v = withoutReshapes(v);
          if (Operation* producer = v.getDefiningOp(); producer && isTransparent(producer)) continue;
          if (rowsOf(v) == graph[id].rows && columnsOf(v) > 1) readers[v].insert(id);
        }
    }
    for (auto& [value, ids] : readers) {
      SmallVector<Operation*> representatives;
      for (unsigned id : ids)
        if (!graph[id].members.empty()) representatives.push_back(graph[id].members.front());
      for (size_t i = 0; i + 1 < representatives.size(); ++i) {
        unsigned a = graph.nodeOf(representatives[i]), b = graph.nodeOf(representatives[i + 1]);
        if (a != b && fit(a, b) && std::abs(graph[a].order - graph[b].order) <= kSiblingDistance) graph.merge(a, b);
      }
    }
  }

  // The tensor in memory that a value is read from: free ops that keep rows are looked through. Null for what has no
  // operands.
  Value rootOf(Value v) {
    while (Operation* op = v.getDefiningOp()) {
      if (op->getBlock() != &block || !isTransparent(op)) break;
      if (auto reshape = dyn_cast<ReshapeOp>(op); reshape && !keepsRows(reshape)) break;
      if (op->getNumOperands() == 0) return {};
      v = op->getOperand(0);
    }
    return v;
  }

  // The groups that use a value; false if anything else does.
  bool collectReaders(Value v, llvm::SmallSetVector<unsigned, 4>& readers) {
    for (Operation* user : v.getUsers()) {
      if (user == block.getTerminator()) return false;
      if (isTransparent(user)) {
        if (auto reshape = dyn_cast<ReshapeOp>(user); reshape && !keepsRows(reshape)) return false;
        if (!collectReaders(user->getResult(0), readers)) return false;
      } else if (!graph.contains(user) || !graph[graph.nodeOf(user)].fusable) {
        return false;
      } else {
        readers.insert(graph.nodeOf(user));
      }
    }
    return true;
  }

  // The elementwise members of `group` that compute `v` from tensors in `known`, operands first; false if they do not
  // or are too many.
  bool collectChain(Value v, unsigned group, const llvm::SmallSetVector<Value, 8>& known,
                    llvm::SmallSetVector<Operation*, 8>& chain) {
    Operation* op = v.getDefiningOp();
    if (!op || !graph.contains(op) || graph.nodeOf(op) != group || !isa<FusableElementwise>(op)) return false;
    if (chain.contains(op)) return true;
    for (Value operand : op->getOperands()) {
      Value root = rootOf(operand);
      if (root && !known.contains(root) && !collectChain(root, group, known, chain)) return false;
    }
    chain.insert(op);
    return chain.size() <= kMostRecomputed && llvm::count_if(chain, isElementaryFunction) <= kMostRecomputedFunctions;
  }

  // What replaces `v` where `clones` replace their originals.
  Value remap(Value v, const DenseMap<Value, Value>& clones) {
    if (Value clone = clones.lookup(v)) return clone;
    Operation* op = v.getDefiningOp();
    if (!op || op->getBlock() != &block || !isTransparent(op) || op->getNumOperands() == 0) return v;
    Value operand = remap(op->getOperand(0), clones);
    if (operand == op->getOperand(0)) return v;
    Operation* copy = OpBuilder(block.getTerminator()).clone(*op);
    copy->setOperand(0, operand);
    return copy->getResult(0);
  }

  // Clones what computes a result of the group into its readers if it then need not be kept.
  void recomputeElsewhere(unsigned group) {
    SmallVector<Operation*> members = graph[group].members;
    for (Operation* op : members) {
      Value v = op->getResult(0);
      llvm::SmallSetVector<unsigned, 4> readers;
      if (!isa<FusableElementwise>(op) || !collectReaders(v, readers)) continue;
      readers.remove(group);
      if (readers.empty() || readers.size() > kMostRecomputing) continue;
      SmallVector<llvm::SmallSetVector<Operation*, 8>> chains;
      bool possible = true;
      for (unsigned reader : readers) {
        llvm::SmallSetVector<Value, 8> known;
        for (Operation* member : graph[reader].members)
          for (Value operand : member->getOperands())
            if (Value root = rootOf(operand); root && root != v) known.insert(root);
        possible &= collectChain(v, group, known, chains.emplace_back()) &&
                    graph[reader].members.size() + chains.back().size() <= kLargestGroup;
      }
      if (!possible) continue;
      for (auto [reader, chain] : llvm::zip(readers, chains)) cloneChain(reader, chain.getArrayRef());
    }
  }

  void cloneChain(unsigned reader, ArrayRef<Operation*> chain) {
    DenseMap<Value, Value> clones;
    SmallVector<Operation*> copies;
    OpBuilder builder(block.getTerminator());
    for (Operation* op : chain) {
      Operation* copy = builder.clone(*op);
      for (OpOperand& operand : copy->getOpOperands()) operand.set(remap(operand.get(), clones));
      clones[op->getResult(0)] = copy->getResult(0);
      graph.adopt(reader, copy);
      copies.push_back(copy);
    }
    auto& members = graph[reader].members;
    for (Operation* member : members)
      for (OpOperand& operand : member->getOpOperands()) operand.set(remap(operand.get(), clones));
    members.insert(members.begin(), copies.begin(), copies.end());
  }

  // Whether a group computes `v` itself: a member, or what free ops make of members or of nothing.
  bool isInside(Value v, unsigned group) {
    Operation* op = v.getDefiningOp();
    if (!op || op->getBlock() != &block) return false;
    if (!isTransparent(op)) return graph.nodeOf(op) == group;
    return !isa<ReshapeOp>(op) || isInside(op->getOperand(0), group);
  }

  // Ops between the nodes that belong to no group: reshapes, and constants for their users.
  void placeFree(Value v) {
    Operation* op = v.getDefiningOp();
    if (!op || op->getBlock() != &block || !isTransparent(op) || !placed.insert(op).second) return;
    for (Value operand : op->getOperands()) placeFree(operand);
    op->moveBefore(block.getTerminator());
  }

  void placeOperands(Value v, unsigned group) {
    if (!isInside(v, group)) return placeFree(v);
    if (Operation* op = v.getDefiningOp(); isTransparent(op))
      for (Value operand : op->getOperands()) placeOperands(operand, group);
  }

  Value cloneInside(Value v, unsigned group, Attribute number, DenseMap<Value, Value>& clones) {
    Operation* op = v.getDefiningOp();
    if (!isInside(v, group) || !isTransparent(op)) return v;
    if (Value known = clones.lookup(v)) return known;
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) operands.push_back(cloneInside(operand, group, number, clones));
    OpBuilder builder(block.getTerminator());
    Operation* copy = builder.clone(*op);
    copy->setOperands(operands);
    copy->setAttr(kGroupAttr, number);
    return clones[v] = copy->getResult(0);
  }

  void place() {
    SmallVector<Operation*> free;
    for (Operation& op : block)
      if (isTransparent(&op)) free.push_back(&op);
    Operation* terminator = block.getTerminator();
    int64_t groups = 0;
    for (unsigned id : graph.ordered()) {
      FusionGraph::Node& node = graph[id];
      if (!node.fusable) {
        Operation* op = node.members.front();
        op->walk([&](Operation* inner) {
          for (Value v : inner->getOperands()) placeFree(v);
        });
        op->moveBefore(terminator);
        continue;
      }
      for (Operation* op : node.members)
        for (Value v : op->getOperands()) placeOperands(v, id);
      Attribute number = IntegerAttr::get(IntegerType::get(terminator->getContext(), 64), groups++);
      DenseMap<Value, Value> clones;
      for (Operation* op : node.members) {
        for (OpOperand& operand : op->getOpOperands()) operand.set(cloneInside(operand.get(), id, number, clones));
        op->moveBefore(terminator);
        op->setAttr(kGroupAttr, number);
      }
    }
    for (Value v : terminator->getOperands()) placeFree(v);
    for (Operation* op : llvm::reverse(free))
      if (op->use_empty()) op->erase();
  }

  Block& block;
  FusionGraph graph;
  llvm::DenseSet<Operation*> materialized, placed;
};

struct AssignFusions : sheaf::train::impl::AssignFusionsBase<AssignFusions> {
  using Base::Base;

  void runOnOperation() override {
    // Drop the groups of an earlier run of this pass.
    getOperation().walk([](Operation* op) { op->removeAttr(kGroupAttr); });
    // Shape ops on splats become splats, which kernels hold in registers.
    RewritePatternSet patterns(&getContext());
    ReshapeOp::getCanonicalizationPatterns(patterns, &getContext());
    BroadcastOp::getCanonicalizationPatterns(patterns, &getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns)))) return signalPassFailure();
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (Block& block : function.getBody()) Grouping(block).run();
  }
};

}  // namespace
