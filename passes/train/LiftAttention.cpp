#include <cmath>
#include <map>

#include "ir/Train/Matchers.h"
#include "passes/train/HeadLayout.h"
#include "passes/train/MaskAnalysis.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTATTENTION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

using enum HeadDim;

// Limit of mask and scale ops between the two products; no exporter writes so many.
constexpr int maxDepth = 8;

// Something that hides scores: added to them after multiplication by `factor`, or a condition that picks them where it
// is `visible` and else a splat of `factor`.
struct MaskTerm {
  Value value;
  double factor;
  bool visible = true;

  bool isCondition() const { return typeOf(value).getElementType().isInteger(1); }
  // True if hidden scores become one finite number: if all of a row are hidden, its weights are uniform and its scores
  // have no gradient.
  bool replacesByFinite() const { return isCondition() && std::isfinite(factor); }
  auto key() const { return std::make_tuple(value.getAsOpaquePointer(), factor, visible); }
};

// The chain from the product of queries and keys to that of weights and values.
struct Match {
  MatMulOp scores, result;
  SoftmaxOp softmax;
  double scale;
  SmallVector<MaskTerm, 1> masks;  // From the scores outwards.
  size_t clampedMasks = 0;         // So many of the first masks lie below a lower bound.
  bool dropout = false;
};

bool isMasked(std::optional<double> value, double factor) {
  return value && *value * factor <= maskedBelow;
}

// Looks from the softmax's operand, or the op before it, for the product of queries and keys.
bool matchScores(Value value, double factor, Match& match, int depth = 0) {
  value = skipReshapesAndCasts(value);
  Operation* op = value.getDefiningOp();
  if (!op || depth == maxDepth) return false;
  if (auto matmul = dyn_cast<MatMulOp>(op)) {
    match.scores = matmul;
    match.scale = factor;
    return true;
  }
  if (auto scaled = matchMulBySplat(value)) return matchScores(scaled->other, factor * scaled->splat, match, depth + 1);
  auto masked = [&](Value scores, MaskTerm term) {
    if (!matchScores(scores, factor, match, depth + 1)) return false;
    match.masks.push_back(term);
    return true;
  };
  if (auto add = dyn_cast<AddOp>(op))
    return masked(add.getLhs(), {add.getRhs(), factor}) || masked(add.getRhs(), {add.getLhs(), factor});
  if (auto sub = dyn_cast<SubOp>(op)) return masked(sub.getLhs(), {sub.getRhs(), -factor});
  if (auto select = dyn_cast<SelectOp>(op)) {
    auto onTrue = splatValue(select.getOnTrue()), onFalse = splatValue(select.getOnFalse());
    if (isMasked(onFalse, factor)) return masked(select.getOnTrue(), {select.getCondition(), *onFalse * factor, true});
    if (isMasked(onTrue, factor)) return masked(select.getOnFalse(), {select.getCondition(), *onTrue * factor, false});
  }
  // A lower bound on the scores, against overflow.
  if (auto max = dyn_cast<MaxOp>(op)) {
    auto clamped = [&](Value scores) {
      if (!matchScores(scores, factor, match, depth + 1)) return false;
      match.clampedMasks = match.masks.size();
      return true;
    };
    if (isMasked(splatValue(max.getRhs()), factor)) return clamped(max.getLhs());
    if (isMasked(splatValue(max.getLhs()), factor)) return clamped(max.getRhs());
  }
  return false;
}

// Looks from the weights' side of the second product for the softmax.
std::optional<Match> matchAttention(MatMulOp result) {
  Match match;
  match.result = result;
  if (result.getTransposeA()) return std::nullopt;
  Value weights = skipReshapesAndCasts(result.getLhs());
  if (auto dropout = weights.getDefiningOp<DropoutOp>()) {
    match.dropout = dropout.getRatio().convertToDouble() != 0;
    weights = skipReshapesAndCasts(dropout.getOperand());
  }
  // select(is_nan(p), 0, p): PyTorch's guard for rows that see nothing, which train.attention makes zero by itself.
  if (auto select = weights.getDefiningOp<SelectOp>()) {
    auto isNan = skipReshapes(select.getCondition()).getDefiningOp<IsNanOp>();
    Value guarded = skipReshapes(select.getOnFalse());
    if (!isNan || skipReshapes(isNan.getOperand()) != guarded || splatValue(select.getOnTrue()) != 0.0)
      return std::nullopt;
    weights = skipReshapesAndCasts(guarded);
  }
  match.softmax = weights.getDefiningOp<SoftmaxOp>();
  if (!match.softmax || !matchScores(match.softmax.getOperand(), 1, match)) return std::nullopt;
  return match;
}

