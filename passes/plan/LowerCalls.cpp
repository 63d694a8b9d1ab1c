// Lowers ops that are library calls, kernels or views.
#include "llvm/ADT/TypeSwitch.h"
#include "passes/plan/Lowering.h"
#include "runtime/plan/Library.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

RankedTensorType tensor(Value v) {
  return cast<RankedTensorType>(v.getType());
}

SmallVector<int64_t> denseStrides(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size(), 1);
  for (int64_t d = int64_t(shape.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  return strides;
}

int64_t product(ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// Elements from one row to the next, as they lie in memory; a row are the last `dimensions`.
int64_t elementsApart(const Lowering& lowering, Value value, int64_t dimensions) {
  auto type = tensor(value);
  Location at = lowering.locate(value);
  return at.rowStride ? at.rowStride / widthOf(type.getElementType()) : product(type.getShape().take_back(dimensions));
}

// Of an attention operand [B, S, H, D] a token is a row.
int64_t tokenStride(const Lowering& lowering, Value value) {
  return elementsApart(lowering, value, 2);
}

int64_t leadingDimension(const Lowering& lowering, Value value) {
  return elementsApart(lowering, value, 1);
}

// Whether every reader of a slice of the last dimension can read it in place: attentions, through reshapes.
bool readInPlace(Value value) {
  return llvm::all_of(value.getUses(), [](OpOperand& use) {
    if (auto reshape = dyn_cast<train::ReshapeOp>(use.getOwner())) return readInPlace(reshape.getResult());
    auto type = cast<RankedTensorType>(use.get().getType());
    return isa<train::AttentionOp, train::AttentionGradOp>(use.getOwner()) && use.getOperandNumber() < 3 &&
           type.getRank() == 4;
  });
}

void convolution(Integers& out, ArrayRef<int64_t> input, ArrayRef<int64_t> window, ArrayRef<int64_t> result,
                 ArrayRef<int64_t> strides, ArrayRef<int64_t> pads, ArrayRef<int64_t> dilations) {
  out.append({{"n", input[0]},
              {"c", input[1]},
              {"h", input[2]},
              {"w", input[3]},
              {"kh", window[0]},
              {"kw", window[1]},
              {"oh", result[2]},
              {"ow", result[3]},
              {"stride_h", strides[0]},
              {"stride_w", strides[1]},
              {"pad_top", pads[0]},
              {"pad_left", pads[1]},
              {"pad_bottom", pads[2]},
              {"pad_right", pads[3]},
              {"dilation_h", dilations[0]},
              {"dilation_w", dilations[1]}});
}

// What train.matmul and train.matmul_epilogue share: the result's place and the shape.
template <typename Product>
Integers productShape(Lowering& l, Product op) {
  auto a = tensor(op.getLhs()), b = tensor(op.getRhs()), c = tensor(op.getResult());
  int64_t rank = c.getRank(), batch = rank == 3 ? c.getDimSize(0) : 1, m = c.getDimSize(rank - 2),
          n = c.getDimSize(rank - 1), k = a.getDimSize(op.getTransposeA() ? rank - 2 : rank - 1);
  l.locations[op.getResult()] = l.placeResult(op.getResult());
  int64_t lda = leadingDimension(l, op.getLhs()), ldb = leadingDimension(l, op.getRhs()),
          ldc = leadingDimension(l, op.getResult());
  Integers shape{{"m", m},
                 {"n", n},
                 {"k", k},
                 {"batch", batch},
                 {"transpose_a", op.getTransposeA()},
                 {"transpose_b", op.getTransposeB()},
                 {"lda", lda},
                 {"ldb", ldb},
                 {"ldc", ldc},
                 {"stride_a", a.getDimSize(rank - 2) * lda},
                 {"stride_b", b.getDimSize(rank - 2) * ldb},
                 {"stride_c", m * ldc}};
  appendType(shape, op.getLhs());
  if (op->hasAttr(train::kTf32Attr)) shape.push_back({"tf32", 1});
  return shape;
}

LogicalResult lowerMatMul(Lowering& l, train::MatMulOp op) {
  Integers shape = productShape(l, op);
  l.call(op.getLoc(), "gemm",
         {l.operand(op.getLhs(), kRead), l.operand(op.getRhs(), kRead), l.operand(op.getResult(), kWrite)}, shape);
  return success();
}

LogicalResult lowerMatMulEpilogue(Lowering& l, train::MatMulEpilogueOp op) {
  Integers shape = productShape(l, op);
  shape.push_back({"epilogue", int64_t(op.getEpilogue())});
  SmallVector<Operand> operands;
  for (Value v : op.getOperands()) operands.push_back(l.operand(v, kRead));
  operands.push_back(l.operand(op.getResult(), kWrite));
  if (Value also = op.getAlso()) {
    l.locations[also] = l.placeResult(also);
    operands.push_back(l.operand(also, kWrite));
  }
  l.call(op.getLoc(), "gemm", operands, shape);
  return success();
}

Integers attentionShape(Value query, Value key, Value value, Value mask, bool causal, std::optional<uint64_t> window) {
  auto q = tensor(query), k = tensor(key), v = tensor(value);
  Integers shape{{"b", q.getDimSize(0)}, {"s", q.getDimSize(1)}, {"t", k.getDimSize(1)},
                 {"h", q.getDimSize(2)}, {"g", k.getDimSize(2)}, {"d", q.getDimSize(3)},
                 {"e", v.getDimSize(3)}, {"causal", causal},     {"mask", bool(mask)}};
  if (window) shape.push_back({"window", int64_t(*window)});
  if (mask) shape.append({{"mask_b", tensor(mask).getDimSize(0)}, {"mask_h", tensor(mask).getDimSize(1)}});
  appendType(shape, query);
  return shape;
}

LogicalResult lowerAttention(Lowering& l, train::AttentionOp op) {
  l.locations[op.getResult()] = l.placeResult(op.getResult());
  l.locations[op.getLogSumExp()] = l.placeResult(op.getLogSumExp());
  SmallVector<Operand> operands;
  for (Value v : op.getOperands()) operands.push_back(l.operand(v, kRead));
  operands.push_back(l.operand(op.getResult(), kWrite));
  operands.push_back(l.operand(op.getLogSumExp(), kWrite));
  Integers shape =
      attentionShape(op.getQuery(), op.getKey(), op.getValue(), op.getMask(), op.getCausal(), op.getWindow());
  shape.append({{"query_row", tokenStride(l, op.getQuery())},
                {"key_row", tokenStride(l, op.getKey())},
                {"value_row", tokenStride(l, op.getValue())},
                {"result_row", tokenStride(l, op.getResult())}});
  l.call(op.getLoc(), "attention", operands, shape, {{"scale", op.getScale().convertToDouble()}});
  return success();
}

LogicalResult lowerAttentionGrad(Lowering& l, train::AttentionGradOp op) {
  SmallVector<Operand> operands;
  for (Value v : op.getOperands()) operands.push_back(l.operand(v, kRead));
  for (Value v : op.getResults()) {
    l.locations[v] = l.placeResult(v, /*stridedAllowed=*/true);
    operands.push_back(l.operand(v, kWrite));
  }
  Integers shape =
      attentionShape(op.getQuery(), op.getKey(), op.getValue(), op.getMask(), op.getCausal(), op.getWindow());
  shape.append({{"query_row", tokenStride(l, op.getQuery())},
                {"key_row", tokenStride(l, op.getKey())},
                {"value_row", tokenStride(l, op.getValue())},
                {"result_row", tokenStride(l, op.getResult())},
                {"gradient_row", tokenStride(l, op.getGradient())},
                {"query_gradient_row", tokenStride(l, op.getQueryGradient())},
                {"key_gradient_row", tokenStride(l, op.getKeyGradient())},
                {"value_gradient_row", tokenStride(l, op.getValueGradient())}});
  l.call(op.getLoc(), "attention_grad", operands, shape, {{"scale", op.getScale().convertToDouble()}});
  return success();
}

LogicalResult lowerSlice(Lowering& l, train::SliceOp op) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  int64_t width = widthOf(from.getElementType()), last = from.getRank() - 1;
  Location source = l.locate(op.getOperand());
  bool lastOnly = last >= 0 && op.getSteps()[last] == 1 && !source.rowStride;
  for (int64_t d = 0; d < last; ++d) lastOnly &= from.getDimSize(d) == to.getDimSize(d) && op.getSteps()[d] == 1;
  if (lastOnly && readInPlace(op.getResult())) {
    source.offset += op.getStarts()[last] * width;
    source.rowStride = from.getDimSize(last) * width;
    source.rowBytes = to.getDimSize(last) * width;
    l.locations[op.getResult()] = source;
    return success();
  }
  l.locations[op.getResult()] = l.placeResult(op.getResult());
  SmallVector<int64_t> strides = denseStrides(from.getShape());
  int64_t offset = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    offset += op.getStarts()[d] * strides[d];
    strides[d] *= op.getSteps()[d];
  }
  l.copy(op.getLoc(), l.operand(op.getOperand(), kRead), l.operand(op.getResult(), kWrite), width, to.getShape(),
         strides, denseStrides(to.getShape()), offset);
  return success();
}

