#include "passes/train/OpPair.h"

#include <algorithm>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/OpAxes.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/SmallSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// Sizes that dimensions get in turn, so that an exchange of two is seen.
constexpr int64_t kSizes[] = {3, 5, 2, 7};
// A dimension of fewer elements of a leaf stays.
constexpr int64_t kFewElements = 2;
constexpr int64_t kFewOutputs = 3;

// A dimension of an operand or, after the operands, of a result.
struct Slot {
  int64_t value, dimension;
};

class Shrink {
 public:
  Shrink(const OpPair& pair, int64_t leaves) : op(pair.batch), leaves(leaves), now(shapesOf(pair)), next(now) {}

  PairShapes run() {
    for (const auto* shapes : {&now.operands, &now.results})
      for (const auto& shape : *shapes)
        if (llvm::is_contained(shape, 0)) return now;
    if (isa<ReshapeOp>(op)) {
      reshape();
    } else if (hasLeavesInFront(op)) {
      auto sums = cast<ReduceOp>(op);
      for (int64_t d = 0; d < rankOf(0); ++d)
        shrink({{0, d}, {count(), llvm::is_contained(sums.getAxes(), d) ? -1 : d + 1}});
    } else {
      for (const OpAxis& axis : axesOf(op, [](Value v) { return TensorBuilder::typeOf(v).getShape(); })) {
        SmallVector<Slot> slots;
        for (auto [i, d] : llvm::enumerate(axis.operands)) slots.push_back({int64_t(i), d});
        for (auto [i, d] : llvm::enumerate(axis.results)) slots.push_back({count() + int64_t(i), d});
        shrink(slots);
      }
      others();
    }
    return next;
  }

 private:
  Operation* op;
  const int64_t leaves;
  const PairShapes now;
  PairShapes next;
  size_t taken = 0;  // sizes
  llvm::SmallSet<std::pair<int64_t, int64_t>, 16> done;

  int64_t count() const { return int64_t(now.operands.size()); }
  int64_t sizeOf(Slot s) const {
    return s.value < count() ? now.operands[s.value][s.dimension] : now.results[s.value - count()][s.dimension];
  }
  int64_t rankOf(int64_t value) const {
    return int64_t(value < count() ? now.operands[value].size() : now.results[value - count()].size());
  }
  const Claim& claimOf(int64_t value) const {
    return value < count() ? now.operandClaims[value] : now.resultClaims[value - count()];
  }
  Claim& nextClaim(int64_t value) {
    return value < count() ? next.operandClaims[value] : next.resultClaims[value - count()];
  }
  bool isSplit(Slot s) const {
    const Claim& claim = claimOf(s.value);
    return claim.kind == Claim::Split && claim.place.dimension == s.dimension;
  }
  void set(Slot s, int64_t size) {
    (s.value < count() ? next.operands[s.value] : next.results[s.value - count()])[s.dimension] = size;
  }
  int64_t take(int64_t atMost) { return std::min(atMost, kSizes[taken++ % std::size(kSizes)]); }

  // Dimensions that are one axis: all of the same size, or of multiples of it.
  void shrink(ArrayRef<Slot> all) {
    SmallVector<Slot> slots;
    for (Slot s : all)
      if (s.dimension >= 0) slots.push_back(s);
    if (slots.empty()) return;
    for (Slot s : slots)
      if (!done.insert({s.value, s.dimension}).second) return;
    int64_t least = sizeOf(slots.front());
    for (Slot s : slots) least = std::min(least, sizeOf(s));
    std::optional<int64_t> outer, run;  // those of the smallest
    for (Slot s : slots) {
      if (sizeOf(s) % least) return;
      if (!isSplit(s)) continue;
      const int64_t own = claimOf(s.value).place.run, times = sizeOf(s) / least;
      if (own % times || sizeOf(s) % (own * leaves)) return;
      if (run && *run != own / times) return;
      run = own / times, outer = sizeOf(s) / (own * leaves);
    }
    const int64_t newRun = run ? std::min(*run, kFewElements) : 1;
    const int64_t size = run ? std::min<int64_t>(*outer, 2) * leaves * newRun : take(least);
    for (Slot s : slots) {
      const int64_t times = std::min<int64_t>(sizeOf(s) / least, 4);
      set(s, size * times);
      if (isSplit(s)) nextClaim(s.value).place.run = newRun * times;
    }
  }

