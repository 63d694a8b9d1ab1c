#include "ir/Train/RowPitches.h"

using namespace mlir;

namespace sheaf::train {

Value withoutReshapes(Value value) {
  auto last = [](Value v) {
    ArrayRef<int64_t> shape = cast<RankedTensorType>(v.getType()).getShape();
    return shape.empty() ? 1 : shape.back();
  };
  for (auto reshape = value.getDefiningOp<ReshapeOp>(); reshape && last(reshape.getOperand()) == last(value);
       reshape = value.getDefiningOp<ReshapeOp>())
    value = reshape.getOperand();
  return value;
}

int64_t pitchOf(Value value) {
  auto result = dyn_cast<OpResult>(withoutReshapes(value));
  if (!result) return 0;
  if (auto fusion = dyn_cast<FusionOp>(result.getOwner()))
    return fusion.getPitches() ? (*fusion.getPitches())[fusion->getNumOperands() + result.getResultNumber()] : 0;
  auto pitch = result.getOwner()->getAttrOfType<IntegerAttr>(kPitchAttr);
  return pitch && result.getResultNumber() == 0 ? pitch.getInt() : 0;
}

int64_t paddingBytes(FusionOp fusion) {
  if (!fusion.getPitches()) return 0;
  SmallVector<Type> types(fusion.getOperandTypes());
  llvm::append_range(types, fusion.getResultTypes());
  int64_t bytes = 0;
  for (auto [pitch, type] : llvm::zip(*fusion.getPitches(), types)) {
    if (!pitch) continue;
    auto tensor = cast<RankedTensorType>(type);
    int64_t columns = tensor.getShape().back(), width = std::max(1u, tensor.getElementTypeBitWidth() / 8);
    bytes += tensor.getNumElements() / columns * (pitch - columns) * width;
  }
  return bytes;
}

}  // namespace sheaf::train
