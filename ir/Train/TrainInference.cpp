// Result types of `train` ops from their operands and attributes.
#include "ir/Train/TrainDialect.h"

using namespace mlir;
using namespace sheaf::train;

namespace {

RankedTensorType tensor(Value v) {
  return cast<RankedTensorType>(v.getType());
}

// Output length of a sliding window over one dimension. With `ceil` the last window may be incomplete, but must start
// in the input or the padding before it (as in PyTorch and ONNX).
int64_t windowed(int64_t size, int64_t kernel, int64_t stride, int64_t before, int64_t after, int64_t dilation,
                 bool ceil) {
  int64_t span = size + before + after - dilation * (kernel - 1) - 1;
  if (span < 0) return 0;
  int64_t length = (span + (ceil ? stride - 1 : 0)) / stride + 1;
  return ceil && (length - 1) * stride >= size + before ? length - 1 : length;
}

bool allAtLeast(int64_t least, ArrayRef<int64_t> values) {
  return llvm::all_of(values, [&](int64_t v) { return v >= least; });
}

// The shape of a product of matrices, or of a batch of them.
LogicalResult productShape(Value lhs, Value rhs, bool transposeA, bool transposeB, SmallVectorImpl<int64_t>& shape,
                           function_ref<LogicalResult(const Twine&)> fail) {
  auto a = tensor(lhs);
  auto b = tensor(rhs);
  int64_t rank = a.getRank();
  if ((rank != 2 && rank != 3) || b.getRank() != rank) return fail("operands must both have rank 2 or rank 3");
  if (a.getElementType() != b.getElementType()) return fail("operands must agree in element type");
  int64_t m = a.getDimSize(rank - 2);
  int64_t k = a.getDimSize(rank - 1);
  int64_t l = b.getDimSize(rank - 2);
  int64_t n = b.getDimSize(rank - 1);
  if (transposeA) std::swap(m, k);
  if (transposeB) std::swap(l, n);
  if (k != l) return fail("inner dimensions differ");
  if (rank == 3 && a.getDimSize(0) != b.getDimSize(0)) return fail("leading dimensions differ");
  if (rank == 3) shape.push_back(a.getDimSize(0));
  shape.push_back(m);
  shape.push_back(n);
  return success();
}

}  // namespace

// The boilerplate of InferTypeOpInterface: an adaptor `op` and the vector of types to fill.
#define SHEAF_INFER(OP, ...)                                                                                      \
  LogicalResult OP::inferReturnTypes(MLIRContext* context, std::optional<Location> location, ValueRange operands, \
                                     DictionaryAttr attributes, OpaqueProperties properties, RegionRange regions, \
                                     SmallVectorImpl<Type>& types) {                                              \
    OP::Adaptor op(operands, attributes, properties, regions);                                                    \
    auto fail = [&](const Twine& message) { return emitOptionalError(location, message); };                       \
    (void)fail;                                                                                                   \
    __VA_ARGS__                                                                                                   \
  }

SHEAF_INFER(ConstantOp, {
  types.push_back(cast<ElementsAttr>(op.getValue()).getShapedType());
  return success();
})

SHEAF_INFER(TransposeOp, {
  auto from = tensor(op.getOperand());
  SmallVector<int64_t> shape;
  SmallVector<bool> seen(from.getRank());
  for (int64_t p : op.getPermutation()) {
    if (p < 0 || p >= from.getRank() || seen[p]) return fail("permutation must name every dimension once");
    seen[p] = true;
    shape.push_back(from.getDimSize(p));
  }
  if (int64_t(shape.size()) != from.getRank()) return fail("permutation must name every dimension once");
  types.push_back(RankedTensorType::get(shape, from.getElementType()));
  return success();
})

SHEAF_INFER(SliceOp, {
  types.push_back(RankedTensorType::get(op.getSizes(), tensor(op.getOperand()).getElementType()));
  return success();
})

SHEAF_INFER(PadOp, {
  auto from = tensor(op.getOperand());
  SmallVector<int64_t> shape;
  if (int64_t(op.getLow().size()) != from.getRank() || op.getHigh().size() != op.getLow().size() ||
      op.getInterior().size() != op.getLow().size())
    return fail("needs low, high and interior per dimension");
  if (!allAtLeast(0, op.getLow()) || !allAtLeast(0, op.getHigh()) || !allAtLeast(0, op.getInterior()))
    return fail("pads by a negative amount: write a slice");
  for (int64_t d = 0; d < from.getRank(); ++d) {
    int64_t inner = from.getDimSize(d) ? (from.getDimSize(d) - 1) * (op.getInterior()[d] + 1) + 1 : 0;
    shape.push_back(op.getLow()[d] + inner + op.getHigh()[d]);
  }
  types.push_back(RankedTensorType::get(shape, from.getElementType()));
  return success();
})

