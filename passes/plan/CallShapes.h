// Library calls of the ops that are matrix products or windows: sizes, types and flags. How operands lie in memory is
// the lowering's matter.
#pragma once

#include "passes/plan/PlanBuilder.h"

namespace sheaf::plan_ir {

inline mlir::RankedTensorType tensor(mlir::Value v) {
  return llvm::cast<mlir::RankedTensorType>(v.getType());
}

// Of train.matmul and train.matmul_epilogue.
template <typename Product>
plan::GemmCall gemmShape(Product op) {
  auto a = tensor(op.getLhs()), c = tensor(op.getResult());
  const int64_t rank = c.getRank();
  plan::GemmCall call;
  call.m = c.getDimSize(rank - 2), call.n = c.getDimSize(rank - 1);
  call.k = a.getDimSize(op.getTransposeA() ? rank - 2 : rank - 1);
  call.batch = rank == 3 ? c.getDimSize(0) : 1;
  call.transposeA = op.getTransposeA(), call.transposeB = op.getTransposeB();
  call.tf32 = op->hasAttr(train::kTf32Attr);
  call.type = elementTypeOf(op.getLhs());
  return call;
}

// Random numbers of a rank, one of `pieces` of the batch.
template <typename Op>
plan::RandomShape randomShape(Op op, int64_t pieces) {
  const int64_t blocks = op.getBlocks();
  plan::RandomShape shape{.count = tensor(op.getResult()).getNumElements(), .node = int64_t(op.getNode())};
  shape.whole = blocks == 0;
  if (blocks > 1) shape.blocks = blocks, shape.pieces = pieces;
  return shape;
}

// Of train.attention and its gradient.
template <typename Op>
void setAttentionShape(plan::AttentionShape& call, Op op) {
  auto q = tensor(op.getQuery()), k = tensor(op.getKey()), v = tensor(op.getValue());
  call.b = q.getDimSize(0), call.s = q.getDimSize(1), call.t = k.getDimSize(1);
  call.h = q.getDimSize(2), call.g = k.getDimSize(2), call.d = q.getDimSize(3), call.e = v.getDimSize(3);
  call.causal = op.getCausal();
  call.window = op.getWindow().value_or(0);
  if (mlir::Value mask = op.getMask()) {
    call.mask = true;
    call.maskB = tensor(mask).getDimSize(0), call.maskH = tensor(mask).getDimSize(1);
  }
  call.scale = op.getScale().convertToDouble();
  call.type = elementTypeOf(op.getQuery());
}

template <typename Op>
void setWindow(plan::WindowShape& call, Op op, mlir::Value input, llvm::ArrayRef<int64_t> window, mlir::Value result) {
  llvm::ArrayRef<int64_t> image = tensor(input).getShape(), to = tensor(result).getShape();
  const train::ImageLayout layout(op.getChannelsLast());
  call.channelsLast = op.getChannelsLast();
  call.n = image[0], call.c = image[layout.channels];
  call.h = image[layout.rows], call.w = image[layout.rows + 1];
  call.kh = window[0], call.kw = window[1];
  call.oh = to[layout.rows], call.ow = to[layout.rows + 1];
  call.strideH = op.getStrides()[0], call.strideW = op.getStrides()[1];
  call.padTop = op.getPads()[0], call.padLeft = op.getPads()[1];
  call.padBottom = op.getPads()[2], call.padRight = op.getPads()[3];
  call.dilationH = op.getDilations()[0], call.dilationW = op.getDilations()[1];
}

// A convolution or one of its gradients; the values are those of the convolution, or of their types.
template <typename Call, typename Op>
Call convolutionShape(Op op, mlir::Value input, mlir::Value filter, mlir::Value result) {
  Call call;
  setWindow(call, op, input, tensor(filter).getShape().drop_front(2), result);
  call.o = tensor(filter).getDimSize(0);
  call.groups = op.getGroups();
  call.tf32 = op->hasAttr(train::kTf32Attr);
  return call;
}
inline plan::ConvCall convolutionCall(train::ConvOp c) {
  return convolutionShape<plan::ConvCall>(c, c.getInput(), c.getFilter(), c.getResult());
}
inline plan::ConvGradInputCall convolutionCall(train::ConvGradInputOp c) {
  return convolutionShape<plan::ConvGradInputCall>(c, c.getResult(), c.getFilter(), c.getGradient());
}
inline plan::ConvGradFilterCall convolutionCall(train::ConvGradFilterOp c) {
  return convolutionShape<plan::ConvGradFilterCall>(c, c.getInput(), c.getResult(), c.getGradient());
}

}  // namespace sheaf::plan_ir
