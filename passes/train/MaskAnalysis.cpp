#include "passes/train/MaskAnalysis.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "ir/Train/Compare.h"
#include "passes/train/Matchers.h"
#include "passes/train/PiecewiseRow.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// Masks are a handful of comparisons; more is some other computation.
constexpr size_t maxNodes = 32;
// Elements read and pieces computed before giving up: some seconds' work.
constexpr int64_t maxWork = int64_t(1) << 30;

double fromHalf(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                     : exponent == 31 ? (fraction ? NAN : INFINITY)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

double fromBFloat(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

template <typename T>
T load(const char* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

// One value of the mask's expression, evaluated for one row at a time.
struct Node {
  Operation* op;
  int64_t strides[numHeadDims];
  SmallVector<int, 3> inputs;
  std::array<bool, numHeadDims> varies;  // The dimensions that it or one of its inputs depends on.
  std::array<int64_t, 3> computed;       // The batch, head and row that `row` is of.
  PiecewiseRow row;
};

// What op makes of two numbers.
double apply(Operation* op, double a, double b) {
  if (auto compare = dyn_cast<CompareOp>(op)) return holds(compare.getPredicate(), a, b);
  if (isa<CastOp>(op)) {
    Type to = typeOf(op->getResult(0)).getElementType();
    return to.isInteger(1) ? a != 0 : to.isInteger() ? std::trunc(a) : a;
  }
  if (isa<AndOp>(op)) return a != 0 && b != 0;
  if (isa<OrOp>(op)) return a != 0 || b != 0;
  if (isa<NotOp>(op)) return a == 0;
  if (isa<AddOp>(op)) return a + b;
  if (isa<SubOp>(op)) return a - b;
  if (isa<MulOp>(op)) return a * b;
  if (isa<NegOp>(op)) return -a;
  if (isa<MinOp>(op)) return std::min(a, b);
  return std::max(a, b);
}

class RowEvaluator {
 public:
  // False if the mask is not made of constants.
  bool build(HeadLayout layout, int64_t columns) {
    width = columns;
    return add(std::move(layout)) >= 0;
  }

  bool varies(HeadDim dim) const { return nodes.back().varies[int(dim)]; }
  bool isTired() const { return work > maxWork; }

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
    Node node{op, {}, {}, {}, {-1, -1, -1}, {}};
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
    return true;
  }

  void read(Node& node, int64_t start, int64_t stride) {
    if (isa<IotaOp>(node.op)) {
      if (width > 1) return node.row.append(width, double(start), double(stride));
      return node.row.append(width, double(start));
    }
    auto attribute = cast<DenseElementsAttr>(cast<ConstantOp>(node.op).getValue());
    const char* data = attribute.getRawData().data();
    Type type = attribute.getElementType();
    auto fill = [&](auto element) {
      if (stride == 0) return node.row.append(width, element(start));
      work += width;
      for (int64_t j = 0; j < width; ++j)
        node.row.push(element(start + j * stride), /*slopes=*/!type.isInteger(1) && type.isInteger());
    };
    if (type.isF32()) return fill([&](int64_t i) { return load<float>(data, i); });
    if (type.isF64()) return fill([&](int64_t i) { return load<double>(data, i); });
    if (type.isF16()) return fill([&](int64_t i) { return fromHalf(load<uint16_t>(data, i)); });
    if (type.isBF16()) return fill([&](int64_t i) { return fromBFloat(load<uint16_t>(data, i)); });
    // Attributes hold booleans as bits.
    if (type.isInteger(1)) return fill([&](int64_t i) { return data[i / 8] >> (i % 8) & 1; });
    if (type.isUnsignedInteger(8)) return fill([&](int64_t i) { return load<uint8_t>(data, i); });
    if (type.isInteger(8)) return fill([&](int64_t i) { return load<int8_t>(data, i); });
    if (type.isInteger(16)) return fill([&](int64_t i) { return load<int16_t>(data, i); });
    if (type.isInteger(32)) return fill([&](int64_t i) { return load<int32_t>(data, i); });
    return fill([&](int64_t i) { return double(load<int64_t>(data, i)); });
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

  // One line with another: a line, two or three pieces where they cross, or column by column.
  void combine(Node& node, int64_t begin, int64_t end, const Piece& a, const Piece& b) {
    Operation* op = node.op;
    if (a.slope == 0 && b.slope == 0) return node.row.append(end, apply(op, a.value, b.value));
    // Lines of integers stay exact; what floats round to is left to their columns.
    Type element = typeOf(op->getResult(0)).getElementType();
    if (element.isInteger() && !element.isInteger(1)) {
      if (isa<AddOp>(op)) return node.row.append(end, a.value + b.value, a.slope + b.slope);
      if (isa<SubOp>(op)) return node.row.append(end, a.value - b.value, a.slope - b.slope);
      if (isa<NegOp>(op)) return node.row.append(end, -a.value, -a.slope);
      if (isa<MulOp>(op) && (a.slope == 0 || b.slope == 0))
        return node.row.append(end, a.value * b.value, a.slope * b.value + a.value * b.slope);
      if (isa<CastOp>(op)) return node.row.append(end, a.value, a.slope);
    }
    if (isa<CompareOp, MinOp, MaxOp>(op)) {
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
          const Piece& picked = (sign(begin) < 0) == isa<MinOp>(op) ? a : b;
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
          // A bias that grows with the distance is no mask.
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
        if ((!all && !causal) || evaluator.isTired()) return other;
      }
  if (all) return {Visibility::all};
  return window && unbounded > window ? other : MaskView{Visibility::causal, window};
}

}  // namespace sheaf::train
