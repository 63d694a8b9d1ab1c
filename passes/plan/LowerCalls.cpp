// Lowers ops that are library calls, kernels or views.
#include "llvm/ADT/TypeSwitch.h"
#include "passes/plan/CallShapes.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

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

// Elements of a token of an attention operand [B, S, H, D].
int64_t tokenElements(Value value) {
  return product(tensor(value).getShape().take_back(2));
}

// Whether every reader of rows of so many elements, a slice of the last dimension, can read them in place: attentions,
// through reshapes, where a row is a token. A row that is only one head of a token is not.
bool readInPlace(Value value, int64_t rowElements) {
  return llvm::all_of(value.getUses(), [&](OpOperand& use) {
    if (auto reshape = dyn_cast<train::ReshapeOp>(use.getOwner())) return readInPlace(reshape.getResult(), rowElements);
    return isa<train::AttentionOp, train::AttentionGradOp>(use.getOwner()) && use.getOperandNumber() < 3 &&
           tokenElements(use.get()) == rowElements;
  });
}

template <typename Call, typename Op>
Call pooling(Op op, Value input, Value result) {
  Call call;
  setWindow(call, op, input, op.getKernel(), result);
  return call;
}

// What train.matmul and train.matmul_epilogue share: the result's place and the shape.
template <typename Product>
plan::GemmCall productCall(Lowering& l, Product op) {
  auto a = tensor(op.getLhs()), b = tensor(op.getRhs());
  const int64_t rank = a.getRank();
  l.locations[op.getResult()] = l.placeResult(op.getResult());
  plan::GemmCall call = gemmShape(op);
  call.lda = leadingDimension(l, op.getLhs()), call.ldb = leadingDimension(l, op.getRhs());
  call.ldc = leadingDimension(l, op.getResult());
  call.strideA = a.getDimSize(rank - 2) * call.lda, call.strideB = b.getDimSize(rank - 2) * call.ldb;
  call.strideC = call.m * call.ldc;
  return call;
}

LogicalResult lowerMatMul(Lowering& l, train::MatMulOp op) {
  plan::GemmCall call = productCall(l, op);
  l.call(op.getLoc(), call,
         {l.operand(op.getLhs(), kRead), l.operand(op.getRhs(), kRead), l.operand(op.getResult(), kWrite)});
  return success();
}

plan::GemmEpilogue epilogueOf(train::MatMulEpilogue epilogue) {
  switch (epilogue) {
    case train::MatMulEpilogue::bias:
      return plan::GemmEpilogue::kBias;
    case train::MatMulEpilogue::gelu:
      return plan::GemmEpilogue::kGelu;
    case train::MatMulEpilogue::bias_gelu:
      return plan::GemmEpilogue::kBiasGelu;
    case train::MatMulEpilogue::gelu_grad:
      return plan::GemmEpilogue::kGeluGrad;
    case train::MatMulEpilogue::sum_lhs:
      return plan::GemmEpilogue::kSumA;
    case train::MatMulEpilogue::sum_rhs:
      return plan::GemmEpilogue::kSumB;
  }
  llvm_unreachable("every epilogue has a case");
}

LogicalResult lowerMatMulEpilogue(Lowering& l, train::MatMulEpilogueOp op) {
  plan::GemmCall call = productCall(l, op);
  call.epilogue = epilogueOf(op.getEpilogue());
  SmallVector<Operand> operands;
  for (Value v : op.getOperands()) operands.push_back(l.operand(v, kRead));
  operands.push_back(l.operand(op.getResult(), kWrite));
  if (Value also = op.getAlso()) {
    l.locations[also] = l.placeResult(also);
    operands.push_back(l.operand(also, kWrite));
  }
  l.call(op.getLoc(), call, operands);
  return success();
}

// What train.attention and its gradient share.
template <typename Op>
void setAttention(Lowering& l, plan::AttentionShape& call, Op op) {
  setAttentionShape(call, op);
  call.queryRow = tokenStride(l, op.getQuery()), call.keyRow = tokenStride(l, op.getKey());
  call.valueRow = tokenStride(l, op.getValue()), call.resultRow = tokenStride(l, op.getResult());
}