SHEAF_INFER(ConcatOp, {
  if (op.getOperands().empty()) return fail("needs an operand");
  auto first = tensor(op.getOperands()[0]);
  int64_t axis = op.getAxis();
  if (axis < 0 || axis >= first.getRank()) return fail("axis out of range");
  SmallVector<int64_t> shape(first.getShape());
  shape[axis] = 0;
  for (Value v : op.getOperands()) {
    auto type = tensor(v);
    if (type.getRank() != first.getRank() || type.getElementType() != first.getElementType())
      return fail("operands must agree in rank and element type");
    for (int64_t d = 0; d < first.getRank(); ++d)
      if (d != axis && type.getDimSize(d) != first.getDimSize(d)) return fail("operands must agree but along the axis");
    shape[axis] += type.getDimSize(axis);
  }
  types.push_back(RankedTensorType::get(shape, first.getElementType()));
  return success();
})

SHEAF_INFER(ReduceOp, {
  auto from = tensor(op.getOperand());
  SmallVector<int64_t> shape(from.getShape());
  for (int64_t axis : op.getAxes()) {
    if (axis < 0 || axis >= from.getRank()) return fail("axis out of range");
    shape[axis] = 1;
  }
  if (const int64_t leaves = op.getLeaves(); leaves != 1) {
    int64_t first = 0;
    while (first + 1 < from.getRank() && from.getDimSize(first) == 1) ++first;
    if (leaves < 1 || op.getKind() != ReduceKind::sum || !llvm::is_contained(op.getAxes(), first) ||
        from.getDimSize(first) % leaves != 0)
      return fail("leaves are equal parts of the first dimension larger than 1, which is summed");
    shape.insert(shape.begin(), leaves);
  }
  types.push_back(RankedTensorType::get(shape, from.getElementType()));
  return success();
})

SHEAF_INFER(MatMulOp, {
  SmallVector<int64_t> shape;
  if (failed(productShape(op.getLhs(), op.getRhs(), op.getTransposeA(), op.getTransposeB(), shape, fail)))
    return failure();
  types.push_back(RankedTensorType::get(shape, tensor(op.getLhs()).getElementType()));
  return success();
})

SHEAF_INFER(MatMulEpilogueOp, {
  SmallVector<int64_t> shape;
  if (failed(productShape(op.getLhs(), op.getRhs(), op.getTransposeA(), op.getTransposeB(), shape, fail)))
    return failure();
  if (shape.size() != 2) return fail("operands must have rank 2");
  Type element = tensor(op.getLhs()).getElementType();
  const MatMulEpilogue epilogue = op.getEpilogue();
  SmallVector<int64_t> side;
  if (epilogue == MatMulEpilogue::bias || epilogue == MatMulEpilogue::bias_gelu) side = {shape[1]};
  if (epilogue == MatMulEpilogue::gelu_grad) side = shape;
  if (bool(op.getSide()) == side.empty())
    return fail(side.empty() ? "this epilogue takes no further operand" : "this epilogue takes a further operand");
  if (op.getSide() && op.getSide().getType() != RankedTensorType::get(side, element))
    return fail("the further operand does not fit the product");
  types.push_back(RankedTensorType::get(shape, element));
  if (epilogue == MatMulEpilogue::gelu || epilogue == MatMulEpilogue::bias_gelu) types.push_back(types.front());
  if (epilogue == MatMulEpilogue::sum_lhs) {
    if (!op.getTransposeA()) return fail("the operand that is summed must be stored with the inner dimension first");
    types.push_back(RankedTensorType::get({shape[0]}, element));
  }
  if (epilogue == MatMulEpilogue::sum_rhs) {
    if (op.getTransposeB()) return fail("the operand that is summed must be stored with the inner dimension first");
    types.push_back(RankedTensorType::get({shape[1]}, element));
  }
  return success();
})

SHEAF_INFER(GatherOp, {
  auto data = tensor(op.getData());
  auto indices = tensor(op.getIndices());
  int64_t axis = op.getAxis();
  if (axis < 0 || axis >= data.getRank()) return fail("axis out of range");
  SmallVector<int64_t> shape(data.getShape().take_front(axis));
  llvm::append_range(shape, indices.getShape());
  llvm::append_range(shape, data.getShape().drop_front(axis + 1));
  types.push_back(RankedTensorType::get(shape, data.getElementType()));
  return success();
})

SHEAF_INFER(TopKOp, {
  auto from = tensor(op.getOperand());
  int64_t axis = op.getAxis(), k = op.getK();
  if (axis < 0 || axis >= from.getRank()) return fail("axis out of range");
  if (k < 1 || k > from.getDimSize(axis)) return fail("takes 1 to all elements of the axis");
  SmallVector<int64_t> shape(from.getShape());
  shape[axis] = k;
  types.push_back(RankedTensorType::get(shape, IntegerType::get(context, 64)));
  return success();
})

