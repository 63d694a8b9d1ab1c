// Rewrites composites as elementwise ops, broadcasts and reductions, and every reduction as one of the two
// forms that kernels support: a row reduction (over the last dimension), or a sum over all dimensions but the last.
#include <cmath>
#include <numbers>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/CrossEntropy.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_DECOMPOSE
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// A row longer than this is cut where a whole tensor is reduced, so that there are rows to share among threads.
constexpr int64_t kLongRow = 16384;
// Rows shorter than this make poor vectors.
constexpr int64_t kShortRow = 32;

ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}
int64_t product(ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// The last dimension of a vector, repeated for every row of `like`.
Value alongColumns(TensorBuilder& t, Value vector, Value like) {
  SmallVector<int64_t> shape(shapeOf(like).size(), 1);
  shape.back() = shapeOf(like).back();
  return t.broadcast(t.reshape(vector, shape), shapeOf(like));
}

// A row of one element is its own reduction.
Value reduceRows(TensorBuilder& t, ReduceKind kind, Value x) {
  return shapeOf(x).back() == 1 ? x : t.reduceRows(kind, x);
}

Value meanOfRows(TensorBuilder& t, Value x) {
  Value sum = reduceRows(t, ReduceKind::sum, x);
  return t.div(sum, t.splatLike(sum, static_cast<double>(shapeOf(x).back())));
}

// --- Composites ---------------------------------------------------------------------------------------------------

struct StableExp {
  Value maximum, shifted, exponentials, sum;  // of each row
};

// Subtracting the row's maximum keeps every exponential at most 1.
StableExp stableExp(TensorBuilder& t, Value x) {
  StableExp e;
  e.maximum = reduceRows(t, ReduceKind::max, x);
  e.shifted = t.sub(x, t.broadcast(e.maximum, shapeOf(x)));
  e.exponentials = t.exp(e.shifted);
  e.sum = reduceRows(t, ReduceKind::sum, e.exponentials);
  return e;
}

Value log(TensorBuilder& t, Value x) {
  return t.make<LogOp>(x.getType(), x);
}

Value decompose(TensorBuilder& t, SoftmaxOp op) {
  StableExp e = stableExp(t, op.getOperand());
  Value scale = t.make<ReciprocalOp>(e.sum.getType(), e.sum);
  return t.mul(e.exponentials, t.broadcast(scale, shapeOf(op.getOperand())));
}

Value decompose(TensorBuilder& t, LogSoftmaxOp op) {
  StableExp e = stableExp(t, op.getOperand());
  return t.sub(e.shifted, t.broadcast(log(t, e.sum), shapeOf(op.getOperand())));
}

Value normalize(TensorBuilder& t, Value x, double epsilon) {
  Value variance = meanOfRows(t, t.mul(x, x));
  Value shifted = t.add(variance, t.splatLike(variance, epsilon));
  Value scale = t.make<RsqrtOp>(shifted.getType(), shifted);
  return t.mul(x, t.broadcast(scale, shapeOf(x)));
}

// The variance is that of the differences from the mean: a difference of moments would cancel.
Value decompose(TensorBuilder& t, LayerNormOp op) {
  Value x = op.getOperand();
  Value centred = t.sub(x, t.broadcast(meanOfRows(t, x), shapeOf(x)));
  Value normal = normalize(t, centred, op.getEpsilon().convertToDouble());
  Value y = t.mul(normal, alongColumns(t, op.getScale(), x));
  return op.getBias() ? t.add(y, alongColumns(t, op.getBias(), x)) : y;
}

Value decompose(TensorBuilder& t, RmsNormOp op) {
  Value x = op.getOperand();
  Value normal = normalize(t, x, op.getEpsilon().convertToDouble());
  return t.mul(normal, alongColumns(t, op.getScale(), x));
}

Value decompose(TensorBuilder& t, GeluOp op) {
  Value x = op.getOperand();
  if (op.getApproximate()) {
    // (1 + tanh u) / 2 = sigmoid(2u), which does not cancel for negative u.
    Value cube = t.mul(t.mul(x, x), x);
    Value u = t.mul(t.add(x, t.mul(cube, 0.044715)), 2.0 * std::sqrt(2.0 / M_PI));
    return t.mul(x, t.make<SigmoidOp>(u.getType(), u));
  }
  Value e = t.mul(x, M_SQRT1_2);
  e = t.make<ErfOp>(e.getType(), e);
  Value half = t.mul(x, 0.5);
  return t.mul(half, t.add(e, t.splatLike(e, 1.0)));
}

Value decompose(TensorBuilder& t, GeluGradOp op) {
  Value x = op.getOperand(), one = t.splatLike(x, 1), slope;
  if (op.getApproximate()) {
    // gelu(x) = x (1 + tanh u) / 2 with u = k (x + c x^3): its slope is (1 + tanh u) / 2 + x (1 - tanh^2 u) u' / 2 with
    // u' = k (1 + 3 c x^2).
    const double k = std::sqrt(2 / M_PI), c = 0.044715;
    Value square = t.mul(x, x);
    Value u = t.mul(x, t.mul(t.add(one, t.mul(square, c)), k));
    Value tanh = t.make<TanhOp>(x.getType(), u);
    Value inner = t.mul(t.add(one, t.mul(square, 3 * c)), k);
    Value rising = t.mul(t.mul(x, t.sub(one, t.mul(tanh, tanh))), inner);
    slope = t.mul(t.add(t.add(one, tanh), rising), 0.5);
  } else {
    // gelu(x) = x P(x) with the normal distribution P: its slope is P(x) + x p(x).
    Value erf = t.make<ErfOp>(x.getType(), t.mul(x, M_SQRT1_2));
    Value density = t.mul(t.exp(t.mul(t.mul(x, x), -0.5)), std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    slope = t.add(t.mul(t.add(one, erf), 0.5), t.mul(x, density));
  }
  return t.mul(op.getGradient(), slope);
}

// The label's logit is picked by a comparison with the column's index: a row reduction like the others.
std::pair<Value, Value> decompose(TensorBuilder& t, CrossEntropyOp op) {
  Value logits = op.getLogits(), labels = op.getLabels();
  StableExp e = stableExp(t, logits);
  Value logSum = log(t, e.sum);
  LogSumExp sum = logSumExp(t, e.maximum, logSum);
  auto indices = RankedTensorType::get(shapeOf(logits), TensorBuilder::typeOf(labels).getElementType());
  Value column = t.make<IotaOp>(indices, uint64_t(1));
  Value hit = t.compare(ComparePredicate::eq, column, t.broadcast(labels, shapeOf(logits)));
  Value picked = reduceRows(t, ReduceKind::sum, t.select(hit, logits, t.splatLike(logits, 0)));
  Value loss = t.add(t.sub(sum.first, picked), sum.second);
  if (auto ignored = op.getIgnoreIndex()) {
    Value skip = t.compare(ComparePredicate::eq, labels,
                           t.splatLike(labels, static_cast<double>(static_cast<int64_t>(*ignored))));
    loss = t.select(skip, t.splatLike(loss, 0), loss);
  }
  return {loss, logSum};
}

// Powers that are written with multiplications and roots; null for any other exponent.
Value decompose(TensorBuilder& t, PowOp op) {
  auto constant = op.getRhs().getDefiningOp<ConstantOp>();
  auto splat = constant ? dyn_cast<SplatElementsAttr>(constant.getValue()) : SplatElementsAttr();
  Value x = op.getLhs();
  if (!splat || !isa<FloatType>(splat.getElementType())) return {};
  double exponent = splat.getSplatValue<APFloat>().convertToDouble();
  if (exponent == 1.0) return x;
  if (exponent == 2.0) return t.mul(x, x);
  if (exponent == 3.0) return t.mul(t.mul(x, x), x);
  if (exponent == -1.0) return t.make<ReciprocalOp>(x.getType(), x);
  if (exponent == 0.5) return t.make<SqrtOp>(x.getType(), x);
  if (exponent == -0.5) return t.make<RsqrtOp>(x.getType(), x);
  return {};
}

// --- Reductions ---------------------------------------------------------------------------------------------------

// A run of neighbouring dimensions, larger than 1, that are all reduced or all kept.
struct Run {
  int64_t size;
  bool reduced;
};

SmallVector<Run> runsOf(ArrayRef<int64_t> shape, ArrayRef<int64_t> axes) {
  SmallVector<Run> runs;
  for (auto [d, size] : llvm::enumerate(shape)) {
    if (size == 1) continue;
    bool reduced = llvm::is_contained(axes, static_cast<int64_t>(d));
    if (!runs.empty() && runs.back().reduced == reduced)
      runs.back().size *= size;
    else
      runs.push_back({size, reduced});
  }
  return runs;
}

int64_t largestDivisor(int64_t n, int64_t limit) {
  for (int64_t d = limit; d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

class Reducer {
 public:
  Reducer(TensorBuilder& t, ReduceKind kind) : t(t), kind(kind) {}

  // x reduced over the runs that say so; the result has as many elements as it should, in order, and any shape.
  Value reduce(Value x, SmallVector<Run> runs) {
    while (llvm::any_of(runs, [](Run r) { return r.reduced; })) x = step(x, runs);
    return x;
  }

  // The same for the shape's own axes. The last dimension is reduced by itself first, and all others but the last at
  // once, without a reshape, so that the reduction joins the kernel of what it reduces.
  Value reduce(Value x, ArrayRef<int64_t> axes) {
    ArrayRef<int64_t> shape = shapeOf(x);
    int64_t last = static_cast<int64_t>(shape.size()) - 1;
    SmallVector<Run> runs = runsOf(shape, axes);
    if (runs.empty()) return x;
    bool lastReduced = llvm::is_contained(axes, last) && shape[last] > 1;
    bool isWhole = runs.size() == 1 && runs[0].reduced;
    if (lastReduced && (axes.size() == 1 || shape[last] >= kShortRow) && !(isWhole && shape[last] > kLongRow)) {
      x = t.reduceRows(kind, x);
      SmallVector<int64_t> rest(axes);
      llvm::erase(rest, last);
      return reduce(x, rest);
    }
    if (!lastReduced && canSumColumns(x) && runs[0].reduced && runs.size() == (shape[last] == 1 ? 1 : 2) &&
        (runs.size() == 1 || runs[1].size == shape[last]))
      return t.reduce(kind, x, llvm::to_vector(llvm::seq<int64_t>(0, last)));
    return reduce(x, std::move(runs));
  }

 private:
  bool canSumColumns(Value x) {
    return kind == ReduceKind::sum && isa<FloatType>(TensorBuilder::typeOf(x).getElementType());
  }

  Value step(Value x, SmallVector<Run>& runs) {
    SmallVector<int64_t> sizes;
    for (Run run : runs) sizes.push_back(run.size);
    if (runs.back().reduced) {
      int64_t row = runs.back().size, rows = product(sizes) / row;
      if (rows == 1 && row > kLongRow) {
        int64_t cut = largestDivisor(row, kLongRow / 4);
        if (cut >= kShortRow) {
          runs.back().size = row / cut;
          return t.reduceRows(kind, t.reshape(x, {row / cut, cut}));
        }
      }
      runs.pop_back();
      // What is left of a whole tensor is summed as a column of scalars.
      if (rows == 1 && canSumColumns(x) && shapeOf(x).size() == 2 && shapeOf(x).back() == 1)
        return t.reduce(kind, x, {0});
      return t.reduceRows(kind, t.reshape(x, {rows, row}));
    }
    if (runs.front().reduced && canSumColumns(x)) {
      int64_t rows = runs.front().size;
      runs.erase(runs.begin());
      return t.reduce(kind, t.reshape(x, {rows, product(sizes) / rows}), {0});
    }
    // The last reduced run changes places with the kept one after it.
    size_t i = runs.size() - 2;
    SmallVector<int64_t> permutation = llvm::to_vector(llvm::seq<int64_t>(0, runs.size()));
    std::swap(permutation[i], permutation[i + 1]);
    x = t.make<TransposeOp>(t.reshape(x, sizes), permutation);
    std::swap(runs[i], runs[i + 1]);
    if (i > 0 && !runs[i - 1].reduced) {
      runs[i - 1].size *= runs[i].size;
      runs.erase(runs.begin() + i);
    }
    return x;
  }

  TensorBuilder& t;
  ReduceKind kind;
};

bool isRowReduction(ReduceOp op) {
  ArrayRef<int64_t> shape = shapeOf(op.getOperand());
  return op.getAxes().size() == 1 && op.getAxes()[0] == static_cast<int64_t>(shape.size()) - 1 && shape.back() > 1 &&
         (product(shape) != shape.back() || shape.back() <= kLongRow);
}

Value decompose(TensorBuilder& t, ReduceOp op) {
  if (op.getKind() != ReduceKind::mean && isRowReduction(op)) return op.getResult();
  Value x = op.getOperand();
  ArrayRef<int64_t> axes = op.getAxes();
  ReduceKind kind = op.getKind() == ReduceKind::mean ? ReduceKind::sum : op.getKind();
  Value result = t.reshape(Reducer(t, kind).reduce(x, axes), shapeOf(op.getResult()));
  if (op.getKind() != ReduceKind::mean) return result;
  double count = 1;
  for (int64_t axis : axes) count *= static_cast<double>(shapeOf(x)[axis]);
  return t.div(result, t.splatLike(result, count));
}

// The average of a channel over all ranks whose rows the moments cover, as [C, 1].
Value average(Channels c, Value x) {
  Value sum = c.column(Reducer(c.t, ReduceKind::sum).reduce(x, c.axes()));
  if (c.op.getRanks() > 1) sum = c.t.make<GlobalSumOp>(sum.getType(), sum);
  return c.t.div(sum, c.t.splatLike(sum, c.elements()));
}

// As for layer norm, the variance is that of the differences from the mean: a second exchange between the ranks, but
// nothing cancels.
void decompose(TensorBuilder& t, BatchNormOp op) {
  Channels c{t, op};
  Type wide = elementTypeOf(op.getMean()), narrow = elementTypeOf(op.getOperand());
  Value x = t.cast(op.getOperand(), wide);
  Value mean = average(c, x), centred = t.sub(x, c.spread(mean)), variance = average(c, t.mul(centred, centred));
  Value scale = t.mul(c.column(t.cast(op.getScale(), wide)), c.inverseDeviation(variance));
  Value y = t.add(t.mul(centred, c.spread(scale)), c.spread(t.cast(op.getBias(), wide)));
  op.getResult().replaceAllUsesWith(t.cast(y, narrow));
  op.getMean().replaceAllUsesWith(t.reshape(mean, shapeOf(op.getMean())));
  op.getVariance().replaceAllUsesWith(t.reshape(variance, shapeOf(op.getVariance())));
}

struct Decompose : sheaf::train::impl::DecomposeBase<Decompose> {
  using Base::Base;

  template <typename Op>
  static bool rewrite(TensorBuilder& t, Operation* op) {
    auto typed = dyn_cast<Op>(op);
    if (!typed) return false;
    Value result = decompose(t, typed);
    if (!result || result == typed.getResult()) return false;
    typed.getResult().replaceAllUsesWith(result);
    op->erase();
    return true;
  }

  void runOnOperation() override {
    SmallVector<Operation*> ops;
    for (auto function : getOperation().getOps<func::FuncOp>())
      function.walk([&](Operation* op) { ops.push_back(op); });
    for (Operation* op : ops) {
      OpBuilder builder(op);
      TensorBuilder t{builder, op->getLoc()};
      if (auto entropy = dyn_cast<CrossEntropyOp>(op)) {
        auto [loss, logSum] = decompose(t, entropy);
        entropy.getLoss().replaceAllUsesWith(loss);
        entropy.getLogSum().replaceAllUsesWith(logSum);
        op->erase();
        continue;
      }
      // Gradients are known.
      if (auto gather = dyn_cast<GatherRowsOp>(op)) gather.getLeafMutable().clear();
      if (auto norm = dyn_cast<BatchNormOp>(op)) {
        decompose(t, norm);
        op->erase();
        continue;
      }
      (void)(rewrite<SoftmaxOp>(t, op) || rewrite<LogSoftmaxOp>(t, op) || rewrite<LayerNormOp>(t, op) ||
             rewrite<RmsNormOp>(t, op) || rewrite<GeluOp>(t, op) || rewrite<GeluGradOp>(t, op) ||
             rewrite<PowOp>(t, op) || rewrite<ReduceOp>(t, op));
    }
  }
};

}  // namespace