LogicalResult lowerConcat(Lowering& l, train::ConcatOp op) {
  auto to = tensor(op.getResult());
  int64_t axis = op.getAxis(), width = widthOf(to.getElementType()), begin = 0;
  if (!l.locations.contains(op.getResult())) l.locations[op.getResult()] = l.placeResult(op.getResult());
  SmallVector<int64_t> strides = denseStrides(to.getShape());
  Operand whole = l.operand(op.getResult(), kWrite);
  for (Value piece : op.getOperands()) {
    auto type = tensor(piece);
    Location at = l.locate(piece);
    // A piece that was written in place needs no copy.
    if (!(at.buffer == whole.buffer && at.rowStride)) {
      Operand part = whole;
      part.offset += begin * strides[axis] * width;
      part.bytes -= begin * strides[axis] * width;
      l.copy(op.getLoc(), l.operand(piece, kRead), part, width, type.getShape(), denseStrides(type.getShape()),
             strides);
    }
    begin += type.getDimSize(axis);
  }
  return success();
}

}  // namespace

void Lowering::copy(mlir::Location loc, const Operand& source, const Operand& destination, int64_t width,
                    ArrayRef<int64_t> sizes, ArrayRef<int64_t> sourceStrides, ArrayRef<int64_t> destinationStrides,
                    int64_t sourceOffset, bool zero) {
  static const std::string names[3][8] = {
      {"size0", "size1", "size2", "size3", "size4", "size5", "size6", "size7"},
      {"source_stride0", "source_stride1", "source_stride2", "source_stride3", "source_stride4", "source_stride5",
       "source_stride6", "source_stride7"},
      {"destination_stride0", "destination_stride1", "destination_stride2", "destination_stride3",
       "destination_stride4", "destination_stride5", "destination_stride6", "destination_stride7"}};
  Integers shape{
      {"element_bytes", width}, {"rank", int64_t(sizes.size())}, {"source_offset", sourceOffset}, {"zero", zero}};
  for (size_t d = 0; d < sizes.size(); ++d)
    shape.append({{names[0][d], sizes[d]}, {names[1][d], sourceStrides[d]}, {names[2][d], destinationStrides[d]}});
  call(loc, "copy", {source, destination}, shape);
}

