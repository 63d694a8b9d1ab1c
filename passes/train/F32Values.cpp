#include "passes/train/F32Values.h"

#include <cmath>
#include <set>

#include "ir/Train/ParameterNames.h"

using namespace mlir;

namespace sheaf::train {

namespace {

// The values that an element may have; more than these are not followed.
constexpr size_t kMostValues = 8;
// Elements of a constant that are looked at.
constexpr int64_t kMostElements = 1 << 20;

using Values = std::set<float>;

bool isFloat(Value v) {
  return isa<FloatType>(cast<RankedTensorType>(v.getType()).getElementType());
}

// Follows the few values that selects, comparisons and masks produce from one op to the next.
class FewValues {
 public:
  // Returns nothing where there are too many, or nothing is known.
  std::optional<Values> visit(Operation* op) {
    std::optional<Values> values = compute(op);
    if (values && (values->size() > kMostValues || llvm::any_of(*values, [](float x) { return std::isnan(x); })))
      values.reset();
    // Integers are followed as floats, which hold these.
    if (values && op->getNumResults() == 1 && !isFloat(op->getResult(0)) &&
        llvm::any_of(*values, [](float x) { return std::abs(x) > (1 << 24); }))
      values.reset();
    if (values)
      for (Value result : op->getResults()) known[result] = *values;
    return values;
  }

 private:
  std::optional<Values> of(Value v) const {
    if (cast<RankedTensorType>(v.getType()).getElementType().isInteger(1)) return Values{0, 1};
    auto found = known.find(v);
    return found == known.end() ? std::nullopt : std::optional(found->second);
  }

  static std::optional<Values> compute(ConstantOp constant) {
    auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
    if (!elements || (!elements.isSplat() && elements.getNumElements() > kMostElements)) return std::nullopt;
    Values values;
    auto add = [&](auto range, auto convert) {
      for (auto element : range) {
        values.insert(convert(element));
        if (values.size() > kMostValues || elements.isSplat()) break;
      }
    };
    Type element = elements.getElementType();
    if (element.isF32())
      add(elements.getValues<APFloat>(), [](const APFloat& x) { return x.convertToFloat(); });
    else if (element.isInteger() && !element.isUnsignedInteger())
      add(elements.getValues<APInt>(), [](const APInt& x) { return static_cast<float>(x.getSExtValue()); });
    else
      return std::nullopt;
    return values;
  }

  std::optional<Values> joined(ValueRange operands) const {
    Values all;
    for (Value operand : operands) {
      std::optional<Values> values = of(operand);
      if (!values) return std::nullopt;
      all.insert(values->begin(), values->end());
    }
    return all;
  }

  template <typename Function>
  std::optional<Values> each(Value operand, Function&& function) const {
    std::optional<Values> values = of(operand);
    if (!values) return std::nullopt;
    Values results;
    for (float x : *values) results.insert(function(x));
    return results;
  }
  template <typename Function>
  std::optional<Values> pairs(Operation* op, Function&& function) const {
    std::optional<Values> a = of(op->getOperand(0)), b = of(op->getOperand(1));
    if (!a || !b) return std::nullopt;
    Values results;
    for (float x : *a)
      for (float y : *b) results.insert(function(x, y));
    return results;
  }

  std::optional<Values> compute(Operation* op) const {
    if (auto constant = dyn_cast<ConstantOp>(op)) return compute(constant);
    if (isa<ReshapeOp, BroadcastOp, TransposeOp, SliceOp, ReverseOp, GatherOp, GatherElementsOp>(op))
      return of(op->getOperand(0));
    if (isa<ConcatOp>(op)) return joined(op->getOperands());
    if (auto select = dyn_cast<SelectOp>(op)) return joined({select.getOnTrue(), select.getOnFalse()});
    if (isa<PadOp>(op)) {
      std::optional<Values> values = of(op->getOperand(0));
      if (values) values->insert(0);
      return values;
    }
    if (isa<CastOp>(op) && (isFloat(op->getResult(0)) || !isFloat(op->getOperand(0)))) return of(op->getOperand(0));
    if (isa<NegOp>(op)) return each(op->getOperand(0), [](float x) { return -x; });
    if (isa<AddOp>(op)) return pairs(op, [](float x, float y) { return x + y; });
    if (isa<SubOp>(op)) return pairs(op, [](float x, float y) { return x - y; });
    if (isa<MulOp>(op)) return pairs(op, [](float x, float y) { return x * y; });
    if (isa<MinOp>(op)) return pairs(op, [](float x, float y) { return std::min(x, y); });
    if (isa<MaxOp>(op)) return pairs(op, [](float x, float y) { return std::max(x, y); });
    return std::nullopt;
  }