  // A dimension of every value that has it, at the same place.
  void alike(int64_t d) {
    SmallVector<Slot> slots;
    for (int64_t v = 0; v < count() + int64_t(now.results.size()); ++v)
      if (d < rankOf(v)) slots.push_back({v, d});
    shrink(slots);
  }

  // Dimensions that are not an axis, where no attribute measures them.
  void others() {
    const int64_t result = count();
    auto last = [&](int64_t v) { return Slot{v, rankOf(v) - 1}; };
    llvm::TypeSwitch<Operation*>(op)
        .Case<SoftmaxOp, LogSoftmaxOp, LayerNormOp, RmsNormOp>([&](auto) {
          SmallVector<Slot> slots;
          for (int64_t v = 0; v <= count(); ++v) slots.push_back(last(v));
          shrink(slots);
        })
        .Case([&](ReduceOp o) {
          for (int64_t d : o.getAxes()) shrink({{0, d}});
        })
        .Case([&](ReverseOp o) {
          for (int64_t d : o.getAxes()) alike(d);
        })
        .Case([&](CumSumOp o) { alike(int64_t(o.getAxis())); })
        .Case([&](GatherOp o) {
          shrink({{0, int64_t(o.getAxis())}});
        })
        .Case([&](GatherElementsOp o) {
          shrink({{0, int64_t(o.getAxis())}});
        })
        .Case([&](ScatterAddOp o) {
          shrink({{result, int64_t(o.getAxis())}});
        })
        .Case([&](ScatterOp o) {
          const int64_t axis = o.getAxis();
          shrink({{result, axis}, {2, o.getData() ? axis : -1}});
          shrink({{0, axis}, {1, axis}});
        })
        .Case([&](CrossEntropyOp) {
          shrink({{0, 1}});
        })
        .Case<DropoutOp, RandomUniformOp>([&](auto) {
          for (int64_t d = 0; d < rankOf(result); ++d) alike(d);
        })
        .Case([&](BatchNormOp o) {
          const int64_t channels = o.getChannelsLast() ? rankOf(0) - 1 : 1;
          shrink({{0, channels}, {1, 0}, {2, 0}, {result, channels}, {result + 1, 0}, {result + 2, 0}});
          for (int64_t d = 0; d < rankOf(0); ++d)
            if (d != channels) shrink({{0, d}, {result, d}});
        })
        .Case([&](ConcatOp o) { concat(int64_t(o.getAxis())); })
        .Case([&](AttentionOp o) { attention(bool(o.getMask()), o.getCausal(), true); })
        .Case([&](AttentionGradOp o) { attention(bool(o.getMask()), o.getCausal(), false); })
        .Case([&](ConvOp o) {
          convolution(o, {0, 1, result});
        })
        .Case([&](ConvGradInputOp o) {
          convolution(o, {result, 1, 0});
        })
        .Case([&](ConvGradFilterOp o) {
          convolution(o, {0, result, 1});
        })
        .Case<MaxPoolOp, MaxPoolIndicesOp>([&](auto o) {
          pooling(o, {{0}, {result}});
        })
        .Case([&](MaxPoolGradOp o) {
          pooling(o, {{0, result}, {1}});
        });
  }

  // Each operand has a length of its own along the axis.
  void concat(int64_t axis) {
    int64_t sum = 0;
    std::optional<int64_t> run;
    SmallVector<int64_t> sizes;
    const bool split = isSplit({0, axis});
    for (int64_t v = 0; v < count(); ++v) {
      const int64_t n = sizeOf({v, axis});
      if (isSplit({v, axis}) != split) return;
      if (!split) {
        sizes.push_back(take(n));
      } else {
        const int64_t own = claimOf(v).place.run;
        if ((run && *run != own) || n % (own * leaves)) return;
        run = own;
        sizes.push_back(std::min<int64_t>(n / (own * leaves), 2) * leaves * std::min(own, kFewElements));
      }
      sum += sizes.back();
    }
    const Slot result{count(), axis};
    if (isSplit(result) != split || (split && claimOf(count()).place.run != *run)) return;
    for (int64_t v = 0; v < count(); ++v) {
      set({v, axis}, sizes[size_t(v)]);
      if (split) nextClaim(v).place.run = std::min(*run, kFewElements);
    }
    set(result, sum);
    if (split) nextClaim(count()).place.run = std::min(*run, kFewElements);
  }

