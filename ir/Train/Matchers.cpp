#include "ir/Train/Matchers.h"

#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;

namespace sheaf::train {

RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

std::optional<double> splatValue(Value value) {
  Operation* op = value.getDefiningOp();
  while (op && isa<ReshapeOp, BroadcastOp, TransposeOp, SliceOp, CastOp>(op)) op = op->getOperand(0).getDefiningOp();
  auto constant = dyn_cast_or_null<ConstantOp>(op);
  if (!constant) return std::nullopt;
  auto splat = dyn_cast<SplatElementsAttr>(constant.getValue());
  if (!splat) return std::nullopt;
  if (isa<FloatType>(splat.getElementType())) {
    APFloat number = splat.getSplatValue<APFloat>();
    bool inexact;
    number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &inexact);
    return number.convertToDouble();
  }
  APInt number = splat.getSplatValue<APInt>();
  bool isUnsigned = splat.getElementType().isUnsignedInteger() || splat.getElementType().isInteger(1);
  return isUnsigned ? double(number.getZExtValue()) : double(number.getSExtValue());
}

bool isApproximately(double value, double expected, Type elementType) {
  double tolerance = elementType.isBF16() ? 4e-3 : elementType.isF16() ? 1e-3 : 1e-4;
  return std::abs(value - expected) <= tolerance * std::abs(expected);
}

Value skipReshapes(Value value) {
  while (auto reshape = value.getDefiningOp<ReshapeOp>()) value = reshape.getOperand();
  return value;
}

Value skipReshapesAndCasts(Value value) {
  while (Operation* op = value.getDefiningOp()) {
    auto cast = dyn_cast<CastOp>(op);
    bool betweenFloats = cast && isa<FloatType>(typeOf(cast.getOperand()).getElementType()) &&
                         isa<FloatType>(typeOf(cast).getElementType());
    if (!betweenFloats && !isa<ReshapeOp>(op)) break;
    value = op->getOperand(0);
  }
  return value;
}

std::optional<WithSplat> matchMulBySplat(Value value) {
  Operation* op = value.getDefiningOp();
  if (auto neg = dyn_cast_or_null<NegOp>(op)) return WithSplat{neg.getOperand(), -1};
  if (auto mul = dyn_cast_or_null<MulOp>(op)) {
    if (auto c = splatValue(mul.getRhs())) return WithSplat{mul.getLhs(), *c};
    if (auto c = splatValue(mul.getLhs())) return WithSplat{mul.getRhs(), *c};
  }
  if (auto div = dyn_cast_or_null<DivOp>(op))
    if (auto c = splatValue(div.getRhs()); c && *c != 0) return WithSplat{div.getLhs(), 1 / *c};
  return std::nullopt;
}

std::optional<WithSplat> matchAddOfSplat(Value value) {
  Operation* op = value.getDefiningOp();
  if (auto add = dyn_cast_or_null<AddOp>(op)) {
    if (auto c = splatValue(add.getRhs())) return WithSplat{add.getLhs(), *c};
    if (auto c = splatValue(add.getLhs())) return WithSplat{add.getRhs(), *c};
  }
  if (auto sub = dyn_cast_or_null<SubOp>(op))
    if (auto c = splatValue(sub.getRhs())) return WithSplat{sub.getLhs(), -*c};
  return std::nullopt;
}

std::optional<RowStatistic> matchRowStatistic(Value value) {
  auto broadcast = skipReshapesAndCasts(value).getDefiningOp<BroadcastOp>();
  if (!broadcast) return std::nullopt;
  auto from = typeOf(broadcast.getOperand()), to = typeOf(broadcast);
  if (from.getNumElements() == 0) return std::nullopt;
  // The repeated dimensions must be the trailing ones: only these make up a row.
  int64_t repeats = to.getNumElements() / from.getNumElements(), columns = 1;
  for (int64_t d = to.getRank() - 1; columns < repeats; columns *= to.getDimSize(d--))
    if (from.getDimSize(d) != 1) return std::nullopt;
  if (columns != repeats) return std::nullopt;
  return RowStatistic{skipReshapesAndCasts(broadcast.getOperand()), columns};
}

Value matchColumnVector(Value value, int64_t columns) {
  while (typeOf(value).getNumElements() != columns) {
    Operation* op = value.getDefiningOp();
    if (!op || !isa<ReshapeOp, BroadcastOp>(op)) return {};
    if (auto broadcast = dyn_cast<BroadcastOp>(op)) {
      // The dimensions that make up a row must not be among the repeated ones.
      auto from = typeOf(broadcast.getOperand()), to = typeOf(broadcast);
      int64_t covered = 1;
      for (int64_t d = to.getRank() - 1; d >= 0 && covered < columns; covered *= to.getDimSize(d--))
        if (from.getDimSize(d) != to.getDimSize(d)) return {};
      if (covered != columns) return {};
    }
    value = op->getOperand(0);
  }
  return skipReshapes(value);
}

Value matchRowReduction(Value value, ReduceKind kind, int64_t columns) {
  auto reduce = skipReshapesAndCasts(value).getDefiningOp<ReduceOp>();
  if (!reduce || reduce.getKind() != kind) return {};
  auto type = typeOf(reduce.getOperand());
  int64_t reduced = 1, first = type.getRank();
  for (int64_t axis : reduce.getAxes()) {
    reduced *= type.getDimSize(axis);
    first = std::min(first, axis);
  }
  // No kept dimension may follow a removed one.
  int64_t trailing = 1;
  for (int64_t size : type.getShape().drop_front(first)) trailing *= size;
  return reduced == columns && trailing == columns ? skipReshapesAndCasts(reduce.getOperand()) : Value();
}

bool dependsOnParameters(Value value) {
  SmallVector<Value> stack{value};
  llvm::DenseSet<Operation*> seen;
  while (!stack.empty()) {
    Operation* op = stack.pop_back_val().getDefiningOp();
    if (!op || !seen.insert(op).second) continue;
    if (auto read = dyn_cast<ReadOp>(op)) {
      auto parameter = SymbolTable::lookupNearestSymbolFrom<ParameterOp>(op, read.getParameterAttr());
      if (!parameter || parameter.getTrainable()) return true;
    }
    for (Value operand : op->getOperands())
      if (isa<FloatType>(typeOf(operand).getElementType())) stack.push_back(operand);
  }
  return false;
}

void visitBackwards(ModuleOp module, llvm::function_ref<void(Operation*)> visit) {
  for (auto function : module.getOps<FunctionOpInterface>()) {
    if (function.isExternal()) continue;
    SmallVector<Operation*> ops;
    for (Block& block : function.getFunctionBody())
      for (Operation& op : block) ops.push_back(&op);
    for (Operation* op : llvm::reverse(ops)) {
      if (!isOpTriviallyDead(op)) visit(op);
      if (isOpTriviallyDead(op)) op->erase();
    }
  }
}

void recordDecision(ModuleOp module, const Twine& text) {
  Builder builder(module.getContext());
  SmallVector<Attribute> decisions;
  if (auto existing = module->getAttrOfType<ArrayAttr>("train.decisions")) llvm::append_range(decisions, existing);
  decisions.push_back(builder.getStringAttr(text));
  module->setAttr("train.decisions", builder.getArrayAttr(decisions));
}

void recordLifted(ModuleOp module, int64_t count, StringRef noun, StringRef plural) {
  if (count == 0) return;
  std::string many = plural.empty() ? (noun + "s").str() : plural.str();
  recordDecision(module, "lifted " + Twine(count) + " " + (count == 1 ? noun.str() : many));
}

}  // namespace sheaf::train
