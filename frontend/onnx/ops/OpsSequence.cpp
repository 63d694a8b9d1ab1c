// Sequences of tensors and optional values. Both exist only while importing: what they hold is known then.
#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

LogicalResult splitToSequence(Node& n) {
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", 0);
  if (!n.emit.checkAxis(axis, x.rank())) return failure();
  int64_t size = x.dim(axis);
  if (size > (1 << 16)) return n.error() << "a sequence of " << size << " parts is too long";
  std::vector<int64_t> sizes(size, 1);
  bool keep = true;
  if (n.input(1)) {
    auto given = n.knownIntegers(1, "the list of parts");
    if (!given) return failure();
    if (n.input(1).rank() == 0) {
      int64_t part = given->front();
      if (part < 1) return n.error() << "a part must have at least one element";
      sizes.clear();
      for (int64_t left = size; left > 0; left -= part) sizes.push_back(std::min(part, left));
    } else {
      sizes = *given;
    }
  } else {
    keep = n.integer("keepdims", 1);
  }
  auto checked = checkParts(n, size, sizes);
  if (!checked) return failure();
  std::vector<Tensor> sequence;
  int64_t start = 0;
  for (int64_t part : *checked) {
    Tensor piece = n.emit.sliceAlong(x, axis, start, part);
    if (!keep && piece) {
      Shape shape(piece.shape());
      shape.erase(shape.begin() + axis);
      piece = n.emit.reshape(piece, shape);
    }
    if (!piece) return failure();
    sequence.push_back(piece);
    start += part;
  }
  return n.setSequence(0, std::move(sequence));
}

LogicalResult sequenceConstruct(Node& n) {
  for (const Tensor& x : n.tensors())
    if (!x) return n.error() << "takes tensors";
  return n.setSequence(0, n.tensors());
}

LogicalResult sequenceEmpty(Node& n) {
  return n.setSequence(0, {});
}

// The position that input i names in a list of `size`; that is `otherwise` where the input is absent.
std::optional<int64_t> position(Node& n, int64_t i, int64_t size, int64_t otherwise) {
  if (!n.input(i)) return otherwise;
  auto given = n.knownIntegers(i, "the position");
  if (!given) return std::nullopt;
  int64_t at = given->size() == 1 ? given->front() : size;
  if (at < 0) at += n.sequence(0)->size();
  if (at < 0 || at >= size)
    return n.error() << "the position is out of range for a sequence of " << n.sequence(0)->size(), std::nullopt;
  return at;
}

LogicalResult sequenceAt(Node& n) {
  if (!n.sequence(0)) return n.error() << "takes a sequence";
  auto at = position(n, 1, n.sequence(0)->size(), 0);
  return at ? n.set(0, (*n.sequence(0))[*at]) : failure();
}

LogicalResult sequenceInsert(Node& n) {
  if (!n.sequence(0) || !n.input(1)) return n.error() << "takes a sequence and a tensor";
  std::vector<Tensor> sequence = *n.sequence(0);
  auto at = position(n, 2, sequence.size() + 1, sequence.size());
  if (!at) return failure();
  sequence.insert(sequence.begin() + *at, n.input(1));
  return n.setSequence(0, std::move(sequence));
}

LogicalResult sequenceErase(Node& n) {
  if (!n.sequence(0)) return n.error() << "takes a sequence";
  std::vector<Tensor> sequence = *n.sequence(0);
  if (sequence.empty()) return n.error() << "the sequence is empty";
  auto at = position(n, 1, sequence.size(), sequence.size() - 1);
  if (!at) return failure();
  sequence.erase(sequence.begin() + *at);
  return n.setSequence(0, std::move(sequence));
}

LogicalResult sequenceLength(Node& n) {
  if (!n.sequence(0)) return n.error() << "takes a sequence";
  return n.set(0, n.emit.reshape(n.emit.integers({int64_t(n.sequence(0)->size())}), {}));
}

LogicalResult concatFromSequence(Node& n) {
  if (!n.sequence(0) || n.sequence(0)->empty()) return n.error() << "takes a sequence that is not empty";
  std::vector<Tensor> parts = *n.sequence(0);
  bool stack = n.integer("new_axis", 0);
  int64_t axis = n.integer("axis", 0);
  if (!n.emit.checkAxis(axis, parts[0].rank() + stack)) return failure();
  for (Tensor& part : parts) {
    Shape shape(part.shape());
    if (stack && axis > int64_t(shape.size())) return n.error() << "the tensors differ in rank";
    if (stack) shape.insert(shape.begin() + axis, 1);
    part = n.emit.reshape(part, shape);
  }
  return n.set(0, n.emit.concat(parts, axis));
}

// An optional value is the value itself, or one that is neither a tensor nor a sequence.
bool holds(Node& n) {
  return n.inputs() > 0 && (n.input(0) || n.sequence(0));
}

LogicalResult optional(Node& n) {
  n.setValue(0, holds(n) ? n.operands[0] : GraphValue());
  return success();
}

LogicalResult optionalGetElement(Node& n) {
  if (!holds(n)) return n.error() << "the optional value is empty";
  n.setValue(0, n.operands[0]);
  return success();
}

LogicalResult optionalHasElement(Node& n) {
  return n.set(0, n.emit.splat(n.emit.ops().getI1Type(), {}, holds(n)));
}

constexpr Operator kOperators[] = {
    {"SplitToSequence", 11, 0, 1, splitToSequence, {.lowering = "slices, which exist while importing"}},
    {"SequenceConstruct", 11, 0, 1, sequenceConstruct, {.lowering = "nothing: sequences exist while importing"}},
    {"SequenceEmpty", 11, 0, 0, sequenceEmpty, {.lowering = "nothing: sequences exist while importing"}},
    {"SequenceAt", 11, 0, 2, sequenceAt, {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
    {"SequenceInsert",
     11,
     0,
     2,
     sequenceInsert,
     {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
    {"SequenceErase",
     11,
     0,
     1,
     sequenceErase,
     {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
    {"SequenceLength",
     11,
     0,
     1,
     sequenceLength,
     {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
    {"ConcatFromSequence", 11, 0, 1, concatFromSequence, {.sequences = true, .lowering = "concat"}},
    {"Optional", 15, 0, 0, optional, {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
    {"OptionalGetElement",
     15,
     0,
     0,
     optionalGetElement,
     {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
    {"OptionalHasElement",
     15,
     0,
     0,
     optionalHasElement,
     {.sequences = true, .lowering = "nothing: sequences exist while importing"}},
};

}  // namespace

ArrayRef<Operator> sequenceOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