SHEAF_INFER(AttentionOp, {
  auto q = tensor(op.getQuery());
  auto k = tensor(op.getKey());
  auto v = tensor(op.getValue());
  if (q.getRank() != 4 || k.getRank() != 4 || v.getRank() != 4) return fail("query, key and value must have rank 4");
  if (q.getDimSize(0) != k.getDimSize(0) || k.getDimSize(0) != v.getDimSize(0) || k.getDimSize(1) != v.getDimSize(1) ||
      k.getDimSize(2) != v.getDimSize(2) || q.getDimSize(3) != k.getDimSize(3) || k.getDimSize(2) == 0 ||
      q.getDimSize(2) % k.getDimSize(2) != 0)
    return fail("shapes of query, key and value do not fit");
  if (op.getWindow() && (!op.getCausal() || int64_t(*op.getWindow()) < 1))
    return fail("a window is of causal attention and has at least one key");
  types.push_back(
      RankedTensorType::get({q.getDimSize(0), q.getDimSize(1), q.getDimSize(2), v.getDimSize(3)}, q.getElementType()));
  types.push_back(
      RankedTensorType::get({q.getDimSize(0), q.getDimSize(2), q.getDimSize(1)}, Float32Type::get(context)));
  return success();
})

SHEAF_INFER(AttentionGradOp, {
  types.assign({op.getQuery().getType(), op.getKey().getType(), op.getValue().getType()});
  return success();
})

SHEAF_INFER(CrossEntropyOp, {
  auto logits = tensor(op.getLogits());
  auto labels = tensor(op.getLabels());
  if (logits.getRank() != 2 || labels.getRank() != 2 || labels.getDimSize(0) != logits.getDimSize(0) ||
      labels.getDimSize(1) != 1)
    return fail("takes logits [R, C] and labels [R, 1]");
  types.assign(2, RankedTensorType::get({logits.getDimSize(0), 1}, logits.getElementType()));
  return success();
})

SHEAF_INFER(ConvOp, {
  auto x = tensor(op.getInput());
  auto w = tensor(op.getFilter());
  if (x.getRank() != 4 || w.getRank() != 4 || op.getStrides().size() != 2 || op.getPads().size() != 4 ||
      op.getDilations().size() != 2)
    return fail("takes a 2-D convolution: rank 4, two strides and dilations, four pads");
  if (!allAtLeast(1, op.getStrides()) || !allAtLeast(1, op.getDilations()) || !allAtLeast(0, op.getPads()))
    return fail("strides and dilations must be positive, pads not negative");
  const ImageLayout layout(op.getChannelsLast());
  int64_t groups = op.getGroups();
  if (groups < 1 || x.getDimSize(layout.channels) != w.getDimSize(1) * groups || w.getDimSize(0) % groups)
    return fail("channels do not fit the groups");
  SmallVector<int64_t> shape(4, x.getDimSize(0));
  shape[layout.channels] = w.getDimSize(0);
  for (int d = 0; d < 2; ++d)
    shape[layout.rows + d] = windowed(x.getDimSize(layout.rows + d), w.getDimSize(2 + d), op.getStrides()[d],
                                      op.getPads()[d], op.getPads()[d + 2], op.getDilations()[d], false);
  types.push_back(RankedTensorType::get(shape, x.getElementType()));
  return success();
})

// The shape of what a pooling op makes of its input.
template <typename Pooling>
static LogicalResult pooledShape(Pooling op, SmallVectorImpl<int64_t>& shape,
                                 function_ref<LogicalResult(const Twine&)> fail) {
  auto x = tensor(op.getInput());
  if (x.getRank() != 4 || op.getKernel().size() != 2 || op.getStrides().size() != 2 || op.getPads().size() != 4 ||
      op.getDilations().size() != 2)
    return fail("takes 2-D pooling: rank 4, two kernel sizes, strides and dilations, four pads");
  if (!allAtLeast(1, op.getKernel()) || !allAtLeast(1, op.getStrides()) || !allAtLeast(1, op.getDilations()) ||
      !allAtLeast(0, op.getPads()))
    return fail("kernel sizes, strides and dilations must be positive, pads not negative");
  const ImageLayout layout(op.getChannelsLast());
  shape.assign(x.getShape().begin(), x.getShape().end());
  for (int d = 0; d < 2; ++d)
    shape[layout.rows + d] = windowed(x.getDimSize(layout.rows + d), op.getKernel()[d], op.getStrides()[d],
                                      op.getPads()[d], op.getPads()[d + 2], op.getDilations()[d], op.getCeilMode());
  return success();
}

SHEAF_INFER(MaxPoolOp, {
  SmallVector<int64_t> shape;
  if (failed(pooledShape(op, shape, fail))) return failure();
  types.push_back(RankedTensorType::get(shape, tensor(op.getInput()).getElementType()));
  return success();
})

SHEAF_INFER(MaxPoolIndicesOp, {
  SmallVector<int64_t> shape;
  if (failed(pooledShape(op, shape, fail))) return failure();
  types.push_back(RankedTensorType::get(shape, IntegerType::get(context, 64)));
  return success();
})
