// Lowers ops that are library calls or kernels.
#include "ir/Train/Limits.h"
#include "llvm/ADT/TypeSwitch.h"
#include "passes/plan/LowerOps.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

// Elements from one row to the next, as they lie in memory; a row are the last `dimensions`.
int64_t elementsApart(const Lowering& lowering, Value value, int64_t dimensions) {
  auto type = tensor(value);
  Location at = lowering.places.of(value);
  return at.rowStride ? at.rowStride / widthOf(type.getElementType()) : product(type.getShape().take_back(dimensions));
}

// Of an attention operand [B, S, H, D] a token is a row.
int64_t tokenStride(const Lowering& lowering, Value value) {
  return elementsApart(lowering, value, 2);
}

int64_t leadingDimension(const Lowering& lowering, Value value) {
  return elementsApart(lowering, value, 1);
}

SmallVector<Operand> readsOf(Lowering& l, Operation* op) {
  SmallVector<Operand> operands;
  for (Value v : op->getOperands()) operands.push_back(l.places.operand(v, kRead));
  return operands;
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
  l.places.place(op.getResult());
  plan::GemmCall call = gemmShape(op);
  call.lda = leadingDimension(l, op.getLhs()), call.ldb = leadingDimension(l, op.getRhs());
  call.ldc = leadingDimension(l, op.getResult());
  call.strideA = a.getDimSize(rank - 2) * call.lda, call.strideB = b.getDimSize(rank - 2) * call.ldb;
  call.strideC = call.m * call.ldc;
  return call;
}

