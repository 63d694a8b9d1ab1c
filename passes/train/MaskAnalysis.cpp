#include "passes/train/MaskAnalysis.h"

#include <array>
#include <cmath>

#include "ir/Train/Constant.h"
#include "ir/Train/Matchers.h"
#include "ir/Train/ValueRange.h"
#include "passes/train/PiecewiseRow.h"
#include "runtime/plan/calls/HidingMask.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// Masks are a handful of comparisons; more is some other computation.
constexpr size_t maxNodes = 32;
// Elements read and pieces computed before giving up: some seconds' work.
constexpr int64_t maxWork = int64_t(1) << 30;
// Pieces are lines of f64: larger integers are not exact.
constexpr double maxInteger = 0x1p53;

Type elementOf(Value value) {
  return typeOf(value).getElementType();
}

bool isInteger(Type element) {
  return element.isInteger() && !element.isInteger(1);
}

// Whether an integer is an element of this type and exact in f64, and so is every smaller one of its sign.
bool holdsInteger(Type element, double x) {
  if (std::fabs(x) > maxInteger) return false;
  if (auto type = dyn_cast<FloatType>(element)) return std::fabs(x) <= std::ldexp(1, type.getFPMantissaWidth());
  bool isUnsigned = element.isUnsignedInteger() || element.isInteger(1);
  double limit = std::ldexp(1, element.getIntOrFloatBitWidth() - !isUnsigned);
  return x < limit && x >= (isUnsigned ? 0 : -limit);
}

// One value of the mask's expression, evaluated for one row at a time.
struct Node {
  Operation* op;
  int64_t strides[numHeadDims];
  SmallVector<int, 3> inputs;
  std::array<bool, numHeadDims> varies;  // The dimensions that it or one of its inputs depends on.
  std::array<int64_t, 3> computed;       // The batch, head and row that `row` is of.
  std::optional<Tensor> values;          // The numbers of an iota that is not a line.
  PiecewiseRow row;
};

class RowEvaluator {
 public:
  // False if the mask is not made of constants.
  bool build(HeadLayout layout, int64_t columns) {
    width = columns;
    return add(std::move(layout)) >= 0;
  }

  bool varies(HeadDim dim) const { return nodes.back().varies[int(dim)]; }
  // Whether it took too much work, or met an integer that it cannot hold: rows are then not to be trusted.
  bool hasGivenUp() const { return work > maxWork || inexact; }

  const PiecewiseRow& evaluate(int64_t batch, int64_t head, int64_t row) {
    for (Node& node : nodes) {
      std::array<int64_t, 3> at{batch, head, row};
      for (int d = 0; d < 3; ++d) at[d] = node.varies[d] ? at[d] : 0;
      if (at == node.computed) continue;
      node.computed = at;
      node.row.clear();
      if (isa<ConstantOp, IotaOp>(node.op))
        read(node, at[0] * node.strides[0] + at[1] * node.strides[1] + at[2] * node.strides[2], node.strides[3]);
      else
        compute(node);
      work += node.row.pieces().size();
    }
    return nodes.back().row;
  }

 private:
  // Inputs are added before the node itself, so that evaluation is one pass.
  int add(HeadLayout layout) {
    layout.trace(HeadLayout::Through::anyRepeats, /*scales=*/false);
    Operation* op = layout.value().getDefiningOp();
    if (!op || nodes.size() >= maxNodes) return -1;
    Node node{op, {}, {}, {}, {-1, -1, -1}, {}, {}};
    if (auto iota = dyn_cast<IotaOp>(op)) {
      if (!locate(iota, layout, node)) return -1;
    } else if (auto constant = dyn_cast<ConstantOp>(op)) {
      auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
      if (!value || !typeOf(constant).getElementType().isIntOrFloat()) return -1;
      for (int d = 0; d < numHeadDims; ++d) {
        auto stride = layout.stride(HeadDim(d));
        if (!stride) return -1;
        node.strides[d] = value.isSplat() ? 0 : *stride;
        node.varies[d] = node.strides[d] != 0;
      }
    } else {
      if (!isa<CompareOp, AndOp, OrOp, NotOp, SelectOp, AddOp, SubOp, MulOp, NegOp, MinOp, MaxOp, CastOp>(op))
        return -1;
      for (Value operand : op->getOperands()) {
        int input = add(layout.withValue(operand));
        if (input < 0) return -1;
        node.inputs.push_back(input);
        for (int d = 0; d < numHeadDims; ++d) node.varies[d] |= nodes[input].varies[d];
      }
    }
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }

