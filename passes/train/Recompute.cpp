// Computes activations again in the backward pass instead of keeping them.
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_RECOMPUTE
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

class Recomputer {
 public:
  Recomputer(Block& block, bool whole, int64_t every, int64_t segments)
      : block(block), whole(whole), every(std::max<int64_t>(every, 1)), segments(segments) {}

  // How many segments there are.
  int64_t run() {
    number();
    markFixed();
    int64_t count = divide();
    for (size_t i = loss + 1; i < ops.size(); ++i)
      for (OpOperand& operand : ops[i]->getOpOperands())
        if (isRecomputed(operand.get())) {
          at = head(ops[i]);
          operand.set(recompute(operand.get()));
        }
    // Some results of a cloned group may be unused.
    for (Operation* op : llvm::reverse(clones))
      if (op->use_empty()) op->erase();
    return count;
  }

 private:
  void number() {
    for (Operation& op : block) {
      position[&op] = ops.size();
      if (isa<LossOp>(op)) loss = ops.size();
      if (auto group = op.getAttrOfType<IntegerAttr>(kGroupAttr)) {
        groups[group.getInt()].push_back(&op);
        nextGroup = std::max(nextGroup, group.getInt() + 1);
      }
      ops.push_back(&op);
    }
  }

  // Parameters, and what does not depend on them (masks, rotary tables, positions), stay as they are.
  void markFixed() {
    llvm::DenseSet<Value> varying;
    for (size_t i = 0; i <= loss; ++i) {
      if (isa<ReadOp>(ops[i])) {
        for (Value v : ops[i]->getResults()) parameters.insert(v);
        continue;
      }
      bool view = ops[i]->getNumOperands() == 1 && parameters.contains(ops[i]->getOperand(0)) && isa<ReshapeOp>(ops[i]);
      bool varies =
          llvm::any_of(ops[i]->getOperands(), [&](Value v) { return varying.contains(v) || parameters.contains(v); });
      for (Value v : ops[i]->getResults()) {
        if (view) parameters.insert(v);
        if (varies && !view) varying.insert(v);
      }
    }
    for (size_t i = 0; i <= loss; ++i)
      for (Value v : ops[i]->getResults())
        if (!varying.contains(v)) fixed.insert(v);
  }

  // The forward pass is cut where the fewest bytes go on: between transformer blocks, and between the attention and the
  // rest of one. What goes on at every `every`-th cut is kept and ends a segment.
  int64_t divide() {
    SmallVector<int64_t> unit(loss + 1);  // groups are computed as one
    for (size_t i = 0; i <= loss; ++i) unit[i] = i > 0 && head(ops[i]) == head(ops[i - 1]) ? unit[i - 1] : int64_t(i);
    auto lastForwardUse = [&](Value v) {
      int64_t last = -1;
      for (Operation* user : v.getUsers())
        if (size_t p = position.lookup(user); p <= loss) last = std::max(last, unit[p]);
      return last;
    };
    SmallVector<int64_t> change(loss + 2, 0);
    for (size_t i = 0; i <= loss; ++i)
      for (Value v : ops[i]->getResults())
        if (int64_t last = lastForwardUse(v); passes(v) && last > unit[i])
          change[unit[i]] += bytesOf(v), change[last] -= bytesOf(v);
    // Bytes that go on after each unit, where they are fewest: each time before a product makes them more.
    SmallVector<int64_t> onward(loss + 1, 0), lows;
    int64_t live = 0, best = -1;
    for (size_t i = 0; i <= loss; ++i) {
      onward[i] = live += change[i];
      if (unit[i] != int64_t(i) || change[i] == 0) continue;
      if (best >= 0 && onward[i] > onward[best] && isProduct(ops[i])) lows.push_back(best), best = -1;
      if (best < 0 || onward[i] < onward[best]) best = i;
    }
    SmallVector<int64_t> sorted(lows);
    llvm::sort(sorted, [&](int64_t a, int64_t b) { return onward[a] < onward[b]; });
    SmallVector<int64_t> ends;
    for (int64_t low : lows)
      if (4 * onward[low] <= 5 * onward[sorted[sorted.size() / 2]]) ends.push_back(low);
    int64_t segment = 0, cuts = 0;
    segmentOf.assign(ops.size(), 0);
    size_t next = 0, nextOp = 0;
    for (size_t i = 0; i <= loss; ++i) {
      segmentOf[i] = segment;
      bool last = i == loss || unit[i + 1] != unit[i];
      if (!last || next == ends.size() || unit[i] != ends[next]) continue;
      ++next;
      if (++cuts % every) continue;
      ++segment;
      // Values that end before this cut end before all later ones.
      for (; nextOp <= i; ++nextOp)
        for (Value v : ops[nextOp]->getResults())
          if (passes(v) && lastForwardUse(v) > unit[i]) kept.insert(v);
    }
    limit = segments < 0 ? segment : std::min(segments, segment);
    return segment;
  }