struct Extents {
  int64_t batch, heads, rows, columns;
};

// Of products of rank 3, whose matrices are the softmax's.
std::optional<Extents> extents(Match& match) {
  auto weights = typeOf(match.result.getLhs()), scores = typeOf(match.scores);
  // Plain matrices are a softmax between two linear layers more often than attention.
  if (weights.getShape() != scores.getShape() || weights.getRank() != 3) return std::nullopt;
  Extents e{weights.getDimSize(0), 1, weights.getDimSize(1), weights.getDimSize(2)};
  if (weights.getNumElements() == 0 || typeOf(match.softmax).getShape().back() != e.columns) return std::nullopt;
  // The products know only batch x heads together; a value of rank 4 or more around them separates these. Without one
  // there is one head.
  SmallVector<Value> around{match.softmax.getResult(), match.softmax.getOperand()};
  for (Operation* product : {match.scores.getOperation(), match.result.getOperation()})
    for (Value operand : product->getOperands())
      if (auto reshape = operand.getDefiningOp<ReshapeOp>()) around.push_back(reshape.getOperand());
  for (Value value : around) {
    ArrayRef<int64_t> shape = typeOf(value).getShape();
    if (shape.size() < 4) continue;
    int64_t leading = 1;
    for (int64_t size : shape.drop_back(2)) leading *= size;
    if (leading != e.batch) continue;
    e.heads = e.batch / shape[0];
    e.batch = shape[0];
    break;
  }
  return e;
}

// A matrix operand of a product, stored [.., rows, columns] or transposed, followed to where it comes from.
std::optional<HeadLayout> operandLayout(Value value, bool transposed, const Extents& e, int64_t rows,
                                        HeadLayout::Through through, bool scales) {
  auto type = typeOf(value);
  int64_t columns = type.getDimSize(type.getRank() - (transposed ? 2 : 1));
  SmallVector<std::pair<HeadDim, int64_t>> order{{batch, e.batch}, {head, e.heads}, {row, rows}, {column, columns}};
  if (transposed) std::swap(order[2], order[3]);
  auto layout = HeadLayout::of(value, order);
  if (layout) layout->trace(through, scales);
  return layout;
}

// Replaces values that the graph itself transposes into the order of the attention's result, [B, S, H, E], by reshapes
// of it.
void replaceReordered(OpBuilder& builder, Value attention, const HeadLayout& old) {
  TensorBuilder b{builder, attention.getLoc()};
  if (old.isOrdered({batch, row, head, column})) {
    Value same = b.reshape(attention, typeOf(old.value()).getShape());
    old.value().replaceAllUsesWith(same);
    return;
  }
  for (OpOperand& use : llvm::make_early_inc_range(old.value().getUses())) {
    Operation* user = use.getOwner();
    auto next = isa<ReshapeOp, TransposeOp>(user) ? old.forward(user) : std::nullopt;
    if (!next) continue;
    replaceReordered(builder, attention, *next);
    if (isOpTriviallyDead(user)) user->erase();
  }
}

// Replaces the product's result, [B*H, S, E], by the attention's, [B, S, H, E]: where the graph itself transposes back
// by a reshape, elsewhere by a transpose.
void replaceResult(OpBuilder& builder, Value attention, const HeadLayout& old) {
  replaceReordered(builder, attention, old);
  if (old.value().use_empty()) return;
  TensorBuilder b{builder, attention.getLoc()};
  Value transposed = b.make<TransposeOp>(attention, ArrayRef<int64_t>{0, 2, 1, 3});
  old.value().replaceAllUsesWith(b.reshape(transposed, typeOf(old.value()).getShape()));
}

struct LiftAttention : sheaf::train::impl::LiftAttentionBase<LiftAttention> {
  using Base::Base;