  // An iota's elements are those of a constant with one dimension.
  bool locate(IotaOp iota, const HeadLayout& layout, Node& node) {
    ArrayRef<int64_t> shape = typeOf(iota).getShape();
    int64_t inner = 1, size = shape[iota.getAxis()];
    for (int64_t other : shape.drop_front(iota.getAxis() + 1)) inner *= other;
    for (int d = 0; d < numHeadDims; ++d) {
      auto stride = layout.stride(HeadDim(d));
      if (!stride) return false;
      // One dimension of attention may be several of the value, but not some of them in part.
      bool within = *stride * layout.size(HeadDim(d)) <= inner, around = *stride % (inner * size) == 0;
      bool along = *stride % inner == 0 && *stride * layout.size(HeadDim(d)) <= inner * size;
      if (!within && !around && !along) return false;
      node.strides[d] = within || around ? 0 : *stride / inner;
      node.varies[d] = node.strides[d] != 0;
    }
    if (holdsInteger(elementOf(iota), double(size - 1))) return true;
    // If its numbers wrap around or are rounded, it is not a line.
    auto values = ConstantEvaluation(iota, {}).run();
    if (failed(values)) return false;
    node.values = values->front().storedElements();
    return true;
  }

  void read(Node& node, int64_t start, int64_t stride) {
    if (isa<IotaOp>(node.op) && !node.values)
      return node.row.append(width, double(start), width > 1 ? double(stride) : 0);
    int64_t count = stride == 0 ? 1 : width;
    Tensor read;
    if (auto constant = dyn_cast<ConstantOp>(node.op)) {
      read = readAttribute(cast<DenseElementsAttr>(constant.getValue()), start, stride, count);
      start = 0, stride = 1;
    }
    const Tensor& values = node.values ? *node.values : read;
    work += count;
    auto value = [&](int64_t k) {
      int64_t at = start + k * stride;
      return values.f.empty() ? number(values.i[at]) : values.f[at];
    };
    if (count == 1) return node.row.append(width, value(0));
    bool slopes = isInteger(values.type.getElementType());
    for (int64_t k = 0; k < count; ++k) node.row.push(value(k), slopes);
  }

  double number(int64_t value) {
    inexact |= std::fabs(double(value)) > maxInteger;
    return double(value);
  }

  // What the op makes of one element of each operand.
  double apply(Operation* op, double a, double b) {
    SmallVector<Element, 2> operands;
    for (auto [operand, x] : llvm::zip_first(op->getOperands(), std::array{a, b}))
      operands.push_back(isa<FloatType>(elementOf(operand)) ? Element{x, 0} : Element{0, int64_t(x)});
    std::optional<Element> result = evaluateElement(op, operands);
    inexact |= !result;
    if (!result) return 0;
    return isa<FloatType>(elementOf(op->getResult(0))) ? result->f : number(result->i);
  }

  void compute(Node& node) {
    auto input = [&](size_t i) { return &nodes[node.inputs[i]].row; };
    if (isa<SelectOp>(node.op)) {
      // The condition is a boolean, which has no slopes.
      zip<3>({input(0), input(1), input(2)}, [&](int64_t, int64_t end, auto& pieces) {
        const Piece& picked = *pieces[pieces[0]->value != 0 ? 1 : 2];
        node.row.append(end, picked.value, picked.slope);
      });
      return;
    }
    zip<2>({input(0), input(node.inputs.size() - 1)},
           [&](int64_t begin, int64_t end, auto& pieces) { combine(node, begin, end, *pieces[0], *pieces[1]); });
  }

  // The line that an op makes of lines of integers, where it makes one.
  static std::optional<Piece> line(Operation* op, const Piece& a, const Piece& b) {
    if (!isInteger(elementOf(op->getResult(0)))) return std::nullopt;
    if (isa<AddOp>(op)) return Piece{0, a.value + b.value, a.slope + b.slope};
    if (isa<SubOp>(op)) return Piece{0, a.value - b.value, a.slope - b.slope};
    if (isa<NegOp>(op)) return Piece{0, -a.value, -a.slope};
    if (isa<MulOp>(op) && (a.slope == 0 || b.slope == 0))
      return Piece{0, a.value * b.value, a.slope * b.value + a.value * b.slope};
    if (isa<CastOp>(op)) return a;
    return std::nullopt;
  }

