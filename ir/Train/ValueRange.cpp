#include "ir/Train/ValueRange.h"

#include <cmath>
#include <optional>

#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace sheaf::train;

namespace {

// Chains longer than this are not followed.
constexpr int kDepth = 8;

// Constants with more elements than this are not looked at.
constexpr int64_t kMostElements = 1 << 16;

// Exponents beyond this overflow in f32.
constexpr double kLargestExponent = 80;

// True if `v` is a constant all of whose elements satisfy `accepts`.
bool isConstant(Value v, function_ref<bool(double)> accepts) {
  DenseElementsAttr elements;
  if (!matchPattern(v, m_Constant(&elements)) || elements.empty()) return false;
  if (!elements.isSplat() && elements.getNumElements() > kMostElements) return false;
  if (isa<FloatType>(elements.getElementType())) {
    if (elements.isSplat()) return accepts(elements.getSplatValue<APFloat>().convertToDouble());
    return llvm::all_of(elements.getValues<APFloat>(), [&](const APFloat& x) { return accepts(x.convertToDouble()); });
  }
  if (elements.isSplat()) return accepts(elements.getSplatValue<APInt>().signedRoundToDouble());
  return llvm::all_of(elements.getValues<APInt>(), [&](const APInt& x) { return accepts(x.signedRoundToDouble()); });
}

// An op whose result has only elements of its operands.
bool moves(Operation* op) {
  return isa<ReshapeOp, BroadcastOp, TransposeOp, SliceOp, ReverseOp, ConcatOp, CastOp>(op);
}

bool isSum(Operation* op) {
  auto reduce = dyn_cast<ReduceOp>(op);
  return reduce && (reduce.getKind() == ReduceKind::sum || reduce.getKind() == ReduceKind::mean);
}
bool isExtremum(Operation* op) {
  auto reduce = dyn_cast<ReduceOp>(op);
  return reduce && (reduce.getKind() == ReduceKind::max || reduce.getKind() == ReduceKind::min);
}

std::optional<double> exponentOf(PowOp op) {
  std::optional<double> exponent;
  isConstant(op.getRhs(), [&](double e) {
    bool same = !exponent || *exponent == e;
    exponent = e;
    return same;
  });
  return exponent;
}

bool isEven(double exponent) {
  return exponent > 0 && std::fmod(exponent, 2) == 0;
}

// Skips train.gather_rows: the rows of all leaves have the range of one leaf's.
Value ofOneLeaf(Value v) {
  while (Operation* op = v.getDefiningOp<GatherRowsOp>()) v = op->getOperand(0);
  return v;
}
// Skips train.global_sum, too: a term has the sign of the sum.
Value termOfOneLeaf(Value v) {
  for (v = ofOneLeaf(v); Operation* op = v.getDefiningOp<GlobalSumOp>();) v = ofOneLeaf(op->getOperand(0));
  return v;
}

Value withoutMoves(Value v) {
  while (Operation* op = v.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp, CastOp>(op)) break;
    v = op->getOperand(0);
  }
  return v;
}

bool notNegative(Value v, int depth);
bool infinite(Value v, int depth, bool leaves = true);

bool positive(Value v, int depth) {
  v = termOfOneLeaf(v);
  if (isConstant(v, [](double x) { return x > 0; })) return true;
  Operation* op = v.getDefiningOp();
  if (!op || depth == 0) return false;
  auto is = [&](int i) { return positive(op->getOperand(i), depth - 1); };
  auto all = [&] { return llvm::all_of(op->getOperands(), [&](Value x) { return positive(x, depth - 1); }); };
  if (moves(op) || isSum(op) || isExtremum(op)) return all();
  if (isa<MulOp, DivOp, MinOp, SqrtOp, RsqrtOp, ReciprocalOp, SigmoidOp>(op)) return !isa<SigmoidOp>(op) && all();
  if (isa<MaxOp>(op)) return is(0) || is(1);
  if (isa<AddOp>(op))
    return (is(0) && notNegative(op->getOperand(1), depth - 1)) || (is(1) && notNegative(op->getOperand(0), depth - 1));
  if (isa<SelectOp>(op)) return is(1) && is(2);
  if (isa<AbsOp>(op)) return is(0);
  // 2^-infinity is 0.
  if (isa<PowOp>(op)) return is(0) && !infinite(op->getOperand(1), depth - 1, false);
  return isa<CoshOp>(op);
}