  // A mask term for one shape of scores.
  struct Mask {
    std::optional<HeadLayout> layout;  // Nothing if it cannot be lifted.
    MaskView view{Visibility::other};
    Hiding hiding = Hiding::rows;
    Value operand;  // Once it is built.
  };
  struct AnalysedMask {
    const MaskTerm* term;
    Mask* mask;
  };
  std::map<std::tuple<void*, double, bool, void*>, Mask> masks;
  std::map<void*, bool> trained;
  int64_t causalCount = 0, windowCount = 0, maskedCount = 0, plainCount = 0, trainedMasks = 0, dropouts = 0,
          inexpressibleMasks = 0;

  // The additive mask as an operand [b, h, S, T], built where its value is, so that all layers can share it.
  Value operandOf(const MaskTerm& term, Mask& cached, const Extents& e, Type element) {
    if (cached.operand) return cached.operand;
    const HeadLayout& layout = *cached.layout;
    OpBuilder builder(&getContext());
    builder.setInsertionPointAfterValue(layout.value());
    TensorBuilder b{builder, layout.value().getLoc()};
    Value mask = layout.materialize(b, {batch, head, row, column});
    SmallVector<int64_t> shape(typeOf(mask).getShape());
    if (typeOf(mask).getElementType().isInteger(1)) {
      Value zero = b.splat(RankedTensorType::get(shape, element), 0), replacement = b.splatLike(zero, term.factor);
      mask = term.visible ? b.select(mask, zero, replacement) : b.select(mask, replacement, zero);
    } else {
      mask = b.cast(mask, element);
      double factor = term.factor * layout.scale();
      if (factor != 1) mask = b.mul(mask, factor);
    }
    shape[2] = e.rows;
    shape[3] = e.columns;
    return cached.operand = b.broadcast(mask, shape);
  }

  // Returns the sum of masks.
  static Value sum(TensorBuilder& b, ArrayRef<Value> operands) {
    Value mask;
    for (Value operand : operands) {
      SmallVector<int64_t> shape(typeOf(operand).getShape());
      if (mask)
        for (auto [size, other] : llvm::zip(shape, typeOf(mask).getShape())) size = std::max(size, other);
      mask = mask ? b.add(b.broadcast(mask, shape), b.broadcast(operand, shape)) : operand;
    }
    return mask;
  }

  // Returns 1 for keys that all conditions let through, else 0: [b, h, S or 1, T or 1].
  static Value seenByAll(TensorBuilder& b, ArrayRef<AnalysedMask> masks, Type element) {
    Value seen;
    for (auto [term, mask] : masks) {
      if (!term->replacesByFinite() || mask->hiding == Hiding::nothing) continue;
      Value condition = mask->layout->materialize(b, {batch, head, row, column});
      Value one = b.splat(RankedTensorType::get(typeOf(condition).getShape(), element), 1), zero = b.splatLike(one, 0);
      Value part = term->visible ? b.select(condition, one, zero) : b.select(condition, zero, one);
      SmallVector<int64_t> shape(typeOf(part).getShape());
      if (seen)
        for (auto [size, other] : llvm::zip(shape, typeOf(seen).getShape())) size = std::max(size, other);
      seen = seen ? b.mul(b.broadcast(seen, shape), b.broadcast(part, shape)) : part;
    }
    return seen;
  }

  // Returns the query with zeros in rows that see no key: their scores are then the mask's one number, so that the
  // weights are uniform, and query and key get no gradient from them.
  static Value zeroBlindRows(TensorBuilder& b, Value query, Value seen) {
    if (typeOf(seen).getShape().back() != 1) seen = b.reduceRows(ReduceKind::max, seen);
    ArrayRef<int64_t> shape = typeOf(seen).getShape();
    if (shape[1] == 1 || shape[2] == 1)
      seen = b.reshape(seen, {shape[0], shape[2], shape[1], 1});
    else
      seen = b.make<TransposeOp>(seen, ArrayRef<int64_t>{0, 2, 1, 3});
    Value sees = b.compare(ComparePredicate::gt, seen, b.splatLike(seen, 0));
    return b.select(b.broadcast(sees, typeOf(query).getShape()), query, b.splatLike(query, 0));
  }