  static bool isProduct(Operation* op) {
    return isa<MatMulOp, MatMulEpilogueOp, AttentionOp, ConvOp, ConvGradInputOp>(op);
  }
  bool passes(Value v) const { return !fixed.contains(v) && !parameters.contains(v); }
  static int64_t bytesOf(Value v) {
    auto type = cast<RankedTensorType>(v.getType());
    return type.getNumElements() * std::max<int64_t>(1, type.getElementTypeBitWidth() / 8);
  }

  bool isRecomputed(Value v) const {
    Operation* op = v.getDefiningOp();
    auto p = op ? position.find(op) : position.end();
    if (p == position.end() || p->second > loss || fixed.contains(v) || kept.contains(v)) return false;
    if (segmentOf[p->second] >= limit) return false;
    // Gathering rows once more costs more than to keep them.
    if (isa<GatherRowsOp>(op)) return false;
    // Otherwise matrix products, attention and other library calls are kept, and what kernels make of them is not.
    return whole || op->hasAttr(kGroupAttr) || isa<ReshapeOp>(op);
  }

  Operation* head(Operation* op) const {
    auto group = op->getAttrOfType<IntegerAttr>(kGroupAttr);
    return group ? groups.lookup(group.getInt()).front() : op;
  }

  SmallVector<Operation*> membersOf(Operation* op) const {
    auto group = op->getAttrOfType<IntegerAttr>(kGroupAttr);
    return group ? groups.lookup(group.getInt()) : SmallVector<Operation*>{op};
  }

  // The value computed again; `at` is where it is needed first. What it is computed from comes before it, and may be a
  // chain as long as the model.
  Value recompute(Value v) {
    SmallVector<Value> pending{v};
    while (!pending.empty()) {
      const Value wanted = pending.back();
      const size_t before = pending.size();
      if (!replaced.contains(wanted)) {
        const SmallVector<Operation*> members = membersOf(wanted.getDefiningOp());
        const llvm::SmallPtrSet<Operation*, 8> inside(members.begin(), members.end());
        IRMapping mapping;
        for (Operation* member : members)
          for (Value operand : member->getOperands()) {
            if (!isRecomputed(operand) || inside.contains(operand.getDefiningOp())) continue;
            if (Value known = replaced.lookup(operand))
              mapping.map(operand, known);
            else
              pending.push_back(operand);
          }
        // The last comes first: the order of the clones is that of the operands.
        std::reverse(pending.begin() + before, pending.end());
        if (pending.size() > before) continue;
        clone(members, mapping);
      }
      pending.pop_back();
    }
    return replaced.lookup(v);
  }

  void clone(ArrayRef<Operation*> members, IRMapping& mapping) {
    OpBuilder builder(at);
    const bool grouped = members.front()->hasAttr(kGroupAttr);
    const int64_t number = nextGroup;
    if (grouped) ++nextGroup;
    for (Operation* member : members) {
      Operation* clone = builder.clone(*member, mapping);
      if (grouped) clone->setAttr(kGroupAttr, builder.getI64IntegerAttr(number));
      clones.push_back(clone);
      for (auto [from, to] : llvm::zip(member->getResults(), clone->getResults())) replaced[from] = to;
    }
  }

  Block& block;
  const bool whole;
  const int64_t every, segments;
  SmallVector<Operation*> ops;
  llvm::DenseMap<Operation*, size_t> position;
  llvm::DenseMap<int64_t, SmallVector<Operation*>> groups;
  int64_t nextGroup = 0, limit = 0;
  size_t loss = 0;
  llvm::DenseSet<Value> parameters, fixed, kept;
  SmallVector<int64_t> segmentOf;
  llvm::DenseMap<Value, Value> replaced;
  SmallVector<Operation*> clones;
  Operation* at = nullptr;
};

struct Recompute : sheaf::train::impl::RecomputeBase<Recompute> {
  using Base::Base;

  void runOnOperation() override {
    std::optional<Recomputation> wanted = symbolizeRecomputation(what);
    if (!wanted) {
      getOperation().emitError() << "recompute: '" << what << "' is not one of "
                                 << llvm::join(enumWords<Recomputation>(), ", ");
      return signalPassFailure();
    }
    if (*wanted == Recomputation::none) return;
    auto step = getOperation().lookupSymbol<func::FuncOp>("step");
    if (!step) return;
    Recomputer recomputer(step.getBody().front(), *wanted == Recomputation::all, every, segments);
    getOperation()->setAttr("train.segments", Builder(&getContext()).getI64IntegerAttr(recomputer.run()));
  }
};

}  // namespace
