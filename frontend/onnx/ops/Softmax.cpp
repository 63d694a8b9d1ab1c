#include "frontend/onnx/ops/Softmax.h"

#include "ir/Train/Matchers.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace sheaf::frontend {

// Operators whose result has the numbers of their first input, perhaps repeated.
static constexpr StringRef kSameNumbers[] = {"Reshape", "Squeeze",  "Unsqueeze", "Flatten",
                                             "Expand",  "Identity", "Cast"};

namespace {

// The nodes of a graph by what they make.
class Producers {
 public:
  explicit Producers(const Model& model) : nodes(model.graph().node_size()) {
    for (const onnx::NodeProto& node : model.graph().node())
      for (const std::string& output : node.output()) producers[output] = &node;
  }

  // The node that makes a value's numbers and has an operand; null if there is none.
  const onnx::NodeProto* of(StringRef name) const {
    const onnx::NodeProto* node = producers.lookup(name);
    for (int64_t hops = 0; node && hops < nodes; ++hops) {
      if (!llvm::is_contained(kSameNumbers, StringRef(node->op_type())) || node->input_size() == 0) break;
      node = producers.lookup(node->input(0));
    }
    return node && node->input_size() ? node : nullptr;
  }
  // The same if it is the operator `type`.
  const onnx::NodeProto* of(StringRef name, StringRef type) const {
    const onnx::NodeProto* node = of(name);
    return node && node->op_type() == type ? node : nullptr;
  }

 private:
  int64_t nodes;
  llvm::StringMap<const onnx::NodeProto*> producers;
};

// Returns true if two nodes are exponentials of one value: not all exporters write it once.
bool isSameExponential(const onnx::NodeProto* node, const onnx::NodeProto& other) {
  return node && node->op_type() == "Exp" && node->input(0) == other.input(0);
}

// Returns true if `name` is the sum of the results of `exponential`. The sum may have a constant added or be clamped.
bool isSumOf(const Producers& producers, StringRef name, const onnx::NodeProto& exponential) {
  auto isSum = [&](const onnx::NodeProto* node) {
    return node && (node->op_type() == "ReduceSum" || node->op_type() == "ReduceL1") &&
           isSameExponential(producers.of(node->input(0)), exponential);
  };
  auto isConstant = [&](StringRef operand) {
    const onnx::NodeProto* node = producers.of(operand);
    return !node || node->op_type() == "Constant";
  };
  const onnx::NodeProto* node = producers.of(name);
  if (!node || !llvm::is_contained({"Add", "Max", "Clip"}, StringRef(node->op_type()))) return isSum(node);
  bool found = false;
  for (StringRef operand : node->input()) {
    const bool sum = isSum(producers.of(operand));
    if (!sum && !isConstant(operand)) return false;
    found |= sum;
  }
  return found;
}

// The operand of the softmax that a division writes out.
std::optional<std::string> writtenSoftmaxOperand(const Producers& producers, const onnx::NodeProto& division) {
  if (division.input_size() != 2) return std::nullopt;
  const onnx::NodeProto* exponential = producers.of(division.input(0), "Exp");
  if (!exponential || !isSumOf(producers, division.input(1), *exponential)) return std::nullopt;
  const onnx::NodeProto* shifted = producers.of(exponential->input(0), "Sub");
  if (!shifted || shifted->input_size() != 2) return exponential->input(0);
  // JAX takes the maximum of that and of its initial value.
  auto isMaximum = [&](StringRef name) { return producers.of(name, "ReduceMax") != nullptr; };
  const onnx::NodeProto* by = producers.of(shifted->input(1), "Max");
  const bool initial = by && llvm::any_of(by->input(), isMaximum);
  return isMaximum(shifted->input(1)) || initial ? shifted->input(0) : exponential->input(0);
}

std::optional<Squashed> squashedBy(const Producers& producers, const onnx::NodeProto* node) {
  if (!node) return std::nullopt;
  const std::string& type = node->op_type();
  if (type == "Softmax") return Squashed{Squashing::softmax, node->input(0)};
  if (type == "LogSoftmax") return Squashed{Squashing::logSoftmax, node->input(0)};
  if (type == "Sigmoid") return Squashed{Squashing::sigmoid, node->input(0)};
  if (type == "Div")
    if (auto operand = writtenSoftmaxOperand(producers, *node)) return Squashed{Squashing::softmax, *operand};
  // log_sigmoid(x) = -softplus(-x)
  if (type == "Neg")
    if (const onnx::NodeProto* softplus = producers.of(node->input(0), "Softplus"))
      if (const onnx::NodeProto* negated = producers.of(softplus->input(0), "Neg"))
        return Squashed{Squashing::logSigmoid, negated->input(0)};
  return std::nullopt;
}

}  // namespace

// The same in ops: `sum` is that of `exponential`, repeated, clamped or with a constant added.
static bool isSumOf(Value sum, train::ExpOp exponential) {
  sum = train::skipReshapesAndCasts(sum);
  Operation* op = sum.getDefiningOp();
  if (auto broadcast = dyn_cast_or_null<train::BroadcastOp>(op)) return isSumOf(broadcast.getOperand(), exponential);
  if (isa_and_nonnull<train::AddOp, train::MaxOp, train::MinOp>(op))
    for (unsigned constant : {0, 1})
      if (train::splatValue(op->getOperand(constant))) return isSumOf(op->getOperand(1 - constant), exponential);
  auto reduction = dyn_cast_or_null<train::ReduceOp>(op);
  if (!reduction || reduction.getKind() != train::ReduceKind::sum) return false;
  Value of = train::skipReshapesAndCasts(reduction.getOperand());
  if (auto abs = of.getDefiningOp<train::AbsOp>()) of = train::skipReshapesAndCasts(abs.getOperand());
  auto other = of.getDefiningOp<train::ExpOp>();
  return other && other.getOperand() == exponential.getOperand();
}

bool isWrittenSoftmax(Value value) {
  auto division = value.getDefiningOp<train::DivOp>();
  auto exponential =
      division ? train::skipReshapesAndCasts(division.getLhs()).getDefiningOp<train::ExpOp>() : train::ExpOp();
  return exponential && isSumOf(division.getRhs(), exponential);
}

std::optional<Squashed> squashed(const Model& model, StringRef value) {
  const Producers producers(model);
  const onnx::NodeProto* node = producers.of(value);
  if (!node || node->op_type() != "Log") return squashedBy(producers, node);
  std::optional<Squashed> inner = squashedBy(producers, producers.of(node->input(0)));
  if (!inner) return std::nullopt;
  if (inner->by == Squashing::softmax) return Squashed{Squashing::logSoftmax, inner->operand};
  if (inner->by == Squashing::sigmoid) return Squashed{Squashing::logSigmoid, inner->operand};
  return std::nullopt;
}

}  // namespace sheaf::frontend