  // query [B, S, H, D], key [B, T, G, D], value [B, T, G, E], mask [., ., S, T], log-sum-exp [B, H, S]. A gradient also
  // has the result and its gradient, and no `forward`.
  void attention(bool masked, bool causal, bool forward) {
    const int64_t mask = masked ? count() - 1 : -1, result = forward ? count() : 3;
    SmallVector<int64_t> queries{0}, keys{1}, values{2}, results{result};
    const int64_t sums = forward ? count() + 1 : 4;
    if (!forward) {
      results.push_back(5);
      queries.push_back(count()), keys.push_back(count() + 1), values.push_back(count() + 2);
    }
    SmallVector<Slot> batch, s, t, h, d, e;
    auto add = [](SmallVector<Slot>& slots, ArrayRef<int64_t> of, int64_t dimension) {
      for (int64_t v : of) slots.push_back({v, dimension});
    };
    for (const auto* of : {&queries, &keys, &values, &results}) add(batch, *of, 0);
    batch.push_back({sums, 0});
    if (masked && sizeOf({mask, 0}) > 1) batch.push_back({mask, 0});
    add(s, queries, 1), add(s, results, 1), s.push_back({sums, 2});
    add(t, keys, 1), add(t, values, 1);
    add(h, queries, 2), add(h, results, 2), h.push_back({sums, 1});
    add(h, keys, 2), add(h, values, 2);
    add(d, queries, 3), add(d, keys, 3), add(e, values, 3), add(e, results, 3);
    if (masked) {
      s.push_back({mask, 2}), t.push_back({mask, 3});
      if (sizeOf({mask, 1}) > 1) h.push_back({mask, 1});
    }
    shrink(batch), shrink(h), shrink(d), shrink(e);
    if (causal && sizeOf(s.front()) == sizeOf(t.front())) s.append(t), t.clear();
    shrink(s), shrink(t);
  }

  // Images lose as many steps of the window as leave a few.
  void window(ArrayRef<int64_t> inputs, ArrayRef<int64_t> outputs, ArrayRef<int64_t> strides, bool channelsLast) {
    for (int64_t axis = 0; axis < 2; ++axis) {
      const int64_t d = (channelsLast ? 1 : 2) + axis, stride = strides[axis];
      const int64_t in = sizeOf({inputs.front(), d}), out = sizeOf({outputs.front(), d});
      if (llvm::any_of(inputs,
                       [&](int64_t v) {
                         return isSplit({v, d});
                       }) ||
          llvm::any_of(outputs, [&](int64_t v) {
            return isSplit({v, d});
          }))
        continue;
      const int64_t steps = std::max<int64_t>(0, std::min(out - kFewOutputs, (in - 1) / stride));
      for (int64_t v : inputs) set({v, d}, in - steps * stride);
      for (int64_t v : outputs) set({v, d}, out - steps);
    }
  }

  struct Convolution {
    int64_t input, filter, result;
  };
  template <typename Op>
  void convolution(Op o, Convolution c) {
    const int64_t channels = o.getChannelsLast() ? 3 : 1;
    shrink({{c.input, 0}, {c.result, 0}});
    if (o.getGroups() == 1) {
      shrink({{c.input, channels}, {c.filter, 1}});
      shrink({{c.filter, 0}, {c.result, channels}});
    }
    // The window must still fit: what is left of the input is at least one step.
    window({c.input}, {c.result}, o.getStrides(), o.getChannelsLast());
  }

  struct Pooling {
    SmallVector<int64_t> inputs, outputs;
  };
  template <typename Op>
  void pooling(Op o, Pooling p) {
    const int64_t channels = o.getChannelsLast() ? 3 : 1;
    for (int64_t d : {int64_t(0), channels}) alike(d);
    window(p.inputs, p.outputs, o.getStrides(), o.getChannelsLast());
  }

