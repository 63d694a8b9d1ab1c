#include "passes/train/LossWeight.h"

#include <cmath>

#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// An addend or a lower bound of a divisor that only keeps it from being 0.
constexpr double kTiny = 1e-6;

// How a value depends on the rows of the batch. `divisor`, if any, is a scalar sum over the batch.
struct Form {
  enum Kind {
    Fixed,    // not at all
    Rows,     // every row has its own, divided by `divisor`
    Sum,      // linear in sums over rows; with a divisor that divided by it, plus anything fixed
    Inverse,  // anything fixed, divided by `divisor`
    Bounded,  // the sum `divisor`, but at least a number that keeps it from being 0
    Other
  } kind = Fixed;
  Value divisor;

  bool is(Kind k) const { return kind == k; }
  bool isUndivided(Kind k) const { return kind == k && !divisor; }
};

bool isFloat(Value v) {
  return isa<FloatType>(TensorBuilder::typeOf(v).getElementType());
}

Value skipViews(Value v) {
  while (Operation* op = v.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp, CastOp, NegOp>(op) || !isFloat(op->getOperand(0))) break;
    v = op->getOperand(0);
  }
  return v;
}

// The value of all elements, where that is one known number: a constant, or a product of a few.
std::optional<double> numberOf(Value v, int depth = 8) {
  while (Operation* op = v.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp>(op)) break;
    v = op->getOperand(0);
  }
  DenseElementsAttr elements;
  if (matchPattern(v, m_Constant(&elements)) && elements.isSplat() && isFloat(v))
    return elements.getSplatValue<APFloat>().convertToDouble();
  // A rank's share of a number.
  auto product = v.getDefiningOp<MulOp>();
  if (!product || depth == 0) return std::nullopt;
  const auto a = numberOf(product.getLhs(), depth - 1);
  if (!a) return std::nullopt;
  const auto b = numberOf(product.getRhs(), depth - 1);
  return b ? std::optional(*a * *b) : std::nullopt;
}

// Whether a sum can only be a whole number: one of integers or booleans.
bool isWhole(Value v, int depth = 8) {
  while (isFloat(v)) {
    if (auto number = numberOf(v)) return std::trunc(*number) == *number;
    Operation* op = v.getDefiningOp();
    if (!op) return false;
    if (auto select = dyn_cast<SelectOp>(op)) {
      if (depth == 0 || !isWhole(select.getOnFalse(), depth - 1)) return false;
      v = select.getOnTrue();
      continue;
    }
    auto reduce = dyn_cast<ReduceOp>(op);
    if (!isa<GlobalSumOp, ReshapeOp, BroadcastOp, SliceOp, TransposeOp, CastOp, NegOp>(op) &&
        !(reduce && reduce.getKind() == ReduceKind::sum))
      return false;
    v = op->getOperand(0);
  }
  return true;
}

class Forms {
 public:
  Forms(func::FuncOp step, function_ref<bool(Value)> isTerm) : isTerm(isTerm) {
    for (BlockArgument argument : step.getArguments())
      if (!step.getArgAttr(argument.getArgNumber(), "train.whole")) forms[argument] = {Form::Rows, {}};
    for (Operation& op : step.getBody().front()) {
      if (op.getNumOperands() == 0) continue;
      const Form form = visit(&op);
      for (Value result : op.getResults()) forms[result] = form;
    }
  }

  Form of(Value v) const { return forms.lookup(v); }

 private:
  function_ref<bool(Value)> isTerm;
  DenseMap<Value, Form> forms;

  static Form other() { return {Form::Other, {}}; }

  // `kind` divided by a sum over the batch.
  Form divided(Form::Kind kind, Value by) const {
    const Value divisor = skipViews(of(by).is(Form::Bounded) ? of(by).divisor : by);
    // The ranks may have summed copies of one number.
    auto sum = divisor.getDefiningOp<GlobalSumOp>();
    const Value one = sum ? skipViews(sum.getOperand()) : divisor;
    if (isTerm(divisor) || TensorBuilder::typeOf(one).getNumElements() != 1) return other();
    return {kind, divisor};
  }

  Form add(Value x, Value y) const {
    const Form a = of(x), b = of(y);
    if (a.is(Form::Other) || b.is(Form::Other)) return other();
    if (a.kind == b.kind && a.divisor == b.divisor) return a;
    if (!a.is(Form::Fixed) && !b.is(Form::Fixed)) return other();
    const Form form = a.is(Form::Fixed) ? b : a;
    if (form.isUndivided(Form::Rows) || (form.is(Form::Sum) && form.divisor)) return form;
    const auto number = numberOf(a.is(Form::Fixed) ? x : y);
    return form.is(Form::Sum) && number && std::abs(*number) <= kTiny ? form : other();
  }

  Form multiply(const Form& a, const Form& b) const {
    if (a.is(Form::Fixed)) return b;
    if (b.is(Form::Fixed)) return a;
    if (a.is(Form::Rows) && b.is(Form::Rows) && !(a.divisor && b.divisor)) return a.divisor ? a : b;
    for (auto [inverse, form] : {std::pair(a, b), std::pair(b, a)})
      if (inverse.is(Form::Inverse) && (form.isUndivided(Form::Rows) || form.isUndivided(Form::Sum)))
        return {form.kind, inverse.divisor};
    return other();
  }