  // True if a row may see no key. Causal masks together leave each query its own key.
  static bool mayHideRows(ArrayRef<AnalysedMask> masks) {
    int64_t hiding = 0, causal = 0;
    for (auto [term, mask] : masks) {
      if (mask->hiding == Hiding::rows) return true;
      hiding += mask->hiding == Hiding::keys;
      causal += mask->view.visibility == Visibility::causal;
    }
    return hiding > 1 && causal < hiding;
  }

  // True if one mask operand gives such rows the weights and the gradients that the graph gives them: if all that hides
  // is added, or replaces scores by the same number last.
  static bool keepsBlindRows(ArrayRef<AnalysedMask> masks, size_t clampedMasks) {
    std::optional<double> replacement;
    int64_t replacing = 0, adding = 0;
    bool hides = false;  // a mask that is clamped
    for (auto [i, pair] : llvm::enumerate(masks)) {
      auto [term, mask] = pair;
      if (mask->hiding == Hiding::nothing) {
        if (replacing && mask->view.visibility != Visibility::all) return false;
        continue;
      }
      hides |= i < clampedMasks;
      if (!term->replacesByFinite()) {
        ++adding;
        continue;
      }
      if (replacing++ && replacement != term->factor) return false;
      replacement = term->factor;
    }
    return !(replacing && adding) && !(hides && (adding || replacing > 1));
  }

  Mask& analyse(const MaskTerm& term, const Extents& e, RankedTensorType scores) {
    auto key = std::tuple_cat(term.key(), std::make_tuple(const_cast<void*>(scores.getAsOpaquePointer())));
    auto [entry, isNew] = masks.try_emplace(key);
    Mask& mask = entry->second;
    if (!isNew) return mask;
    auto layout = HeadLayout::of(term.value, {{batch, e.batch}, {head, e.heads}, {row, e.rows}, {column, e.columns}});
    if (!layout) return mask;
    const bool boolean = term.isCondition();
    layout->trace(HeadLayout::Through::anyRepeats, /*scales=*/!boolean);
    const double factor = boolean ? 1 : term.factor * layout->scale();
    mask.view = classifyMask(*layout, e.rows, e.columns, factor, /*inverted=*/!term.visible);
    mask.hiding = mask.view.visibility == Visibility::all      ? Hiding::nothing
                  : mask.view.visibility == Visibility::causal ? Hiding::keys
                                                               : hidingOf(*layout, e.rows, e.columns, factor,
                                                                          /*inverted=*/!term.visible);
    mask.layout = std::move(layout);
    return mask;
  }

  bool isTrained(Value value) {
    auto [entry, isNew] = trained.try_emplace(value.getAsOpaquePointer(), false);
    if (isNew) entry->second = dependsOnParameters(value);
    return entry->second;
  }