  // A factor of a dimension, from the outside in.
  struct Factor {
    int64_t size;
    enum Part { Plain, Outer, Leaves, Run } part;
    int64_t dimension;
  };
  SmallVector<Factor> factorsOf(ArrayRef<int64_t> shape, const Claim& claim) const {
    SmallVector<Factor> factors;
    for (auto [d, n] : llvm::enumerate(shape)) {
      const bool split = claim.kind == Claim::Split && claim.place.dimension == int64_t(d);
      if (!split) {
        factors.push_back({n, Factor::Plain, int64_t(d)});
        continue;
      }
      const int64_t run = claim.place.run;
      factors.push_back({n / (run * leaves), Factor::Outer, int64_t(d)});
      factors.push_back({leaves, Factor::Leaves, int64_t(d)});
      factors.push_back({run, Factor::Run, int64_t(d)});
    }
    return factors;
  }

  // Both shapes are products of the same factors in the same order, where their boundaries nest. These shrink.
  void reshape() {
    SmallVector<Factor> from = factorsOf(now.operands[0], now.operandClaims[0]);
    SmallVector<Factor> to = factorsOf(now.results[0], now.resultClaims[0]);
    SmallVector<int64_t> small[2], runs{1, 1};
    small[0].assign(now.operands[0].size(), 1), small[1].assign(now.results[0].size(), 1);
    size_t i = 0, j = 0;
    int64_t a = 1, b = 1;
    while (true) {
      while (a == 1 && i < from.size()) a = from[i++].size;
      while (b == 1 && j < to.size()) b = to[j++].size;
      if (a == 1 && b == 1) break;
      const int64_t atom = std::min(a, b);
      if (std::max(a, b) % atom) return;
      if (atom == 1) return;
      const Factor *source = &from[i - 1], *target = &to[j - 1];
      const bool ofLeaves = source->part == Factor::Leaves || target->part == Factor::Leaves;
      const int64_t size = ofLeaves ? atom : take(atom);
      small[0][size_t(source->dimension)] *= size, small[1][size_t(target->dimension)] *= size;
      if (source->part == Factor::Run) runs[0] *= size;
      if (target->part == Factor::Run) runs[1] *= size;
      a /= atom, b /= atom;
    }
    next.operands[0] = small[0], next.results[0] = small[1];
    next.operandClaims[0].place.run = runs[0], next.resultClaims[0].place.run = runs[1];
  }
};

}  // namespace

PairShapes shapesOf(const OpPair& pair) {
  PairShapes shapes{{}, {}, pair.operands, pair.results};
  auto add = [](auto& all, ValueRange values) {
    for (Value v : values) all.emplace_back(TensorBuilder::typeOf(v).getShape());
  };
  add(shapes.operands, pair.batch->getOperands());
  add(shapes.results, pair.batch->getResults());
  return shapes;
}

bool hasLeavesInFront(Operation* batch) {
  auto sums = dyn_cast<ReduceOp>(batch);
  return sums && sums.getLeaves() > 1;
}

std::optional<SmallVector<int64_t>> leafShape(ArrayRef<int64_t> batch, const Claim& claim, int64_t leaves) {
  SmallVector<int64_t> shape(batch);
  if (claim.kind != Claim::Split) return shape;
  const auto [dimension, run] = claim.place;
  if (dimension < 0 || dimension >= int64_t(shape.size()) || run < 1 || shape[size_t(dimension)] % (run * leaves))
    return std::nullopt;
  shape[size_t(dimension)] /= leaves;
  return shape;
}

PairShapes smallerShapes(const OpPair& pair, int64_t leaves) {
  return Shrink(pair, leaves).run();
}

std::string describe(const Claim& claim) {
  if (claim.kind == Claim::Whole) return "all of it";
  if (claim.kind == Claim::Partial) return "a term of it";
  return "its part along dimension " + std::to_string(claim.place.dimension) + ", in runs of " +
         std::to_string(claim.place.run);
}

}  // namespace sheaf::train