bool notNegative(Value v, int depth) {
  v = termOfOneLeaf(v);
  if (isConstant(v, [](double x) { return x >= 0; })) return true;
  Operation* op = v.getDefiningOp();
  if (!op || depth == 0) return false;
  if (isa<AbsOp, ReluOp, ExpOp, SigmoidOp, SoftplusOp, SqrtOp, CoshOp, SoftmaxOp, CrossEntropyOp>(op)) return true;
  // It is -infinity at -0.
  if (isa<RsqrtOp>(op)) return positive(op->getOperand(0), depth - 1);
  auto is = [&](int i) { return notNegative(op->getOperand(i), depth - 1); };
  auto all = [&] { return llvm::all_of(op->getOperands(), [&](Value x) { return notNegative(x, depth - 1); }); };
  if (auto cast = dyn_cast<CastOp>(op))
    if (TensorBuilder::typeOf(cast.getOperand()).getElementType().isInteger(1)) return true;
  if (isa<MulOp>(op) && op->getOperand(0) == op->getOperand(1)) return true;
  if (auto pow = dyn_cast<PowOp>(op)) {
    auto exponent = exponentOf(pow);
    return (exponent && isEven(*exponent)) || is(0);
  }
  if (moves(op) || isSum(op) || isExtremum(op) || isa<AddOp, MulOp, DivOp, MinOp>(op)) return all();
  if (isa<MaxOp>(op)) return is(0) || is(1);
  if (auto select = dyn_cast<SelectOp>(op)) {
    // x where x, or x times a positive number, is above a limit of at least 0.
    auto compare = select.getCondition().getDefiningOp<CompareOp>();
    auto scaled = compare ? compare.getLhs().getDefiningOp<MulOp>() : MulOp();
    const bool same = compare && (compare.getLhs() == select.getOnTrue() ||
                                  (scaled && scaled.getLhs() == select.getOnTrue() && positive(scaled.getRhs(), 0)));
    const bool above = same && compare.getPredicate() == ComparePredicate::gt && notNegative(compare.getRhs(), 0);
    return (above || is(1)) && is(2);
  }
  return false;
}

bool notPositive(Value v, int depth) {
  v = termOfOneLeaf(v);
  if (isConstant(v, [](double x) { return x <= 0; })) return true;
  Operation* op = v.getDefiningOp();
  if (!op || depth == 0) return false;
  if (isa<NegOp>(op)) return notNegative(op->getOperand(0), depth - 1);
  auto product = [&](int i) {
    return notNegative(op->getOperand(i), depth - 1) && notPositive(op->getOperand(1 - i), depth - 1);
  };
  if (isa<MulOp>(op)) return product(0) || product(1);
  return isa<ReshapeOp, BroadcastOp, TransposeOp, SliceOp, CastOp>(op) && notPositive(op->getOperand(0), depth - 1);
}

bool boundedAbove(Value v, int depth) {
  v = ofOneLeaf(v);
  if (isConstant(v, [](double x) { return x <= kLargestExponent; })) return true;
  Operation* op = v.getDefiningOp();
  if (!op || depth == 0) return false;
  if (isa<SigmoidOp, TanhOp, SinOp, CosOp, ErfOp, SoftmaxOp, LogSoftmaxOp>(op)) return true;
  auto is = [&](int i) { return boundedAbove(op->getOperand(i), depth - 1); };
  auto negated = [&](int i) { return notNegative(op->getOperand(i), depth - 1); };
  if (notPositive(v, depth)) return true;
  if (isa<MinOp>(op)) return is(0) || is(1);
  if (moves(op) || isExtremum(op))
    return llvm::all_of(op->getOperands(), [&](Value x) { return boundedAbove(x, depth - 1); });
  if (isa<SubOp>(op)) {
    // A row's maximum, or anything larger, is subtracted from the row.
    Value whole = op->getOperand(0);
    Value subtracted = withoutMoves(op->getOperand(1));
    if (auto finite = subtracted.getDefiningOp<SelectOp>()) subtracted = withoutMoves(finite.getOnTrue());
    auto maximum = subtracted.getDefiningOp<ReduceOp>();
    if (maximum && maximum.getKind() == ReduceKind::max && withoutMoves(maximum.getOperand()) == withoutMoves(whole))
      return true;
    return is(0) && negated(1);
  }
  if (auto select = dyn_cast<SelectOp>(op)) {
    if (is(1) && is(2)) return true;
    // x, but a constant where x is above another one.
    auto compare = select.getCondition().getDefiningOp<CompareOp>();
    return compare && compare.getPredicate() == ComparePredicate::gt && compare.getLhs() == select.getOnFalse() &&
           boundedAbove(compare.getRhs(), 0) && is(1);
  }
  return false;
}

bool notZero(Value v, int depth) {
  v = ofOneLeaf(v);
  if (isConstant(v, [](double x) { return x != 0; })) return true;
  if (positive(v, depth)) return true;
  Operation* op = v.getDefiningOp();
  if (!op || depth == 0) return false;
  if (moves(op) || isa<NegOp, MulOp>(op))
    return llvm::all_of(op->getOperands(), [&](Value x) { return notZero(x, depth - 1); });
  return false;
}

