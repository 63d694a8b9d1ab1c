// Evaluates what depends on constants alone. Shape arithmetic and masks make long chains of it in exported graphs:
// values inside a chain live only while the pass needs them, and only what other ops read becomes an attribute.
#include "ir/Train/Evaluator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_FOLDCONSTANTS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// A constant of `type`; a splat has one element in `data`.
struct Constant {
  RankedTensorType type;
  Tensor data;
  bool splat;
};

RankedTensorType typeOf(Value v) {
  return cast<RankedTensorType>(v.getType());
}

// Bytes in memory; booleans take one.
int64_t bytesOf(RankedTensorType type) {
  return type.getNumElements() * ((type.getElementTypeBitWidth() + 7) / 8);
}

bool equalBits(double x, double y) {
  return llvm::bit_cast<uint64_t>(x) == llvm::bit_cast<uint64_t>(y);
}
bool equalBits(int64_t x, int64_t y) {
  return x == y;
}

// Keeps one element of equal ones.
Constant compress(Tensor t) {
  auto equal = [](const auto& v) {
    return !v.empty() && llvm::all_of(v, [&](const auto& x) { return equalBits(x, v.front()); });
  };
  RankedTensorType type = t.type;
  bool splat = t.isFloat() ? equal(t.f) : equal(t.i);
  if (splat) {
    t.type = type.clone(ArrayRef<int64_t>{});
    t.f.resize(std::min<size_t>(t.f.size(), 1));
    t.i.resize(std::min<size_t>(t.i.size(), 1));
  }
  return {type, std::move(t), splat};
}

Tensor expand(Constant c) {
  if (!c.splat) return std::move(c.data);
  Tensor t{c.type, {}, {}};
  if (t.isFloat())
    t.f.assign(t.size(), c.data.f[0]);
  else
    t.i.assign(t.size(), c.data.i[0]);
  return t;
}

// Ops that move elements: whatever they do to a splat gives a splat of their type.
bool movesElements(Operation* op) {
  return isa<ReshapeOp, BroadcastOp, TransposeOp, SliceOp, ReverseOp>(op);
}

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

  // A dropout's mask changes from step to step and a global sum is over the other ranks' constants too. An iota stays
  // one: it costs nothing where it is used, and its elements are known where it is folded. So does a broadcast of what
  // is no splat: written out, the tables of a rotary embedding would be as large as the activations they multiply.
  bool mayFold(Operation* op) const {
    return isPure(op) && op->getNumOperands() > 0 && op->getNumResults() > 0 && op->getNumRegions() == 0 &&
           isa_and_nonnull<TrainDialect>(op->getDialect()) && !op->hasTrait<OpTrait::IsTerminator>() &&
           !isa<DropoutOp, GlobalSumOp>(op) && !(isa<BroadcastOp>(op) && !isSplat(op->getOperand(0))) &&
           llvm::all_of(op->getOperands(), [&](Value v) { return isConstant(v); });
  }

  // Failure where the elements are not at hand.
  FailureOr<Constant> get(Value v) {
    if (auto found = folded.find(v); found != folded.end()) return found->second;
    if (auto constant = v.getDefiningOp<ConstantOp>()) {
      if (auto splat = dyn_cast<SplatElementsAttr>(constant.getValue())) {
        FailureOr<Tensor> t = toTensor(splat.resizeSplat(typeOf(v).clone(ArrayRef<int64_t>{})));
        if (failed(t)) return failure();
        return Constant{typeOf(v), std::move(*t), true};
      }
      FailureOr<Tensor> t = toTensor(constant.getValue());
      if (failed(t)) return failure();
      return Constant{typeOf(v), std::move(*t), false};
    }
    // An iota, or a broadcast of something known.
    std::vector<Tensor> operands;
    for (Value operand : v.getDefiningOp()->getOperands()) {
      FailureOr<Constant> c = get(operand);
      if (failed(c)) return failure();
      operands.push_back(expand(std::move(*c)));
    }
    FailureOr<std::vector<Tensor>> value = evaluate(v.getDefiningOp(), operands);
    if (failed(value)) return failure();
    return Constant{typeOf(v), std::move(value->front()), false};
  }

  bool isSplat(Value v) const {
    if (auto found = folded.find(v); found != folded.end()) return found->second.splat;
    auto constant = v.getDefiningOp<ConstantOp>();
    return constant && isa<SplatElementsAttr>(constant.getValue());
  }

  // False where the op stays as it is; failure where it has no value.
  FailureOr<bool> fold(Operation* op) {
    bool splats = llvm::all_of(op->getOperands(), [&](Value v) { return isSplat(v); });
    bool one = splats && (op->hasTrait<OpTrait::Elementwise>() || movesElements(op));
    auto fits = [&](Value v) { return bytesOf(typeOf(v)) <= maxBytes; };
    if (!one && !(llvm::all_of(op->getResults(), fits) && llvm::all_of(op->getOperands(), fits))) return false;
    if (one && typeOf(op->getResult(0)).getNumElements() == 0) return false;

    std::vector<Tensor> operands;
    for (Value v : op->getOperands()) {
      FailureOr<Constant> c = get(v);
      if (failed(c)) return false;
      operands.push_back(one ? std::move(c->data) : expand(std::move(*c)));
    }
    if (one && movesElements(op)) {
      keep(op->getResult(0), {typeOf(op->getResult(0)), std::move(operands[0]), true});
    } else {
      EvaluatorOptions options;
      options.round = true;
      FailureOr<std::vector<Tensor>> results = evaluate(op, operands, options);
      if (failed(results)) return failure();
      for (auto [v, t] : llvm::zip(op->getResults(), *results))
        keep(v, one ? Constant{typeOf(v), std::move(t), true} : compress(std::move(t)));
    }
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
      const Constant& c = found->second;
      DenseElementsAttr value = toAttribute(c.data);
      if (c.splat) value = value.resizeSplat(c.type);
      Value constant = ConstantOp::create(builder, v.getLoc(), value);
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