LogicalResult lowerAttention(Lowering& l, train::AttentionOp op) {
  l.locations[op.getResult()] = l.placeResult(op.getResult());
  l.locations[op.getLogSumExp()] = l.placeResult(op.getLogSumExp());
  SmallVector<Operand> operands;
  for (Value v : op.getOperands()) operands.push_back(l.operand(v, kRead));
  operands.push_back(l.operand(op.getResult(), kWrite));
  operands.push_back(l.operand(op.getLogSumExp(), kWrite));
  plan::AttentionCall call;
  setAttention(l, call, op);
  l.call(op.getLoc(), call, operands);
  return success();
}

LogicalResult lowerAttentionGrad(Lowering& l, train::AttentionGradOp op) {
  SmallVector<Operand> operands;
  for (Value v : op.getOperands()) operands.push_back(l.operand(v, kRead));
  for (Value v : op.getResults()) {
    l.locations[v] = l.placeResult(v, tokenElements(v));
    operands.push_back(l.operand(v, kWrite));
  }
  plan::AttentionGradCall call;
  setAttention(l, call, op);
  call.gradientRow = tokenStride(l, op.getGradient());
  call.queryGradientRow = tokenStride(l, op.getQueryGradient());
  call.keyGradientRow = tokenStride(l, op.getKeyGradient());
  call.valueGradientRow = tokenStride(l, op.getValueGradient());
  l.call(op.getLoc(), call, operands);
  return success();
}

// Whether a slice is one piece of its operand, and at which element it begins.
bool isContiguous(train::SliceOp op, int64_t& begin) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  SmallVector<int64_t> strides = denseStrides(from.getShape());
  bool several = false;  // elements of dimensions so far
  for (int64_t d = 0; d < from.getRank(); ++d) {
    if (several && to.getDimSize(d) != from.getDimSize(d)) return false;
    if (to.getDimSize(d) > 1 && op.getSteps()[d] != 1) return false;
    several |= to.getDimSize(d) > 1;
    begin += op.getStarts()[d] * strides[d];
  }
  return true;
}