// `leaves`: data and parameters count.
bool infinite(Value v, int depth, bool leaves) {
  v = termOfOneLeaf(v);
  Operation* op = v.getDefiningOp();
  if (!op || isa<ReadOp>(op)) return leaves;
  if (depth == 0) return false;
  if (isa<ConstantOp>(op))
    return TensorBuilder::typeOf(v).getNumElements() <= kMostElements &&
           !isConstant(v, [](double x) { return std::isfinite(x); });
  auto is = [&](int i) { return infinite(op->getOperand(i), depth - 1, leaves); };
  auto any = [&] { return llvm::any_of(op->getOperands(), [&](Value x) { return infinite(x, depth - 1, leaves); }); };
  if (isa<BroadcastOp>(op)) return infinite(op->getOperand(0), depth - 1, false);
  if (isa<CastOp>(op) && !isa<FloatType>(TensorBuilder::typeOf(op->getOperand(0)).getElementType())) return false;
  if (isa<LogOp, RsqrtOp>(op)) return !positive(op->getOperand(0), kDepth) || is(0);
  if (isa<ReciprocalOp>(op)) return !notZero(op->getOperand(0), kDepth);
  if (isa<DivOp>(op)) return !notZero(op->getOperand(1), kDepth) || is(0);
  if (isa<AtanhOp, Log1pOp, SinhOp, CoshOp>(op)) return true;
  if (isa<ExpOp, Expm1Op>(op)) return !boundedAbove(op->getOperand(0), kDepth);
  if (auto pow = dyn_cast<PowOp>(op)) {
    auto exponent = exponentOf(pow);
    return !exponent || (*exponent < 0 && !positive(pow.getLhs(), kDepth)) || is(0);
  }
  if (isa<SelectOp>(op)) return is(1) || is(2);
  // With a finite limit, the infinite values of functions are gone: those of log and of 1 / x that a limit is for.
  if (isa<MaxOp, MinOp>(op)) return is(0) && is(1);
  if (moves(op) || isSum(op) || isExtremum(op)) return any();
  // Every other elementwise op is taken for one that is finite of finite operands, and infinite of infinite ones. The
  // test of all ops, value_range_test, says which belong above.
  if (isa<SigmoidOp, TanhOp, AtanOp, SinOp, CosOp, ErfOp, SignOp>(op)) return false;
  return op->hasTrait<OpTrait::Elementwise>() && any();
}

bool isPower(Operation* op) {
  if (isa<MulOp>(op)) return op->getOperand(0) == op->getOperand(1);
  auto pow = dyn_cast<PowOp>(op);
  auto exponent = pow ? exponentOf(pow) : std::nullopt;
  return exponent && (isEven(*exponent) || (*exponent > 0 && pow.getLhs().getDefiningOp<AbsOp>()));
}

bool sumOfPowers(Value v, int depth) {
  v = termOfOneLeaf(v);
  Operation* op = v.getDefiningOp();
  if (!op || depth == 0) return false;
  if (isPower(op)) return true;
  auto is = [&](int i) { return sumOfPowers(op->getOperand(i), depth - 1); };
  auto isFactor = [&](int i) { return positive(op->getOperand(i), depth - 1); };
  if (isa<ReshapeOp, BroadcastOp, TransposeOp, CastOp, ReluOp, AbsOp>(op) || isSum(op)) return is(0);
  if (isa<AddOp>(op)) return is(0) && is(1);
  if (isa<DivOp>(op)) return is(0) && isFactor(1);
  if (isa<MulOp>(op)) return (is(0) && isFactor(1)) || (is(1) && isFactor(0));
  // Sums over windows.
  if (auto conv = dyn_cast<ConvOp>(op)) return isConstant(conv.getFilter(), [](double x) { return x > 0; }) && is(0);
  return false;
}

}  // namespace

bool sheaf::train::isPositive(Value v) {
  return positive(v, kDepth);
}
bool sheaf::train::isNotNegative(Value v) {
  return notNegative(v, kDepth);
}
bool sheaf::train::isNotZero(Value v) {
  return notZero(v, kDepth);
}
bool sheaf::train::isBoundedAbove(Value v) {
  return boundedAbove(v, kDepth);
}
bool sheaf::train::mayBeInfinite(Value v) {
  return infinite(v, kDepth);
}
bool sheaf::train::isSumOfPowers(Value v) {
  return sumOfPowers(v, kDepth);
}
Value sheaf::train::guardUnless(TensorBuilder& t, bool finite, Value g, Value x, Value y) {
  if (finite) return y;
  if (Operation* op = x.getDefiningOp(); op && isa<LogOp, SqrtOp, RsqrtOp>(op)) x = op->getOperand(0);
  return t.make<GuardOp>(y.getType(), g, x, y);
}