  Form divide(Value x, Value y) const {
    const Form a = of(x), b = of(y);
    if (b.is(Form::Fixed)) return a;
    if (b.isUndivided(Form::Rows) && (a.is(Form::Fixed) || a.is(Form::Rows))) return {Form::Rows, a.divisor};
    if (!(b.isUndivided(Form::Sum) || b.is(Form::Bounded)) || a.divisor || a.is(Form::Other)) return other();
    return divided(a.is(Form::Fixed) ? Form::Inverse : a.kind, y);
  }

  Form maximum(MaxOp op) const {
    for (auto [sum, bound] : {std::pair(op.getLhs(), op.getRhs()), std::pair(op.getRhs(), op.getLhs())}) {
      const auto number = numberOf(bound);
      if (!of(sum).isUndivided(Form::Sum) || !number) continue;
      if (*number <= kTiny || (*number <= 1 && isWhole(sum))) return {Form::Bounded, sum};
    }
    return byRows(op);
  }

  // An op of every row by itself, or a sum over rows.
  Form byRows(Operation* op) const {
    bool rows = false;
    for (Value operand : op->getOperands()) {
      const Form form = of(operand);
      if (!form.is(Form::Fixed) && !form.isUndivided(Form::Rows)) return other();
      rows |= form.is(Form::Rows);
    }
    if (!rows) return {};
    if (!isTerm(op->getResult(0))) return {Form::Rows, {}};
    auto scatter = dyn_cast<ScatterOp>(op);
    return scatter && scatter.getData() ? other() : Form{Form::Sum, {}};
  }

  Form visit(Operation* op) const {
    return llvm::TypeSwitch<Operation*, Form>(op)
        .Case<AddOp, SubOp>([&](auto o) { return add(o.getLhs(), o.getRhs()); })
        .Case<MulOp>([&](MulOp o) { return multiply(of(o.getLhs()), of(o.getRhs())); })
        .Case<DivOp>([&](DivOp o) { return divide(o.getLhs(), o.getRhs()); })
        .Case<ReciprocalOp>([&](ReciprocalOp o) {
          Value x = o->getOperand(0);
          const bool sum = of(x).isUndivided(Form::Sum) || of(x).is(Form::Bounded);
          return sum ? divided(Form::Inverse, x) : byRows(op);
        })
        .Case<MaxOp>([&](MaxOp o) { return maximum(o); })
        .Case<CastOp>([&](CastOp o) { return isFloat(o.getResult()) ? of(o->getOperand(0)) : byRows(op); })
        .Case<GlobalSumOp>([&](auto o) {
          Form form = of(o->getOperand(0));
          if (form.is(Form::Rows)) form.kind = Form::Sum;
          return form;
        })
        .Case<ReshapeOp, BroadcastOp, NegOp, TransposeOp, SliceOp>([&](auto) { return of(op->getOperand(0)); })
        .Case<ReduceOp>([&](ReduceOp o) {
          if (o.getKind() != ReduceKind::sum && o.getKind() != ReduceKind::mean) return byRows(op);
          Form form = of(o.getOperand());
          if (form.is(Form::Rows) && isTerm(o.getResult())) form.kind = Form::Sum;
          return form;
        })
        .Case<SelectOp>([&](SelectOp o) {
          // Rows that do not count are 0, whatever they are divided by.
          const Form form = of(o.getOnTrue());
          const bool masks = of(o.getCondition()).isUndivided(Form::Rows) && numberOf(o.getOnFalse()) == 0.0;
          return masks && form.is(Form::Rows) ? form : byRows(op);
        })
        .Default([&](Operation*) { return byRows(op); });
  }
};

}  // namespace

void weighLoss(func::FuncOp step, int64_t ranks, RowMask& mask, function_ref<bool(Value)> isTerm) {
  const Forms forms(step, isTerm);
  for (LossOp loss : llvm::make_early_inc_range(step.getBody().front().getOps<LossOp>())) {
    const Form form = forms.of(loss.getValue());
    if (!form.is(Form::Fixed) && !form.is(Form::Sum)) continue;
    OpBuilder builder(loss);
    TensorBuilder t{builder, loss.getLoc()};
    Value weight = form.divisor ? form.divisor : mask.count();
    if (form.isUndivided(Form::Sum)) {
      const auto type = TensorBuilder::typeOf(loss.getValue());
      Value count = t.reshape(t.cast(weight, type.getElementType()), SmallVector<int64_t>(type.getRank(), 1));
      Value full = t.mul(loss.getValue(), double(mask.rows() * ranks));
      loss->setOperand(0, t.div(full, t.broadcast(count, type.getShape())));
    }
    builder.setInsertionPointAfter(loss);
    if (const int64_t copies = TensorBuilder::typeOf(weight).getNumElements(); copies > 1) {
      const int64_t zero = 0, one = 1;
      weight = t.make<SliceOp>(t.reshape(weight, {copies}), ArrayRef(zero), ArrayRef(one), ArrayRef(one));
    }
    weight = t.cast(t.reshape(weight, {}), builder.getF32Type());
    OutputOp::create(builder, loss.getLoc(), "loss_weight", "loss weight", weight);
  }
}

}  // namespace sheaf::train