  void lift(MatMulOp op) {
    auto match = matchAttention(op);
    if (!match) return;
    auto e = extents(*match);
    if (!e) return;
    // The gradients of these would be lost.
    if (match->dropout) return void(++dropouts);
    for (const MaskTerm& term : match->masks)
      if (isTrained(term.value)) return void(++trainedMasks);

    auto layouts = [&](HeadLayout::Through through) {
      MatMulOp scores = match->scores;
      return std::array{
          operandLayout(scores.getLhs(), scores.getTransposeA(), *e, e->rows, HeadLayout::Through::nothing, true),
          operandLayout(scores.getRhs(), !scores.getTransposeB(), *e, e->columns, through, true),
          operandLayout(op.getRhs(), op.getTransposeB(), *e, e->columns, through, false)};
    };
    auto [query, key, value] = layouts(HeadLayout::Through::repeatedHeads);
    if (query && key && value && key->size(head) != value->size(head))
      std::tie(query, key, value) = std::tuple_cat(layouts(HeadLayout::Through::nothing));
    auto old = HeadLayout::of(
        op, {{batch, e->batch}, {head, e->heads}, {row, e->rows}, {column, typeOf(op.getResult()).getShape().back()}});
    if (!query || !key || !value || !old) return;

    bool causal = false;
    int64_t window = 0;
    const Type scoreType = typeOf(match->scores).getElementType();
    SmallVector<AnalysedMask> parts;
    for (const MaskTerm& term : match->masks) {
      Mask& mask = analyse(term, *e, RankedTensorType::get({e->batch, e->heads, e->rows, e->columns}, scoreType));
      if (!mask.layout) return;
      parts.push_back({&term, &mask});
    }
    // Such rows compute numbers that depend on how their keys are hidden, which the attribute `causal` cannot express.
    const bool mayHideRow = mayHideRows(parts);
    if (mayHideRow && !keepsBlindRows(parts, match->clampedMasks)) return void(++inexpressibleMasks);
    std::optional<double> replacement;  // The number that replaces hidden scores.
    SmallVector<Value> operands;
    for (auto [term, mask] : parts) {
      if (mask->view.visibility == Visibility::all) continue;
      const bool absent = term->isCondition() && !term->replacesByFinite();  // Hidden keys have no weight in any row.
      if (mask->view.visibility == Visibility::causal && (!mayHideRow || absent)) {
        causal = true;
        if (mask->view.window) window = window ? std::min(window, mask->view.window) : mask->view.window;
      } else if (mayHideRow && term->replacesByFinite() && mask->hiding != Hiding::nothing) {
        replacement = term->factor;
      } else {
        operands.push_back(operandOf(*term, *mask, *e, scoreType));
      }
    }

    OpBuilder builder(op);
    TensorBuilder b{builder, op.getLoc()};
    Type element = typeOf(op.getResult()).getElementType();
    auto materialize = [&](const HeadLayout& layout) {
      return b.cast(layout.materialize(b, {batch, row, head, column}), element);
    };
    Value q = materialize(*query), k = materialize(*key), v = materialize(*value), mask = sum(b, operands);
    if (replacement) {
      Value seen = seenByAll(b, parts, scoreType);
      q = zeroBlindRows(b, q, seen);
      SmallVector<int64_t> shape(typeOf(seen).getShape());
      shape[2] = e->rows, shape[3] = e->columns;
      if (mask)
        for (auto [size, other] : llvm::zip(shape, typeOf(mask).getShape())) size = std::max(size, other);
      Value visible = b.compare(ComparePredicate::gt, seen, b.splatLike(seen, 0));
      Value bias = mask ? b.broadcast(mask, shape) : b.splat(RankedTensorType::get(shape, scoreType), 0);
      mask = b.select(b.broadcast(visible, shape), bias, b.splatLike(bias, *replacement));
    }
    double scale = match->scale * query->scale() * key->scale();
    // Factors of f32 on queries and keys multiply to the usual scale but for their rounding.
    double usual = 1 / std::sqrt(double(typeOf(q).getShape().back()));
    if (std::abs(scale - usual) < 1e-6 * usual) scale = usual;
    auto attention = AttentionOp::create(builder, op.getLoc(), q, k, v, mask, builder.getF64FloatAttr(scale),
                                         causal ? builder.getUnitAttr() : UnitAttr(),
                                         window ? builder.getI64IntegerAttr(window) : IntegerAttr());
    replaceResult(builder, attention.getResult(), *old);
    ++(mask ? maskedCount : window ? windowCount : causal ? causalCount : plainCount);
  }

  void runOnOperation() override {
    // A backward pass that came with the model reads what attention would not materialise.
    if (getOperation()->hasAttr("train.gradients_given")) return;
    visitBackwards(getOperation(), [&](Operation* op) {
      if (auto matmul = dyn_cast<MatMulOp>(op)) lift(matmul);
    });
    // Ops left over from replacing the result come after the products.
    visitBackwards(getOperation(), [](Operation*) {});
    recordLifted(getOperation(), causalCount, "causal attention");
    recordLifted(getOperation(), windowCount, "causal attention over a window", "causal attentions over windows");
    recordLifted(getOperation(), maskedCount, "attention with a mask", "attentions with masks");
    recordLifted(getOperation(), plainCount, "attention without a mask", "attentions without masks");
    auto left = [&](int64_t count, StringRef why) {
      if (count) recordDecision(getOperation(), "left " + Twine(count) + " attention(s) as written: " + why);
    };
    left(dropouts, "their weights are dropped out");
    left(trainedMasks, "what is added to their scores is trained");
    left(inexpressibleMasks, "its masks may hide all keys of a query in a way that one mask operand cannot express");
    masks.clear();
    trained.clear();
    causalCount = windowCount = maskedCount = plainCount = trainedMasks = dropouts = inexpressibleMasks = 0;
  }
};

}  // namespace
