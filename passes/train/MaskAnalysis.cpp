#include "passes/train/MaskAnalysis.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "passes/train/Matchers.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// Masks are a handful of comparisons; more is some other computation.
constexpr size_t maxNodes = 32;
// Elements looked at before giving up: some seconds' work.
constexpr int64_t maxWork = int64_t(1) << 32;

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
  std::vector<double> row;
};

class RowEvaluator {
 public:
  // False if the mask is not made of constants.
  bool build(HeadLayout layout, int64_t columns) {
    width = columns;
    return add(std::move(layout)) >= 0;
  }

  bool varies(HeadDim dim) const {
    return llvm::any_of(nodes, [&](const Node& node) { return node.strides[int(dim)] != 0; });
  }
  size_t size() const { return nodes.size(); }

  const std::vector<double>& evaluate(int64_t batch, int64_t head, int64_t row) {
    for (Node& node : nodes) {
      if (isa<ConstantOp>(node.op))
        read(node, batch * node.strides[0] + head * node.strides[1] + row * node.strides[2], node.strides[3]);
      else
        compute(node);
    }
    return nodes.back().row;
  }

 private:
  // Inputs are added before the node itself, so that evaluation is one pass.
  int add(HeadLayout layout) {
    layout.trace(HeadLayout::Through::anyRepeats, /*scales=*/false);
    Operation* op = layout.value().getDefiningOp();
    if (!op || nodes.size() >= maxNodes) return -1;
    Node node{op, {}, {}, std::vector<double>(width)};
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      if (!isa<DenseElementsAttr>(constant.getValue()) || !typeOf(constant).getElementType().isIntOrFloat()) return -1;
      for (int d = 0; d < numHeadDims; ++d) {
        auto stride = layout.stride(HeadDim(d));
        if (!stride) return -1;
        node.strides[d] = *stride;
      }
    } else {
      if (!isa<CompareOp, AndOp, OrOp, NotOp, SelectOp, AddOp, SubOp, MulOp, NegOp, MinOp, MaxOp, CastOp>(op))
        return -1;
      for (Value operand : op->getOperands()) {
        int input = add(layout.withValue(operand));
        if (input < 0) return -1;
        node.inputs.push_back(input);
      }
    }
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }

  void read(Node& node, int64_t start, int64_t stride) {
    auto attribute = cast<DenseElementsAttr>(cast<ConstantOp>(node.op).getValue());
    const char* data = attribute.getRawData().data();
    if (attribute.isSplat()) start = stride = 0;
    auto fill = [&](auto element) {
      for (int64_t j = 0; j < width; ++j) node.row[j] = element(start + j * stride);
    };
    Type type = attribute.getElementType();
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
    auto fill = [&](auto function) {
      const double* a = nodes[node.inputs[0]].row.data();
      const double* b = nodes[node.inputs[node.inputs.size() > 1 ? 1 : 0]].row.data();
      for (int64_t j = 0; j < width; ++j) node.row[j] = function(a[j], b[j]);
    };
    if (auto compare = dyn_cast<CompareOp>(node.op)) {
      switch (compare.getPredicate()) {
        case ComparePredicate::eq:
          return fill([](double a, double b) { return a == b; });
        case ComparePredicate::ne:
          return fill([](double a, double b) { return a != b; });
        case ComparePredicate::lt:
          return fill([](double a, double b) { return a < b; });
        case ComparePredicate::le:
          return fill([](double a, double b) { return a <= b; });
        case ComparePredicate::gt:
          return fill([](double a, double b) { return a > b; });
        case ComparePredicate::ge:
          return fill([](double a, double b) { return a >= b; });
      }
    }
    if (isa<SelectOp>(node.op)) {
      const double* c = nodes[node.inputs[2]].row.data();
      const double* b = nodes[node.inputs[1]].row.data();
      const double* condition = nodes[node.inputs[0]].row.data();
      for (int64_t j = 0; j < width; ++j) node.row[j] = condition[j] != 0 ? b[j] : c[j];
      return;
    }
    if (isa<CastOp>(node.op)) {
      Type to = typeOf(node.op->getResult(0)).getElementType();
      if (to.isInteger(1)) return fill([](double a, double) { return a != 0; });
      if (to.isInteger()) return fill([](double a, double) { return std::trunc(a); });
      return fill([](double a, double) { return a; });
    }
    if (isa<AndOp>(node.op)) return fill([](double a, double b) { return a != 0 && b != 0; });
    if (isa<OrOp>(node.op)) return fill([](double a, double b) { return a != 0 || b != 0; });
    if (isa<NotOp>(node.op)) return fill([](double a, double) { return a == 0; });
    if (isa<AddOp>(node.op)) return fill([](double a, double b) { return a + b; });
    if (isa<SubOp>(node.op)) return fill([](double a, double b) { return a - b; });
    if (isa<MulOp>(node.op)) return fill([](double a, double b) { return a * b; });
    if (isa<NegOp>(node.op)) return fill([](double a, double) { return -a; });
    if (isa<MinOp>(node.op)) return fill([](double a, double b) { return std::min(a, b); });
    return fill([](double a, double b) { return std::max(a, b); });
  }

  int64_t width = 0;
  std::vector<Node> nodes;
};

}  // namespace

Visibility classifyMask(const HeadLayout& mask, int64_t rows, int64_t columns, double factor, bool inverted) {
  bool boolean = typeOf(mask.value()).getElementType().isInteger(1);
  int64_t batches = mask.size(HeadDim::batch), heads = mask.size(HeadDim::head);
  RowEvaluator evaluator;
  if (!evaluator.build(mask, columns)) return Visibility::other;
  if (!evaluator.varies(HeadDim::batch)) batches = 1;
  if (!evaluator.varies(HeadDim::head)) heads = 1;
  if (double(batches) * heads * rows * columns * evaluator.size() > double(maxWork)) return Visibility::other;

  // With fewer keys than queries a causal mask hides whole rows, and those then depend on what it adds.
  bool all = true, causal = rows <= columns;
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        const std::vector<double>& values = evaluator.evaluate(batch, head, row);
        int64_t boundary = std::clamp<int64_t>(row + columns - rows + 1, 0, columns);
        for (int64_t j = 0; j < columns; ++j) {
          double value = values[j];
          bool visible = boolean ? (value != 0) != inverted : value == 0;
          if (!visible && !boolean && !(value * factor <= maskedBelow)) return Visibility::other;
          all &= visible;
          causal &= visible == (j < boundary);
        }
        if (!all && !causal) return Visibility::other;
      }
  return all ? Visibility::all : Visibility::causal;
}

}  // namespace sheaf::train