LogicalResult lower(Lowering& l, train::MatMulOp op) {
  plan::GemmCall call = productCall(l, op);
  l.builder.call(labelOf(op), call,
                 {l.places.operand(op.getLhs(), kRead), l.places.operand(op.getRhs(), kRead),
                  l.places.operand(op.getResult(), kWrite)});
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

LogicalResult lower(Lowering& l, train::MatMulEpilogueOp op) {
  plan::GemmCall call = productCall(l, op);
  call.epilogue = epilogueOf(op.getEpilogue());
  SmallVector<Operand> operands = readsOf(l, op);
  operands.push_back(l.places.operand(op.getResult(), kWrite));
  if (Value also = op.getAlso()) {
    operands.push_back(l.places.place(also));
  }
  l.builder.call(labelOf(op), call, operands);
  return success();
}

// What train.attention and its gradient share.
template <typename Op>
void setAttention(Lowering& l, plan::AttentionShape& call, Op op) {
  setAttentionShape(call, op);
  call.queryRow = tokenStride(l, op.getQuery()), call.keyRow = tokenStride(l, op.getKey());
  call.valueRow = tokenStride(l, op.getValue()), call.resultRow = tokenStride(l, op.getResult());
}

LogicalResult lower(Lowering& l, train::AttentionOp op) {
  l.places.place(op.getResult());
  plan::AttentionCall call;
  setAttention(l, call, op);
  SmallVector<Operand> operands = readsOf(l, op);
  operands.push_back(l.places.operand(op.getResult(), kWrite));
  operands.push_back(l.places.place(op.getLogSumExp()));
  l.builder.call(labelOf(op), call, operands);
  return success();
}

LogicalResult lower(Lowering& l, train::AttentionGradOp op) {
  SmallVector<Operand> operands = readsOf(l, op);
  for (Value v : op.getResults()) operands.push_back(l.places.place(v, tokenElements(v)));
  plan::AttentionGradCall call;
  setAttention(l, call, op);
  call.gradientRow = tokenStride(l, op.getGradient());
  call.queryGradientRow = tokenStride(l, op.getQueryGradient());
  call.keyGradientRow = tokenStride(l, op.getKeyGradient());
  call.valueGradientRow = tokenStride(l, op.getValueGradient());
  l.builder.call(labelOf(op), call, operands);
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

// A call whose operands are those of the op, then its results, then so many bytes of workspace.
LogicalResult callOf(Lowering& l, Operation* op, const plan::AnyCall& call, int64_t workspace = 0) {
  SmallVector<Operand> operands = readsOf(l, op);
  for (Value v : op->getResults()) operands.push_back(l.places.place(v));
  if (workspace) operands.push_back({l.builder.buffer("packed", plan::WORKSPACE, workspace), 0, workspace, 0, kWrite});
  l.builder.call(labelOf(op), call, operands);
  return success();
}

LogicalResult lower(Lowering& l, train::GatherOp op) {
  auto data = tensor(op.getData());
  int64_t axis = op.getAxis();
  return callOf(l, op,
                plan::GatherCall{.outer = product(data.getShape().take_front(axis)),
                                 .rows = data.getDimSize(axis),
                                 .inner = product(data.getShape().drop_front(axis + 1)),
                                 .count = tensor(op.getIndices()).getNumElements(),
                                 .elementBytes = widthOf(data.getElementType()),
                                 .indexBytes = widthOf(tensor(op.getIndices()).getElementType())});
}

LogicalResult lower(Lowering& l, train::ScatterAddOp op) {
  auto data = tensor(op.getResult());
  int64_t axis = op.getAxis();
  return callOf(l, op,
                plan::ScatterAddCall{.outer = product(data.getShape().take_front(axis)),
                                     .rows = data.getDimSize(axis),
                                     .inner = product(data.getShape().drop_front(axis + 1)),
                                     .count = tensor(op.getIndices()).getNumElements(),
                                     .indexBytes = widthOf(tensor(op.getIndices()).getElementType()),
                                     .type = elementTypeOf(op.getResult())});
}

LogicalResult lower(Lowering& l, train::GatherElementsOp op) {
  auto data = tensor(op.getData()), indices = tensor(op.getIndices());
  int64_t axis = op.getAxis();
  plan::GatherCall gather{.outer = product(data.getShape().take_front(axis)),
                          .rows = data.getDimSize(axis),
                          .inner = product(data.getShape().drop_front(axis + 1)),
                          .count = indices.getDimSize(axis),
                          .elementBytes = widthOf(data.getElementType()),
                          .indexBytes = widthOf(indices.getElementType())};
  setOwnIndices(gather, indices.getShape(), axis);
  return callOf(l, op, gather);
}

LogicalResult lower(Lowering& l, train::ScatterOp op) {
  auto data = tensor(op.getResult()), indices = tensor(op.getIndices());
  int64_t axis = op.getAxis();
  plan::ScatterCall scatter{.outer = product(data.getShape().take_front(axis)),
                            .rows = data.getDimSize(axis),
                            .inner = product(data.getShape().drop_front(axis + 1)),
                            .count = indices.getDimSize(axis),
                            .indexBytes = widthOf(indices.getElementType()),
                            .kind = kindOf(op.getKind()),
                            .data = bool(op.getData()),
                            .type = elementTypeOf(op.getResult())};
  setOwnIndices(scatter, indices.getShape(), axis);
  return callOf(l, op, scatter);
}

LogicalResult lower(Lowering& l, train::TopKOp op) {
  auto from = tensor(op.getOperand());
  int64_t axis = op.getAxis();
  return callOf(l, op,
                plan::TopKCall{.outer = product(from.getShape().take_front(axis)),
                               .n = from.getDimSize(axis),
                               .inner = product(from.getShape().drop_front(axis + 1)),
                               .k = int64_t(op.getK()),
                               .largest = op.getLargest(),
                               .type = elementTypeOf(op.getOperand())});
}

LogicalResult lower(Lowering& l, train::SumPartialsOp op) {
  auto from = tensor(op.getOperand());
  const int64_t columns = from.getNumElements() / from.getDimSize(0);
  const int64_t leaves = tensor(op.getResult()).getNumElements() / columns, rows = from.getDimSize(0) / leaves;
  const Operand result = l.places.place(op.getResult());
  // One call for each leaf, which has its own rows.
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    Operand source = l.places.operand(op.getOperand(), kRead), sums = result;
    source.bytes /= leaves, sums.bytes /= leaves;
    source.offset += leaf * source.bytes, sums.offset += leaf * sums.bytes;
    l.builder.call(labelOf(op), plan::SumPartialsCall{.p = rows, .c = columns, .type = elementTypeOf(op.getResult())},
                   {source, sums});
  }
  return success();
}

LogicalResult lower(Lowering& l, train::CumSumOp op) {
  auto type = tensor(op.getResult());
  int64_t axis = op.getAxis();
  return callOf(l, op,
                plan::CumSumCall{.outer = product(type.getShape().take_front(axis)),
                                 .n = type.getDimSize(axis),
                                 .inner = product(type.getShape().drop_front(axis + 1)),
                                 .exclusive = op.getExclusive(),
                                 .reverse = op.getReverse(),
                                 .type = elementTypeOf(op.getResult())});
}

LogicalResult lower(Lowering& l, train::DropoutOp op) {
  return callOf(l, op, plan::DropoutCall{randomShape(op, l.pieces()), op.getRatio().convertToDouble()});
}

LogicalResult lower(Lowering& l, train::RandomUniformOp op) {
  l.builder.call(labelOf(op), plan::RandomUniformCall{randomShape(op, l.pieces())}, {l.places.place(op.getResult())});
  return success();
}

LogicalResult lower(Lowering& l, train::MaxPoolOp op) {
  return callOf(l, op, pooling<plan::MaxPoolCall>(op, op.getInput(), op.getResult()));
}

LogicalResult lower(Lowering& l, train::MaxPoolIndicesOp op) {
  return callOf(l, op, pooling<plan::MaxPoolIndicesCall>(op, op.getInput(), op.getResult()));
}

LogicalResult lower(Lowering& l, train::MaxPoolGradOp op) {
  return callOf(l, op, pooling<plan::MaxPoolGradCall>(op, op.getInput(), op.getGradient()));
}

LogicalResult lower(Lowering& l, train::LossScaleOp op) {
  const Operand scale = l.zero.lossScale();
  l.places[op.getResult()] = {scale.buffer, scale.offset};
  return success();
}

LogicalResult lower(Lowering& l, train::GlobalSumOp op) {
  if (l.from.ranks == 1) {
    l.places[op.getResult()] = l.places.of(op.getOperand());
    return success();
  }
  const std::optional<Operand> chain = l.zero.chainOf(op.getResult());
  if (chain) l.places[op.getResult()] = {chain->buffer};
  const Operand sum = chain ? *chain : l.places.place(op.getResult());
  l.zero.sumOverRanks(labelOf(op), elementTypeOf(op.getResult()), l.places.operand(op.getOperand(), kRead), sum);
  return success();
}

LogicalResult lower(Lowering& l, train::GatherRowsOp op) {
  if (l.from.ranks == 1) {
    l.places[op.getResult()] = l.places.of(op.getOperand());
    return success();
  }
  const std::string label = labelOf(op);
  const int64_t bytes = bytesOf(op.getResult());
  const int64_t whole = l.builder.buffer(label.empty() ? "rows" : label, plan::ACTIVATIONS, bytes);
  l.zero.gather({label, "", elementTypeOf(op.getResult()), plan::Collective::FORWARD},
                l.places.operand(op.getOperand(), kRead), l.from.ranks, bytes, whole);
  l.places[op.getResult()] = {whole};
  return success();
}

// A convolution or one of its gradients.
template <typename Op>
LogicalResult lowerConvolution(Lowering& l, Op op) {
  const auto convolution = convolutionCall(op);
  return callOf(l, op, convolution, convolution.packedBytes());
}
LogicalResult lower(Lowering& l, train::ConvOp op) {
  return lowerConvolution(l, op);
}
LogicalResult lower(Lowering& l, train::ConvGradInputOp op) {
  return lowerConvolution(l, op);
}
LogicalResult lower(Lowering& l, train::ConvGradFilterOp op) {
  return lowerConvolution(l, op);
}

LogicalResult lower(Lowering& l, train::FusionOp op) {
  SmallVector<Operand> operands;
  llvm::DenseSet<int64_t> taken;
  for (Value v : op.getOperands()) operands.push_back(l.places.operand(v, kRead));
  for (Value result : op.getResults()) {
    const Location at = l.places.chooseInPlace(op, result, taken);
    taken.insert(at.buffer);
    l.places[result] = at;
    operands.push_back(l.places.operand(result, kWrite));
  }
  l.builder.launch(op, labelOf(op), operands);
  return success();
}

}  // namespace

