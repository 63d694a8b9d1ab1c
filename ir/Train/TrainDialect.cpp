// Registration, verifiers and folders of the `train` dialect.
#include "ir/Train/TrainDialect.h"

#include <numbers>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/Outputs.h"
#include "ir/Train/StopGradient.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/DialectImplementation.h"

using namespace mlir;
using namespace sheaf::train;

#include "ir/Train/TrainDialect.cpp.inc"
#include "ir/Train/TrainEnums.cpp.inc"
#include "ir/Train/TrainInterfaces.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "ir/Train/TrainAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "ir/Train/Outputs.cpp.inc"
#define GET_OP_CLASSES
#include "ir/Train/StopGradient.cpp.inc"

void TrainDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "ir/Train/TrainAttrs.cpp.inc"
      >();
  registerTrainDialectOperations(this);
  addOperations<
#define GET_OP_LIST
#include "ir/Train/BatchNorm.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "ir/Train/Outputs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "ir/Train/StopGradient.cpp.inc"
      >();
}

OpFoldResult ConstantOp::fold(FoldAdaptor) {
  return getValue();
}

// A constant has no gradient anyway.
OpFoldResult StopGradientOp::fold(FoldAdaptor) {
  return getOperand().getDefiningOp<ConstantOp>() ? OpFoldResult(getOperand()) : OpFoldResult();
}

OpFoldResult ReshapeOp::fold(FoldAdaptor) {
  if (getOperand().getType() == getType()) return getOperand();
  if (auto inner = getOperand().getDefiningOp<ReshapeOp>()) {
    getOperandMutable().assign(inner.getOperand());
    return getResult();
  }
  return {};
}

OpFoldResult BroadcastOp::fold(FoldAdaptor) {
  return getOperand().getType() == getType() ? OpFoldResult(getOperand()) : OpFoldResult();
}

OpFoldResult CastOp::fold(FoldAdaptor) {
  return getOperand().getType() == getType() ? OpFoldResult(getOperand()) : OpFoldResult();
}

OpFoldResult TransposeOp::fold(FoldAdaptor) {
  for (auto [i, p] : llvm::enumerate(getPermutation()))
    if (int64_t(i) != p) return {};
  return getOperand();
}

LogicalResult ReshapeOp::verify() {
  auto from = cast<RankedTensorType>(getOperand().getType()), to = cast<RankedTensorType>(getType());
  if (from.getElementType() != to.getElementType() || from.getNumElements() != to.getNumElements())
    return emitOpError("must keep the element type and the number of elements");
  return success();
}

LogicalResult GatherRowsOp::verify() {
  auto from = cast<RankedTensorType>(getOperand().getType()), to = cast<RankedTensorType>(getType());
  if (from.getElementType() != to.getElementType() || from.getRank() == 0 || from.getRank() != to.getRank() ||
      from.getShape().drop_front() != to.getShape().drop_front() || from.getDimSize(0) == 0 ||
      to.getDimSize(0) % from.getDimSize(0))
    return emitOpError("must have the operand's type, but a multiple of its dimension 0");
  if (getLeaf() && cast<RankedTensorType>(getLeaf().getType()).getNumElements() != 1)
    return emitOpError("'leaf' must have exactly one element");
  return success();
}

// Random numbers go by the index in whole blocks.
static LogicalResult verifyBlocks(Operation* op, int64_t blocks) {
  if (blocks != 0 && cast<RankedTensorType>(op->getResult(0).getType()).getNumElements() % blocks)
    return op->emitOpError("must have a number of elements that its 'blocks' divide");
  return success();
}

LogicalResult DropoutOp::verify() {
  return verifyBlocks(*this, int64_t(getBlocks()));
}

LogicalResult RandomUniformOp::verify() {
  return verifyBlocks(*this, int64_t(getBlocks()));
}

LogicalResult BroadcastOp::verify() {
  auto from = cast<RankedTensorType>(getOperand().getType()), to = cast<RankedTensorType>(getType());
  if (from.getElementType() != to.getElementType() || from.getRank() != to.getRank())
    return emitOpError("must keep the element type and the rank");
  for (auto [f, t] : llvm::zip(from.getShape(), to.getShape()))
    if (f != t && f != 1) return emitOpError("can only expand dimensions of size 1");
  return success();
}