  DenseMap<Value, Values> known;
};

bool holdsExactly(FloatType half, float x) {
  APFloat value(x);
  bool loses = false;
  value.convert(half.getFloatSemantics(), APFloat::rmNearestTiesToEven, &loses);
  return !loses;
}

// True for an op that takes an angle.
bool takesAngle(Operation* op) {
  return isa<SinOp, CosOp, TanOp>(op);
}

}  // namespace

bool isHalfProduct(Operation* op) {
  return isa<MatMulOp, MatMulEpilogueOp, AttentionOp, AttentionGradOp>(op);
}

bool keepsElementType(Operation* op) {
  return isa<ReshapeOp, TransposeOp, SliceOp, ReverseOp, PadOp, ConcatOp, GatherOp, GatherElementsOp, ScatterAddOp>(op);
}

F32Values::F32Values(ModuleOp module, Block& block, FloatType half) {
  for (Operation& op : block.without_terminator())
    if (takesAngle(&op) || isa<CumSumOp>(op)) trace(op.getOperand(0), sensitive);
  findData(module, block, half);
  findCoarse(block);
  findParameters(block);
}

void F32Values::findData(ModuleOp module, Block& block, FloatType half) {
  SymbolTable symbols(module);
  ofData.insert(block.args_begin(), block.args_end());
  FewValues few;
  for (Operation& op : block.without_terminator()) {
    if (!llvm::all_of(op.getOperands(), [&](Value v) { return ofData.contains(v); })) continue;
    if (auto read = dyn_cast<ReadOp>(op))
      if (auto parameter = symbols.lookup<ParameterOp>(read.getParameter());
          !parameter || !parameter->hasAttr(kLargeConstantAttr))
        continue;
    ofData.insert(op.result_begin(), op.result_end());
    // The result of a product has the error of its operands.
    if (isHalfProduct(&op) && !computes(&op))
      for (Value v : op.getResults()) ofData.erase(v);
    std::optional<Values> values = few.visit(&op);
    if (values && llvm::all_of(*values, [&](float x) { return holdsExactly(half, x); }))
      exact.insert(op.result_begin(), op.result_end());
  }
}

void F32Values::trace(Value v, DenseSet<Value>& marked) {
  SmallVector<Value> left{v};
  while (!left.empty()) {
    v = left.pop_back_val();
    if (!isFloat(v) || !marked.insert(v).second) continue;
    Operation* op = v.getDefiningOp();
    if (!op) continue;
    if (isa<GatherOp, GatherElementsOp, ScatterAddOp>(op))
      left.push_back(op->getOperand(0));
    else if (isa<FusableElementwise, BroadcastOp>(op) || keepsElementType(op))
      llvm::append_range(left, op->getOperands());
  }
}

// A sum is coarse if all its terms are, or are parameters, which are rounded themselves: adding a position to the
// result of a product makes one that is not. A factor passes its relative error on.
void F32Values::findCoarse(Block& block) {
  DenseSet<Value> plain;  // elements of parameters
  auto rounded = [&](Value v) { return coarse.contains(v) || plain.contains(v); };
  auto isCoarse = [&](Operation& op) {
    if (isHalfProduct(&op) || isa<ConvOp, ConvGradInputOp, ConvGradFilterOp>(op)) return !computes(&op);
    // The errors of its terms average out, and those that two sums share cancel in their difference.
    if (isa<CumSumOp>(op)) return false;
    ValueRange operands = op.getOperands();
    if (isa<SelectOp>(op)) operands = operands.drop_front();
    if (isa<GatherOp, GatherElementsOp, ScatterAddOp>(op)) operands = operands.take_front();
    if (llvm::none_of(operands, [&](Value v) { return coarse.contains(v); })) return false;
    if (isa<FmaOp>(op)) return rounded(operands[2]) && (coarse.contains(operands[0]) || coarse.contains(operands[1]));
    return !isa<AddOp, SubOp, MinOp, MaxOp, SelectOp, ConcatOp>(op) || llvm::all_of(operands, rounded);
  };
  for (Operation& op : block.without_terminator()) {
    bool moves = isa<BroadcastOp>(op) || keepsElementType(&op);
    if (isa<ReadOp>(op) || (moves && llvm::all_of(op.getOperands(), [&](Value v) { return plain.contains(v); })))
      plain.insert(op.result_begin(), op.result_end());
    else if (isCoarse(op))
      coarse.insert(op.result_begin(), op.result_end());
  }
}

void F32Values::findParameters(Block& block) {
  DenseSet<Value> angles;
  for (Operation& op : block.without_terminator())
    if (takesAngle(&op)) trace(op.getOperand(0), angles);
  // A move alone, as of a table's rows, has the parameter's own elements.
  for (auto read : block.getOps<ReadOp>()) {
    SmallVector<Value> left{read.getResult()};
    while (!left.empty())
      for (Operation* user : left.pop_back_val().getUsers()) {
        if (user->getNumResults() != 1) continue;
        Value v = user->getResult(0);
        if (!angles.contains(v) && !takesAngle(user)) continue;
        if (isa<BroadcastOp>(user) || keepsElementType(user))
          left.push_back(v);
        else if (!coarse.contains(v))
          parameters.insert(read.getParameter());
      }
  }
}

bool F32Values::computes(Operation* product) const {
  return isa<MatMulOp>(product) && ofData.contains(product->getResult(0)) && sensitive.contains(product->getResult(0));
}

}  // namespace sheaf::train