LogicalResult lowerOp(Lowering& l, Operation* op) {
  for (Value v : op->getResults())
    if (tensor(v).getRank() > train::kMaxPlanRank)
      return op->emitError("tensors of more than ") << train::kMaxPlanRank << " dimensions are not supported";
  const bool isProduct =
      isa<train::MatMulOp, train::MatMulEpilogueOp, train::AttentionOp, train::AttentionGradOp, train::ConvOp,
          train::ConvGradInputOp, train::ConvGradFilterOp, train::MaxPoolOp, train::MaxPoolGradOp>(op);
  if (isProduct && tensor(op->getResult(0)).getElementType().isF64())
    return op->emitError("products and pooling of f64 are not supported: export the model in f32");
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case<train::FusionOp, train::MatMulOp, train::MatMulEpilogueOp, train::AttentionOp, train::AttentionGradOp,
            train::SliceOp, train::ConcatOp, train::ReshapeOp, train::TransposeOp, train::ReverseOp, train::PadOp,
            train::GatherOp, train::ScatterAddOp, train::GatherElementsOp, train::ScatterOp, train::TopKOp,
            train::SumPartialsOp, train::CumSumOp, train::DropoutOp, train::RandomUniformOp, train::MaxPoolOp,
            train::MaxPoolIndicesOp, train::MaxPoolGradOp, train::LossScaleOp, train::GlobalSumOp, train::GatherRowsOp,
            train::ConvOp, train::ConvGradInputOp, train::ConvGradFilterOp>([&](auto known) { return lower(l, known); })
      .Default([&](Operation* other) {
        return other->emitError() << "'" << other->getName() << "' has no kernel and no library function";
      });
}

}  // namespace sheaf::plan_ir
