#include "codegen/fusion/Reductions.h"

#include <limits>

#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {

static Type elementType(ReduceOp op) {
  return cast<RankedTensorType>(op.getOperand().getType()).getElementType();
}

Value emitIdentity(ArithBuilder& a, ReduceOp op, Type type) {
  Type element = elementType(op);
  double limit = std::numeric_limits<double>::infinity();
  if (isa<FloatType>(element)) {
    switch (op.getKind()) {
      case ReduceKind::max:
        return a.constant(type, -limit);
      case ReduceKind::min:
        return a.constant(type, limit);
      case ReduceKind::prod:
        return a.constant(type, 1.0);
      default:
        return a.constant(type, 0.0);
    }
  }
  unsigned width = element.getIntOrFloatBitWidth();
  bool isUnsigned = element.isUnsignedInteger() || width == 1;
  APInt low = isUnsigned ? APInt::getMinValue(width) : APInt::getSignedMinValue(width);
  APInt high = isUnsigned ? APInt::getMaxValue(width) : APInt::getSignedMaxValue(width);
  switch (op.getKind()) {
    case ReduceKind::max:
      return a.integer(type, low.getSExtValue());
    case ReduceKind::min:
      return a.integer(type, high.getSExtValue());
    case ReduceKind::prod:
      return a.integer(type, 1);
    default:
      return a.integer(type, 0);
  }
}

Value emitCombine(ArithBuilder& a, ReduceOp op, Value x, Value y) {
  Type element = elementType(op);
  bool isFloat = isa<FloatType>(element), isUnsigned = element.isUnsignedInteger() || element.isInteger(1);
  auto larger = isUnsigned ? arith::CmpIPredicate::ugt : arith::CmpIPredicate::sgt;
  auto smaller = isUnsigned ? arith::CmpIPredicate::ult : arith::CmpIPredicate::slt;
  switch (op.getKind()) {
    case ReduceKind::max:
      return isFloat ? a.maximum(x, y) : a.select(a.compare(larger, x, y), x, y);
    case ReduceKind::min:
      return isFloat ? a.minimum(x, y) : a.select(a.compare(smaller, x, y), x, y);
    case ReduceKind::prod:
      return a.mul(x, y);
    default:
      return a.add(x, y);
  }
}

Value emitCombineLanes(ArithBuilder& a, ReduceOp op, Value value) {
  for (int64_t half = cast<VectorType>(value.getType()).getDimSize(0) / 2; half >= 1; half /= 2) {
    SmallVector<int64_t> low, high;
    for (int64_t i = 0; i < half; ++i) {
      low.push_back(i);
      high.push_back(half + i);
    }
    Value lower = vector::ShuffleOp::create(a.b, a.loc, value, value, low);
    Value upper = vector::ShuffleOp::create(a.b, a.loc, value, value, high);
    value = emitCombine(a, op, lower, upper);
  }
  return vector::ExtractOp::create(a.b, a.loc, value, ArrayRef<int64_t>{0});
}

}  // namespace sheaf::codegen
