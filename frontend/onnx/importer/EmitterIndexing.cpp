// The emitter's ops that take indices.
#include "frontend/onnx/importer/Emitter.h"

using namespace mlir;

namespace sheaf::frontend {

using Shape = SmallVector<int64_t>;

Tensor Emitter::wideIndices(const Tensor& indices) {
  if (!indices) return {};
  if (indices.isFloat() || indices.isBool()) return error() << "indices must be integers", Tensor();
  bool wide = indices.elementType().isInteger(32) || indices.elementType().isInteger(64);
  return wide ? indices : cast(indices, builder.getI64Type());
}

Tensor Emitter::gatherElements(const Tensor& data, Tensor indices, int64_t axis) {
  return apply({data, wideIndices(indices)},
               [&](ValueRange v) { return train::GatherElementsOp::create(builder, loc, v[0], v[1], axis); });
}

Tensor Emitter::gatherWithin(const Tensor& data, const Tensor& positions) {
  if (!data || !positions) return {};
  const int64_t n = positions.dim(0);
  Shape each(data.rank(), 1), shape(positions.shape());
  each[0] = n, each[1] = n ? positions.count() / n : 0;
  llvm::append_range(shape, data.shape().drop_front(2));
  return reshape(gatherElements(data, reshape(positions, each), 1), shape);
}

Tensor Emitter::scatter(train::ScatterKind kind, const Tensor& data, Tensor indices, const Tensor& update,
                        int64_t axis) {
  return apply({wideIndices(indices), update, data}, [&](ValueRange v) {
    return train::ScatterOp::create(builder, loc, v[2].getType(), kind, v[0], v[1], v[2], axis);
  });
}

Tensor Emitter::scatterIntoZeros(ArrayRef<int64_t> shape, Tensor indices, const Tensor& update, int64_t axis) {
  if (!update) return {};
  return apply({wideIndices(indices), update}, [&](ValueRange v) {
    return train::ScatterOp::create(builder, loc, type(shape, update.elementType()), train::ScatterKind::replace, v[0],
                                    v[1], Value(), axis);
  });
}

Tensor Emitter::topK(const Tensor& x, int64_t axis, int64_t k, bool largest) {
  return apply({x}, [&](ValueRange v) { return train::TopKOp::create(builder, loc, v[0], axis, k, largest); });
}

Tensor Emitter::gather(const Tensor& data, Tensor indices, int64_t axis) {
  indices = wideIndices(indices);
  if (!data || !indices || !checkAxis(axis, data.rank())) return {};
  Shape shape(data.shape().take_front(axis));
  llvm::append_range(shape, indices.shape());
  llvm::append_range(shape, data.shape().drop_front(axis + 1));
  if (!checkShape(shape)) return {};
  if (!checkIndices(indices, data.shape(), axis)) return {};
  // One index is a slice: no scatter in its gradient.
  if (indices.constant() && indices.count() == 1 && !data.constant()) {
    const int64_t index = indices.constant()->splatInteger();
    return reshape(sliceAlong(data, axis, index < 0 ? index + data.dim(axis) : index, 1), shape);
  }
  return apply({data, indices}, [&](ValueRange v) { return train::GatherOp::create(builder, loc, v[0], v[1], axis); });
}

}  // namespace sheaf::frontend