LogicalResult Lowering::lowerOp(Operation* op) {
  auto simple = [&](StringRef function, ArrayRef<std::pair<StringRef, int64_t>> integers,
                    ArrayRef<std::pair<StringRef, double>> reals = {}) {
    SmallVector<Operand> operands;
    for (Value v : op->getOperands()) operands.push_back(operand(v, kRead));
    for (Value v : op->getResults()) {
      locations[v] = placeResult(v);
      operands.push_back(operand(v, kWrite));
    }
    call(op->getLoc(), function, operands, integers, reals);
    return success();
  };
  for (Value v : op->getResults())
    if (tensor(v).getRank() > 8) return op->emitError("tensors of more than 8 dimensions are not supported");

  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](train::FusionOp f) { return lowerFusion(f); })
      .Case([&](train::MatMulOp m) { return lowerMatMul(*this, m); })
      .Case([&](train::MatMulEpilogueOp m) { return lowerMatMulEpilogue(*this, m); })
      .Case([&](train::AttentionOp a) { return lowerAttention(*this, a); })
      .Case([&](train::AttentionGradOp a) { return lowerAttentionGrad(*this, a); })
      .Case([&](train::SliceOp s) { return lowerSlice(*this, s); })
      .Case([&](train::ConcatOp c) { return lowerConcat(*this, c); })
      .Case([&](train::ReshapeOp r) {
        locations[r.getResult()] = locate(r.getOperand());
        return success();
      })
      .Case([&](train::TransposeOp t) {
        auto from = tensor(t.getOperand()), to = tensor(t.getResult());
        SmallVector<int64_t> strides, natural = denseStrides(from.getShape());
        for (int64_t p : t.getPermutation()) strides.push_back(natural[p]);
        locations[t.getResult()] = placeResult(t.getResult());
        copy(op->getLoc(), operand(t.getOperand(), kRead), operand(t.getResult(), kWrite),
             widthOf(from.getElementType()), to.getShape(), strides, denseStrides(to.getShape()));
        return success();
      })
      .Case([&](train::ReverseOp r) {
        auto type = tensor(r.getResult());
        SmallVector<int64_t> natural = denseStrides(type.getShape()), strides = natural;
        int64_t offset = 0;
        for (int64_t axis : r.getAxes()) {
          offset += natural[axis] * (type.getDimSize(axis) - 1);
          strides[axis] = -natural[axis];
        }
        locations[r.getResult()] = placeResult(r.getResult());
        copy(op->getLoc(), operand(r.getOperand(), kRead), operand(r.getResult(), kWrite),
             widthOf(type.getElementType()), type.getShape(), strides, natural, offset);
        return success();
      })
      .Case([&](train::PadOp p) {
        auto from = tensor(p.getOperand()), to = tensor(p.getResult());
        int64_t width = widthOf(from.getElementType());
        SmallVector<int64_t> strides = denseStrides(to.getShape());
        int64_t offset = 0;
        for (size_t d = 0; d < strides.size(); ++d) {
          offset += p.getLow()[d] * strides[d];
          strides[d] *= p.getInterior()[d] + 1;
        }
        locations[p.getResult()] = placeResult(p.getResult());
        Operand whole = operand(p.getResult(), kWrite);
        call(op->getLoc(), "zero", {whole}, {});
        Operand inner = whole;
        inner.offset += offset * width;
        inner.bytes -= offset * width;
        copy(op->getLoc(), operand(p.getOperand(), kRead), inner, width, from.getShape(), denseStrides(from.getShape()),
             strides);
        return success();
      })
      .Case([&](train::GatherOp g) {
        auto data = tensor(g.getData());
        int64_t axis = g.getAxis();
        return simple("gather", {{"outer", product(data.getShape().take_front(axis))},
                                 {"rows", data.getDimSize(axis)},
                                 {"inner", product(data.getShape().drop_front(axis + 1))},
                                 {"count", tensor(g.getIndices()).getNumElements()},
                                 {"element_bytes", widthOf(data.getElementType())},
                                 {"index_bytes", widthOf(tensor(g.getIndices()).getElementType())}});
      })
      .Case([&](train::ScatterAddOp s) {
        auto data = tensor(s.getResult());
        int64_t axis = s.getAxis();
        Integers shape{{"outer", product(data.getShape().take_front(axis))},
                       {"rows", data.getDimSize(axis)},
                       {"inner", product(data.getShape().drop_front(axis + 1))},
                       {"count", tensor(s.getIndices()).getNumElements()},
                       {"index_bytes", widthOf(tensor(s.getIndices()).getElementType())}};
        appendType(shape, s.getResult());
        return simple("scatter_add", shape);
      })
      .Case([&](train::SumPartialsOp s) {
        auto from = tensor(s.getOperand());
        Integers shape{{"p", from.getDimSize(0)}, {"c", from.getNumElements() / from.getDimSize(0)}};
        appendType(shape, s.getResult());
        return simple("sum_partials", shape);
      })
      .Case([&](train::CumSumOp c) {
        auto type = tensor(c.getResult());
        int64_t axis = c.getAxis();
        return simple("cumsum", {{"outer", product(type.getShape().take_front(axis))},
                                 {"n", type.getDimSize(axis)},
                                 {"inner", product(type.getShape().drop_front(axis + 1))},
                                 {"exclusive", c.getExclusive()},
                                 {"reverse", c.getReverse()},
                                 {"type", elementTypeOf(type.getElementType())}});
      })
      .Case([&](train::DropoutOp d) {
        return simple("dropout", {{"count", tensor(d.getResult()).getNumElements()}, {"node", int64_t(d.getNode())}},
                      {{"ratio", d.getRatio().convertToDouble()}});
      })
      .Case<train::ConvOp, train::ConvGradInputOp, train::ConvGradFilterOp>([&](auto c) {
        ArrayRef<int64_t> input, filter, result;
        StringRef name = "conv";
        if constexpr (std::is_same_v<decltype(c), train::ConvOp>) {
          input = tensor(c.getInput()).getShape(), filter = tensor(c.getFilter()).getShape();
          result = tensor(c.getResult()).getShape();
        } else if constexpr (std::is_same_v<decltype(c), train::ConvGradInputOp>) {
          name = "conv_grad_input";
          input = tensor(c.getResult()).getShape(), filter = tensor(c.getFilter()).getShape();
          result = tensor(c.getGradient()).getShape();
        } else {
          name = "conv_grad_filter";
          input = tensor(c.getInput()).getShape(), filter = tensor(c.getResult()).getShape();
          result = tensor(c.getGradient()).getShape();
        }
        Integers shape{{"o", filter[0]}, {"groups", int64_t(c.getGroups())}};
        convolution(shape, input, filter.drop_front(2), result, c.getStrides(), c.getPads(), c.getDilations());
        if (op->hasAttr(train::kTf32Attr)) shape.push_back({"tf32", 1});
        return simple(name, shape);
      })
      .Case<train::MaxPoolOp, train::MaxPoolGradOp>([&](auto p) {
        ArrayRef<int64_t> result;
        StringRef name = "max_pool";
        if constexpr (std::is_same_v<decltype(p), train::MaxPoolOp>) {
          result = tensor(p.getResult()).getShape();
        } else {
          name = "max_pool_grad";
          result = tensor(p.getGradient()).getShape();
        }
        Integers shape;
        convolution(shape, tensor(p.getInput()).getShape(), p.getKernel(), result, p.getStrides(), p.getPads(),
                    p.getDilations());
        return simple(name, shape);
      })
      .Case([&](train::GlobalSumOp g) {
        if (ranks == 1) {
          locations[g.getResult()] = locate(g.getOperand());
          return success();
        }
        auto type = tensor(g.getResult());
        locations[g.getResult()] = placeResult(g.getResult());
        instruction<AllReduceOp>(op->getLoc(), kCommunicationStream, labelOf(op->getLoc()),
                                 {operand(g.getOperand(), kRead), operand(g.getResult(), kWrite)}, kReductions,
                                 elementTypeOf(type.getElementType()), type.getNumElements(), "",
                                 plan::Collective::FORWARD);
        return success();
      })
      .Default([&](Operation* other) {
        return other->emitError() << "'" << other->getName() << "' has no kernel and no library function";
      });
}