LogicalResult lowerSlice(Lowering& l, train::SliceOp op) {
  auto from = tensor(op.getOperand()), to = tensor(op.getResult());
  int64_t width = widthOf(from.getElementType()), last = from.getRank() - 1;
  Location source = l.locate(op.getOperand());
  bool lastOnly = last >= 0 && op.getSteps()[last] == 1 && !source.rowStride;
  for (int64_t d = 0; d < last; ++d) lastOnly &= from.getDimSize(d) == to.getDimSize(d) && op.getSteps()[d] == 1;
  if (lastOnly && readInPlace(op.getResult(), to.getDimSize(last))) {
    source.offset += op.getStarts()[last] * width;
    source.rowStride = from.getDimSize(last) * width;
    source.rowBytes = to.getDimSize(last) * width;
    l.locations[op.getResult()] = source;
    return success();
  }
  SmallVector<int64_t> strides = denseStrides(from.getShape());
  // Elements that lie side by side are read where they are.
  if (int64_t begin = 0; isContiguous(op, begin) && !source.rowStride && begin * width % plan::kAlignment == 0) {
    source.offset += begin * width;
    l.locations[op.getResult()] = source;
    return success();
  }
  l.locations[op.getResult()] = l.placeResult(op.getResult());
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
    const bool inPlace =
        at.buffer == whole.buffer && (at.rowStride || at.offset == whole.offset + begin * strides[axis] * width);
    if (!inPlace) {
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

plan::ScatterKind kindOf(train::ScatterKind kind) {
  switch (kind) {
    case train::ScatterKind::replace:
      return plan::ScatterKind::kReplace;
    case train::ScatterKind::add:
      return plan::ScatterKind::kAdd;
    case train::ScatterKind::mul:
      return plan::ScatterKind::kMul;
    case train::ScatterKind::min:
      return plan::ScatterKind::kMin;
    case train::ScatterKind::max:
      return plan::ScatterKind::kMax;
  }
  llvm_unreachable("every kind has a case");
}

// Which entries have indices of their own: where there is one entry only, none has.
template <typename Call>
void setOwnIndices(Call& call, ArrayRef<int64_t> indices, int64_t axis) {
  call.indexOuter = product(indices.take_front(axis)) > 1;
  call.indexInner = product(indices.drop_front(axis + 1)) > 1;
}

}  // namespace

void Lowering::copy(mlir::Location loc, const Operand& source, const Operand& destination, int64_t width,
                    ArrayRef<int64_t> sizes, ArrayRef<int64_t> sourceStrides, ArrayRef<int64_t> destinationStrides,
                    int64_t sourceOffset, bool zero) {
  plan::CopyCall strided{.elementBytes = width, .sourceOffset = sourceOffset, .zero = zero};
  for (size_t d = 0; d < sizes.size(); ++d)
    strided.dimensions.push_back({sizes[d], sourceStrides[d], destinationStrides[d]});
  call(loc, strided, {source, destination});
}

LogicalResult Lowering::lowerOp(Operation* op) {
  // A call whose operands are those of the op, then its results, then so many bytes of workspace.
  auto simple = [&](const plan::AnyCall& simply, int64_t workspace = 0) {
    SmallVector<Operand> operands;
    for (Value v : op->getOperands()) operands.push_back(operand(v, kRead));
    for (Value v : op->getResults()) {
      locations[v] = placeResult(v);
      operands.push_back(operand(v, kWrite));
    }
    if (workspace) operands.push_back({buffer("packed", plan::WORKSPACE, workspace), 0, workspace, 0, kWrite});
    call(op->getLoc(), simply, operands);
    return success();
  };
  for (Value v : op->getResults())
    if (tensor(v).getRank() > 8) return op->emitError("tensors of more than 8 dimensions are not supported");

  bool isProduct =
      isa<train::MatMulOp, train::MatMulEpilogueOp, train::AttentionOp, train::AttentionGradOp, train::ConvOp,
          train::ConvGradInputOp, train::ConvGradFilterOp, train::MaxPoolOp, train::MaxPoolGradOp>(op);
  if (isProduct && tensor(op->getResult(0)).getElementType().isF64())
    return op->emitError("products and pooling of f64 are not supported: export the model in f32");

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
        call(op->getLoc(), plan::ZeroCall(), {whole});
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
        return simple(plan::GatherCall{.outer = product(data.getShape().take_front(axis)),
                                       .rows = data.getDimSize(axis),
                                       .inner = product(data.getShape().drop_front(axis + 1)),
                                       .count = tensor(g.getIndices()).getNumElements(),
                                       .elementBytes = widthOf(data.getElementType()),
                                       .indexBytes = widthOf(tensor(g.getIndices()).getElementType())});
      })
      .Case([&](train::ScatterAddOp s) {
        auto data = tensor(s.getResult());
        int64_t axis = s.getAxis();
        return simple(plan::ScatterAddCall{.outer = product(data.getShape().take_front(axis)),
                                           .rows = data.getDimSize(axis),
                                           .inner = product(data.getShape().drop_front(axis + 1)),
                                           .count = tensor(s.getIndices()).getNumElements(),
                                           .indexBytes = widthOf(tensor(s.getIndices()).getElementType()),
                                           .type = elementTypeOf(s.getResult())});
      })
      .Case([&](train::GatherElementsOp g) {
        auto data = tensor(g.getData()), indices = tensor(g.getIndices());
        int64_t axis = g.getAxis();
        plan::GatherCall gather{.outer = product(data.getShape().take_front(axis)),
                                .rows = data.getDimSize(axis),
                                .inner = product(data.getShape().drop_front(axis + 1)),
                                .count = indices.getDimSize(axis),
                                .elementBytes = widthOf(data.getElementType()),
                                .indexBytes = widthOf(indices.getElementType())};
        setOwnIndices(gather, indices.getShape(), axis);
        return simple(gather);
      })
      .Case([&](train::ScatterOp s) {
        auto data = tensor(s.getResult()), indices = tensor(s.getIndices());
        int64_t axis = s.getAxis();
        plan::ScatterCall scatter{.outer = product(data.getShape().take_front(axis)),
                                  .rows = data.getDimSize(axis),
                                  .inner = product(data.getShape().drop_front(axis + 1)),
                                  .count = indices.getDimSize(axis),
                                  .indexBytes = widthOf(indices.getElementType()),
                                  .kind = kindOf(s.getKind()),
                                  .data = bool(s.getData()),
                                  .type = elementTypeOf(s.getResult())};
        setOwnIndices(scatter, indices.getShape(), axis);
        return simple(scatter);
      })
      .Case([&](train::TopKOp t) {
        auto from = tensor(t.getOperand());
        int64_t axis = t.getAxis();
        return simple(plan::TopKCall{.outer = product(from.getShape().take_front(axis)),
                                     .n = from.getDimSize(axis),
                                     .inner = product(from.getShape().drop_front(axis + 1)),
                                     .k = int64_t(t.getK()),
                                     .largest = t.getLargest(),
                                     .type = elementTypeOf(t.getOperand())});
      })
      .Case([&](train::SumPartialsOp s) {
        auto from = tensor(s.getOperand());
        const int64_t columns = from.getNumElements() / from.getDimSize(0);
        const int64_t leaves = tensor(s.getResult()).getNumElements() / columns, rows = from.getDimSize(0) / leaves;
        locations[s.getResult()] = placeResult(s.getResult());
        // One call for each leaf, which has its own rows.
        for (int64_t leaf = 0; leaf < leaves; ++leaf) {
          Operand source = operand(s.getOperand(), kRead), sums = operand(s.getResult(), kWrite);
          source.bytes /= leaves, sums.bytes /= leaves;
          source.offset += leaf * source.bytes, sums.offset += leaf * sums.bytes;
          call(op->getLoc(), plan::SumPartialsCall{.p = rows, .c = columns, .type = elementTypeOf(s.getResult())},
               {source, sums});
        }
        return success();
      })
      .Case([&](train::CumSumOp c) {
        auto type = tensor(c.getResult());
        int64_t axis = c.getAxis();
        return simple(plan::CumSumCall{.outer = product(type.getShape().take_front(axis)),
                                       .n = type.getDimSize(axis),
                                       .inner = product(type.getShape().drop_front(axis + 1)),
                                       .exclusive = c.getExclusive(),
                                       .reverse = c.getReverse(),
                                       .type = elementTypeOf(c.getResult())});
      })
      .Case([&](train::DropoutOp d) {
        return simple(plan::DropoutCall{randomShape(d, pieces()), d.getRatio().convertToDouble()});
      })
      .Case([&](train::RandomUniformOp r) {
        locations[r.getResult()] = placeResult(r.getResult());
        call(op->getLoc(), plan::RandomUniformCall{randomShape(r, pieces())}, {operand(r.getResult(), kWrite)});
        return success();
      })
      .Case<train::ConvOp, train::ConvGradInputOp, train::ConvGradFilterOp>([&](auto c) {
        const auto convolution = convolutionCall(c);
        return simple(convolution, convolution.packedBytes());
      })
      .Case([&](train::MaxPoolOp p) { return simple(pooling<plan::MaxPoolCall>(p, p.getInput(), p.getResult())); })
      .Case([&](train::MaxPoolIndicesOp p) {
        return simple(pooling<plan::MaxPoolIndicesCall>(p, p.getInput(), p.getResult()));
      })
      .Case([&](train::MaxPoolGradOp p) {
        return simple(pooling<plan::MaxPoolGradCall>(p, p.getInput(), p.getGradient()));
      })
      .Case([&](train::LossScaleOp l) {
        const Operand scale = updateScalar(plan::UpdateScalarCall());
        locations[l.getResult()] = {scale.buffer, scale.offset};
        return success();
      })
      .Case([&](train::GlobalSumOp g) {
        if (ranks == 1) {
          locations[g.getResult()] = locate(g.getOperand());
          return success();
        }
        auto type = tensor(g.getResult());
        const std::optional<Operand> chain = chainOf(g.getResult());
        locations[g.getResult()] = chain ? Location{chain->buffer} : placeResult(g.getResult());
        sumOverRanks(op->getLoc(), labelOf(op->getLoc()), elementTypeOf(type.getElementType()), type.getNumElements(),
                     operand(g.getOperand(), kRead), chain ? *chain : operand(g.getResult(), kWrite));
        return success();
      })
      .Case([&](train::GatherRowsOp g) {
        if (ranks == 1) {
          locations[g.getResult()] = locate(g.getOperand());
          return success();
        }
        const std::string label = labelOf(op->getLoc());
        Value whole = buffer(label.empty() ? "rows" : label, plan::ACTIVATIONS, bytesOf(g.getResult()));
        gather(op->getLoc(), label, "", elementTypeOf(tensor(g.getResult()).getElementType()),
               plan::Collective::FORWARD, operand(g.getOperand(), kRead), ranks, bytesOf(g.getResult()), whole,
               Value());
        locations[g.getResult()] = {whole};
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
    // A fresh buffer may be spared: the result may take over the memory of an operand that is not read afterwards. That
    // of a concatenation has other pieces, too.
    const uint64_t bytes = at.rowStride ? bytesOf(result) / at.rowBytes * at.rowStride : bytesOf(result);
    if (ownedBuffers.contains(at.buffer) && at.offset == 0 && at.buffer.getDefiningOp<BufferOp>().getBytes() == bytes)
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