LogicalResult SliceOp::verify() {
  auto from = cast<RankedTensorType>(getOperand().getType());
  if (int64_t(getStarts().size()) != from.getRank() || getSizes().size() != getStarts().size() ||
      getSteps().size() != getStarts().size())
    return emitOpError("needs one start, size and step per dimension");
  for (int64_t d = 0; d < from.getRank(); ++d) {
    int64_t first = getStarts()[d], size = getSizes()[d], last = first + (size - 1) * getSteps()[d];
    if (getSteps()[d] == 0 || size < 0) return emitOpError("needs nonzero steps and sizes of at least 0");
    if (size && (first < 0 || first >= from.getDimSize(d) || last < 0 || last >= from.getDimSize(d)))
      return emitOpError("reads outside dimension ") << d;
  }
  return success();
}

// Whether indices name elements of `data` along an axis: before it and after it, their dimensions are the data's or 1.
static bool fitsData(ArrayRef<int64_t> indices, ArrayRef<int64_t> data, int64_t axis) {
  auto areOnes = [](ArrayRef<int64_t> sizes) { return llvm::all_of(sizes, [](int64_t n) { return n == 1; }); };
  auto fit = [&](ArrayRef<int64_t> own, ArrayRef<int64_t> theirs) { return own == theirs || areOnes(own); };
  return axis >= 0 && axis < int64_t(data.size()) && indices.size() == data.size() &&
         fit(indices.take_front(axis), data.take_front(axis)) &&
         fit(indices.drop_front(axis + 1), data.drop_front(axis + 1));
}

LogicalResult GatherElementsOp::inferReturnTypes(MLIRContext*, std::optional<Location> location, ValueRange operands,
                                                 DictionaryAttr attributes, OpaqueProperties properties,
                                                 RegionRange regions, SmallVectorImpl<Type>& types) {
  Adaptor op(operands, attributes, properties, regions);
  auto data = cast<RankedTensorType>(op.getData().getType()), at = cast<RankedTensorType>(op.getIndices().getType());
  const int64_t axis = op.getAxis();
  if (!fitsData(at.getShape(), data.getShape(), axis))
    return emitOptionalError(location, "indices do not fit the data along axis ", axis);
  SmallVector<int64_t> shape(data.getShape());
  shape[axis] = at.getDimSize(axis);
  types.push_back(data.clone(shape));
  return success();
}

LogicalResult ScatterOp::verify() {
  auto result = cast<RankedTensorType>(getType()), update = cast<RankedTensorType>(getUpdate().getType()),
       at = cast<RankedTensorType>(getIndices().getType());
  const int64_t axis = getAxis();
  if (!fitsData(at.getShape(), result.getShape(), axis))
    return emitOpError("indices do not fit the result along axis ") << axis;
  SmallVector<int64_t> shape(result.getShape());
  shape[axis] = at.getDimSize(axis);
  if (update != result.clone(shape)) return emitOpError("update does not fit the indices and the result");
  if (getData() && getData().getType() != result) return emitOpError("data and result must have one type");
  if (!getData() && getKind() != ScatterKind::replace && getKind() != ScatterKind::add)
    return emitOpError("needs data to ") << stringifyScatterKind(getKind());
  return success();
}

LogicalResult OptimizerOp::verify() {
  Block& body = getBody().front();
  if (body.getNumArguments() != 2 + getStates().size() + getScalars().size())
    return emitOpError("region takes (parameter, gradient, states..., scalars...)");
  auto yield = dyn_cast<YieldOp>(body.back());
  if (!yield || yield.getNumOperands() != 1 + getStates().size())
    return emitOpError("region yields (parameter, states...)");
  return success();
}

LogicalResult FusionOp::verify() {
  if (getBody().getNumArguments() != getNumOperands()) return emitOpError("region takes one argument per operand");
  for (auto [argument, operand] : llvm::zip(getBody().getArguments(), getOperands()))
    if (argument.getType() != operand.getType()) return emitOpError("region arguments have the operands' types");
  if (!getPitches()) return success();
  if (getPitches()->size() != getNumOperands() + getNumResults())
    return emitOpError("has ") << getPitches()->size() << " pitches for " << getNumOperands() << " operands and "
                               << getNumResults() << " results";
  SmallVector<Type> types(getOperandTypes());
  llvm::append_range(types, getResultTypes());
  for (auto [pitch, type] : llvm::zip(*getPitches(), types)) {
    ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
    if (pitch && (shape.empty() || shape.back() != static_cast<int64_t>(getColumns()) || pitch < shape.back()))
      return emitOpError("has a pitch of ") << pitch << " for " << type << " in rows of " << getColumns();
  }
  return success();
}