LogicalResult Lowering::lowerFusion(train::FusionOp op) {
  SmallVector<Operand> operands;
  llvm::DenseSet<Value> taken;
  for (Value v : op.getOperands()) operands.push_back(operand(v, kRead));
  for (Value result : op.getResults()) {
    Location at = placeResult(result);
    // A fresh buffer may be spared: the result may take over the memory of an operand that nobody reads afterwards.
    if (ownedBuffers.contains(at.buffer) && at.offset == 0)
      for (int64_t i : op.getElementwise()) {
        Value candidate = op.getOperand(i);
        Location theirs = locate(candidate);
        if (candidate.getType() != result.getType() || !ownedBuffers.contains(theirs.buffer) ||
            theirs.rowStride != at.rowStride || theirs.offset || taken.contains(theirs.buffer) ||
            lastUse.lookup(theirs.buffer) > position[op] ||
            llvm::count_if(op.getOperands(), [&](Value v) { return locate(v).buffer == theirs.buffer; }) > 1)
          continue;
        at.buffer.getDefiningOp()->erase();
        ownedBuffers.erase(at.buffer);
        at = theirs;
        break;
      }
    taken.insert(at.buffer);
    lastUse[at.buffer] = std::max(lastUse.lookup(at.buffer), lastUse.lookup(result));
    locations[result] = at;
    operands.push_back(operand(result, kWrite));
  }
  launch(op, operands, labelOf(op.getLoc()));
  return success();
}

}  // namespace sheaf::plan_ir
