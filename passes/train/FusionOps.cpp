#include "passes/train/FusionOps.h"

using namespace mlir;

namespace sheaf::train {

static RankedTensorType tensor(Value v) {
  return cast<RankedTensorType>(v.getType());
}

int64_t columnsOf(Value v) {
  return tensor(v).getRank() ? tensor(v).getShape().back() : 1;
}
int64_t rowsOf(Value v) {
  int64_t columns = columnsOf(v);
  return columns ? tensor(v).getNumElements() / columns : 0;
}

int64_t rowsOfBlock(int64_t rows, int64_t columns) {
  // 128 KiB of f32, so that a call is worth its overhead and its data fits a cache.
  constexpr int64_t kElements = 32768;
  return std::clamp<int64_t>(rows / kBlocks, 1, std::max<int64_t>(1, kElements / columns));
}

bool isRowReduction(Operation* op) {
  auto reduce = dyn_cast<ReduceOp>(op);
  return reduce && reduce.getAxes().size() == 1 && reduce.getAxes()[0] == tensor(reduce.getOperand()).getRank() - 1;
}

bool isColumnReduction(Operation* op) {
  auto reduce = dyn_cast<ReduceOp>(op);
  if (!reduce || isRowReduction(op) || reduce.getKind() != ReduceKind::sum) return false;
  ArrayRef<int64_t> shape = tensor(reduce.getOperand()).getShape();
  if (shape.empty()) return false;
  for (int64_t d = 0; d + 1 < static_cast<int64_t>(shape.size()); ++d)
    if (shape[d] != 1 && !llvm::is_contained(reduce.getAxes(), d)) return false;
  return shape.back() == 1 || !llvm::is_contained(reduce.getAxes(), static_cast<int64_t>(shape.size()) - 1);
}

bool keepsRows(ReshapeOp op) {
  return columnsOf(op.getOperand()) == columnsOf(op.getResult());
}

bool isFree(Operation* op) {
  if (auto constant = dyn_cast<ConstantOp>(op)) return isa<SplatElementsAttr>(constant.getValue());
  return isa<BroadcastOp, IotaOp, ReshapeOp>(op);
}

}  // namespace sheaf::train
