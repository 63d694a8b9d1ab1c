#include "frontend/onnx/ops/Embedding.h"

using namespace mlir;

namespace sheaf::frontend {

Tensor isPadding(Emitter& e, const Tensor& indices, int64_t padding, ArrayRef<int64_t> shape) {
  Shape column(indices.shape());
  column.push_back(1);
  Tensor wide = e.cast(indices, e.ops().getI64Type());
  Tensor same = e.compare(train::ComparePredicate::eq, wide, e.splatLike(wide, double(padding)));
  return e.expand(e.reshape(same, column), shape);
}

Tensor stopPaddingGradient(Emitter& e, const Tensor& rows, const Tensor& indices, int64_t padding) {
  if (!rows || padding < 0) return rows;
  if (indices.constant() && !llvm::is_contained(indices.constant()->integers(), padding)) return rows;
  return e.select(isPadding(e, indices, padding, rows.shape()), e.stopGradient(rows), rows);
}

void warnOfFrequency(Importer& importer) {
  if (importer.warned.insert("frequency").second)
    emitWarning(importer.emit.location()) << "scale_grad_by_freq of the embedding has no effect: the gradients of its "
                                             "rows are not divided by how often they occur";
}

}  // namespace sheaf::frontend
