// Evaluates what depends on constants alone. Shape arithmetic and masks make long chains of it in exported graphs:
// values inside a chain live only while the pass needs them, and only what other ops read becomes an attribute.
#include "ir/Train/Constant.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_FOLDCONSTANTS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

class Folder {
 public:
  Folder(Block& block, int64_t maxBytes) : block(block), maxBytes(maxBytes) {}

  LogicalResult run() {
    SmallVector<Operation*> done;
    for (Operation& op : llvm::make_early_inc_range(block)) {
      if (mayFold(&op)) {
        FailureOr<bool> folded = fold(&op);
        if (failed(folded)) return failure();
        if (*folded) done.push_back(&op);
        if (*folded) continue;
      }
      materializeOperands(&op);
    }
    for (Operation* op : llvm::reverse(done))
      if (op->use_empty()) op->erase();
    for (Operation& op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (isa<ConstantOp, IotaOp, BroadcastOp>(op) && op.use_empty()) op.erase();
    return success();
  }

 private:
  Block& block;
  int64_t maxBytes;
  // Values folded so far, until their last user is folded too.
  DenseMap<Value, Constant> folded;
  DenseMap<Value, int64_t> foldedUses;

  bool isConstant(Value v) const {
    if (auto broadcast = v.getDefiningOp<BroadcastOp>()) v = broadcast.getOperand();
    return folded.contains(v) || v.getDefiningOp<ConstantOp>() || v.getDefiningOp<IotaOp>();
  }

  // Random numbers change from step to step; global_sum and gather_rows depend on constants of other ranks, too. An
  // iota stays one: it costs nothing where it is used, and its elements are known where it is folded. So does a
  // broadcast of what is not a splat: written out, the tables of a rotary embedding would be as large as the
  // activations they multiply.
  bool mayFold(Operation* op) const {
    return isPure(op) && op->getNumOperands() > 0 && op->getNumResults() > 0 && op->getNumRegions() == 0 &&
           isa_and_nonnull<TrainDialect>(op->getDialect()) && !op->hasTrait<OpTrait::IsTerminator>() &&
           !isa<DropoutOp, RandomUniformOp, LossScaleOp, GlobalSumOp, GatherRowsOp>(op) &&
           !(isa<BroadcastOp>(op) && !isSplat(op->getOperand(0))) &&
           llvm::all_of(op->getOperands(), [&](Value v) { return isConstant(v); });
  }

  // Nothing if the elements are not available (a resource).
  std::optional<Constant> get(Value v) {
    if (auto found = folded.find(v); found != folded.end()) return found->second;
    if (auto constant = v.getDefiningOp<ConstantOp>()) return Constant::fromAttribute(constant.getValue());
    // An iota, or a broadcast of something known.
    SmallVector<Constant> operands;
    for (Value operand : v.getDefiningOp()->getOperands()) {
      std::optional<Constant> c = get(operand);
      if (!c) return std::nullopt;
      operands.push_back(std::move(*c));
    }
    auto value = ConstantEvaluation(v.getDefiningOp(), operands).run();
    if (failed(value)) return std::nullopt;
    return value->front();
  }

  bool isSplat(Value v) const {
    if (auto found = folded.find(v); found != folded.end()) return found->second.isSplat();
    auto constant = v.getDefiningOp<ConstantOp>();
    return constant && isa<SplatElementsAttr>(constant.getValue());
  }

  // False where the op stays as it is; failure where it has no value.
  FailureOr<bool> fold(Operation* op) {
    SmallVector<Constant> operands;
    for (Value v : op->getOperands()) {
      std::optional<Constant> c = get(v);
      if (!c) return false;
      operands.push_back(std::move(*c));
    }
    ConstantEvaluation evaluation(op, operands);
    if (evaluation.bytes() > maxBytes) return false;
    FailureOr<SmallVector<Constant>> results = evaluation.run();
    if (failed(results)) return failure();
    for (auto [v, constant] : llvm::zip(op->getResults(), *results)) keep(v, std::move(constant));
    for (Value v : op->getOperands()) release(v);
    return true;
  }

  void keep(Value v, Constant c) {
    folded[v] = std::move(c);
    foldedUses[v] = std::distance(v.use_begin(), v.use_end());
  }

  void release(Value v) {
    auto found = foldedUses.find(v);
    if (found != foldedUses.end() && --found->second == 0) folded.erase(v);
  }

  // An op that stays reads constants. Those that fold later read them too, instead of what is folded away.
  void materializeOperands(Operation* op) {
    for (Value v : llvm::to_vector(op->getOperands())) {
      auto found = folded.find(v);
      if (found == folded.end()) continue;
      OpBuilder builder(v.getDefiningOp());
      Value constant = materialize(builder, v.getLoc(), found->second);
      folded.erase(found);
      foldedUses.erase(v);
      v.replaceAllUsesWith(constant);
    }
  }
};

struct FoldConstants : sheaf::train::impl::FoldConstantsBase<FoldConstants> {
  using Base::Base;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (Block& block : function.getBody())
        if (failed(Folder(block, maxBytes).run())) return signalPassFailure();
  }
};

}  // namespace