  // One line with another: a line, two or three pieces where they cross, or column by column.
  void combine(Node& node, int64_t begin, int64_t end, const Piece& a, const Piece& b) {
    Operation* op = node.op;
    if (a.slope == 0 && b.slope == 0) return node.row.append(end, apply(op, a.value, b.value));
    if (auto result = line(op, a, b)) {
      // Where integers would wrap around there is no line.
      Type element = elementOf(op->getResult(0));
      bool exact = std::fabs(result->value) <= maxInteger && std::fabs(result->slope) <= maxInteger &&
                   holdsInteger(element, result->at(begin)) && holdsInteger(element, result->at(end - 1));
      if (exact) return node.row.append(end, result->value, result->slope);
    }
    if (isa<CompareOp, MinOp, MaxOp>(op) && !std::isnan(a.value) && !std::isnan(b.value)) {
      // The sign of the difference goes from one through zero to the other.
      auto sign = [&](int64_t j) {
        double d = a.at(j) - b.at(j);
        return (d > 0) - (d < 0);
      };
      int first = sign(begin);
      int64_t changes[] = {firstFrom(begin, end, [&](int64_t j) { return sign(j) != first; }), 0, end};
      changes[1] =
          changes[0] == end ? end : firstFrom(changes[0], end, [&](int64_t j) { return sign(j) != sign(changes[0]); });
      for (int64_t until : changes) {
        if (until == begin) continue;
        if (isa<CompareOp>(op)) {
          node.row.append(until, apply(op, a.at(begin), b.at(begin)));
        } else {
          const Piece& picked = sign(begin) == (isa<MinOp>(op) ? -1 : 1) ? a : b;
          node.row.append(until, picked.value, picked.slope);
        }
        begin = until;
      }
      return;
    }
    work += end - begin;
    for (int64_t j = begin; j < end; ++j) node.row.push(apply(op, a.at(j), b.at(j)), /*slopes=*/false);
  }

  int64_t width = 0, work = 0;
  bool inexact = false;
  std::vector<Node> nodes;
};

}  // namespace

MaskView classifyMask(const HeadLayout& mask, int64_t rows, int64_t columns, double factor, bool inverted) {
  constexpr MaskView other{Visibility::other};
  bool boolean = typeOf(mask.value()).getElementType().isInteger(1);
  int64_t batches = mask.size(HeadDim::batch), heads = mask.size(HeadDim::head);
  RowEvaluator evaluator;
  if (!evaluator.build(mask, columns)) return other;
  if (!evaluator.varies(HeadDim::batch)) batches = 1;
  if (!evaluator.varies(HeadDim::head)) heads = 1;

  // With fewer keys than queries a causal mask hides whole rows, and those then depend on what it adds.
  bool all = true, causal = rows <= columns;
  int64_t window = 0;     // Once a row shows it.
  int64_t unbounded = 0;  // The most keys that a row sees from the first on.
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        int64_t begin = 0, first = 0, last = 0;  // What is seen: [first, last).
        for (const Piece& piece : evaluator.evaluate(batch, head, row).pieces()) {
          // A bias that grows with the distance is not a mask.
          if (piece.slope != 0) return other;
          bool visible = boolean ? (piece.value != 0) != inverted : piece.value == 0;
          if (!visible && !boolean && !(piece.value * factor <= maskedBelow)) return other;
          if (visible) {
            causal &= last == 0 || last == begin;
            if (last == 0) first = begin;
            last = piece.end;
          }
          all &= visible;
          begin = piece.end;
        }
        causal &= last == row + columns - rows + 1;
        if (first == 0) {
          unbounded = std::max(unbounded, last);
        } else {
          causal &= window == 0 || window == last - first;
          window = last - first;
        }
        if ((!all && !causal) || evaluator.hasGivenUp()) return other;
      }
  if (all) return {Visibility::all};
  return window && unbounded > window ? other : MaskView{Visibility::causal, window};
}

Hiding hidingOf(const HeadLayout& mask, int64_t rows, int64_t columns, double factor, bool inverted) {
  const bool boolean = typeOf(mask.value()).getElementType().isInteger(1);
  if (!boolean && factor > 0 && isNotNegative(mask.value())) return Hiding::nothing;
  RowEvaluator evaluator;
  if (!evaluator.build(mask, columns)) return Hiding::rows;
  const int64_t batches = evaluator.varies(HeadDim::batch) ? mask.size(HeadDim::batch) : 1;
  const int64_t heads = evaluator.varies(HeadDim::head) ? mask.size(HeadDim::head) : 1;
  auto visible = [&](double x) { return boolean ? (x != 0) != inverted : !(x * factor <= plan::kHidingMask); };
  bool hides = false;
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        bool sees = false;
        int64_t begin = 0;
        for (const Piece& piece : evaluator.evaluate(batch, head, row).pieces()) {
          // The least and the largest number of a line are at its ends.
          const bool first = visible(piece.at(begin)), last = visible(piece.at(piece.end - 1));
          sees |= first || last;
          hides |= !first || !last;
          begin = piece.end;
        }
        if (!sees || evaluator.hasGivenUp()) return Hiding::rows;
      }
  return hides ? Hiding::keys : Hiding::nothing;
}

}  // namespace sheaf::train
