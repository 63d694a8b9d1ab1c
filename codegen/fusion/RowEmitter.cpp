#include "codegen/fusion/RowEmitter.h"

#include "ir/Train/ElementTypes.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

RankedTensorType tensor(Value v) {
  return cast<RankedTensorType>(v.getType());
}
bool isLastAxis(IotaOp op) {
  return static_cast<int64_t>(op.getAxis()) + 1 == tensor(op.getResult()).getRank();
}

}  // namespace

Type RowEmitter::computeTypeOf(Value v) {
  return computeType(tensor(v).getElementType(), a.b.getContext());
}

Value RowEmitter::beforeRounding(Value v) {
  auto cast = v.getDefiningOp<CastOp>();
  return cast && tensor(cast.getOperand()).getElementType().isF32() && isWidened(tensor(v).getElementType())
             ? cast.getOperand()
             : v;
}

Value RowEmitter::constantOf(ConstantOp op, Type type) {
  auto splat = cast<SplatElementsAttr>(op.getValue());
  if (isa<FloatType>(splat.getElementType())) return a.constant(type, splat.getSplatValue<APFloat>().convertToDouble());
  return a.integer(type, splat.getSplatValue<APInt>().getSExtValue());
}

// In 32-bit integers, converted to the element type.
Value RowEmitter::laneIndices(Value offset, Type element) {
  SmallVector<int32_t> lanes;
  for (int32_t i = 0; i < memory.lanes.count; ++i) lanes.push_back(i);
  VectorType type = vectorType(a.b.getI32Type());
  Value steps = arith::ConstantOp::create(a.b, a.loc, DenseElementsAttr::get(type, ArrayRef<int32_t>(lanes)));
  Value narrow = arith::TruncIOp::create(a.b, a.loc, a.b.getI32Type(), offset);
  Value result = a.add(a.splat(type, narrow), steps);
  Type target = vectorType(element);
  if (element == type.getElementType()) return result;
  if (isa<FloatType>(element)) return arith::SIToFPOp::create(a.b, a.loc, target, result);
  if (element.getIntOrFloatBitWidth() < 32) return arith::TruncIOp::create(a.b, a.loc, target, result);
  return arith::ExtSIOp::create(a.b, a.loc, target, result);
}

// The operand's row that a row of a broadcast's result reads: size-1 dimensions are skipped. Runs of dimensions that
// are all kept or all repeated are handled as one.
Value RowEmitter::sourceRow(BroadcastOp op, Value row) {
  ArrayRef<int64_t> from = tensor(op.getOperand()).getShape(), to = tensor(op.getResult()).getShape();
  if (from.empty()) return row;
  from = from.drop_back();
  to = to.drop_back();
  if (from == to) return row;
  auto& known = sourceRows[{op, row}];
  if (known) return known;
  struct Run {
    int64_t size;
    bool kept;
  };
  SmallVector<Run> runs;  // outermost first
  for (auto [f, t] : llvm::zip(from, to)) {
    if (t == 1) continue;
    if (!runs.empty() && runs.back().kept == (f == t))
      runs.back().size *= t;
    else
      runs.push_back({t, f == t});
  }
  Value result, rest = row;
  int64_t stride = 1;
  for (size_t i = runs.size(); i-- > 0;) {
    Value position = rest;
    if (i > 0) {
      Value size = index(runs[i].size);
      position = runs[i].kept ? arith::RemUIOp::create(a.b, a.loc, rest, size).getResult() : Value();
      rest = arith::DivUIOp::create(a.b, a.loc, rest, size);
    }
    if (!runs[i].kept) continue;
    Value offset = stride == 1 ? position : a.mul(position, index(stride));
    result = result ? a.add(result, offset) : offset;
    stride *= runs[i].size;
  }
  return known = result ? result : index(0);
}

// The index along an outer axis.
Value RowEmitter::outerIndex(IotaOp op, Value row) {
  ArrayRef<int64_t> shape = tensor(op.getResult()).getShape();
  int64_t inner = 1;
  for (int64_t d = op.getAxis() + 1; d + 1 < static_cast<int64_t>(shape.size()); ++d) inner *= shape[d];
  Value position = arith::DivUIOp::create(a.b, a.loc, row, index(inner));
  position = arith::RemUIOp::create(a.b, a.loc, position, index(shape[op.getAxis()]));
  Type type = computeTypeOf(op.getResult());
  if (isa<FloatType>(type)) return arith::SIToFPOp::create(a.b, a.loc, type, position);
  if (type == position.getType()) return position;
  return arith::TruncIOp::create(a.b, a.loc, type, position);
}

// Whether the column is (not) an i64 scalar of the row, as in picking a label's logit; null for any other comparison.
// Columns fit 32 bits, so that a vector holds twice as many as of 64; a scalar that does not is not a column.
Value RowEmitter::compareWithColumn(Chunk& chunk, CompareOp op, Value row) {
  bool equal = op.getPredicate() == ComparePredicate::eq;
  auto iota = op.getLhs().getDefiningOp<IotaOp>();
  auto broadcast = op.getRhs().getDefiningOp<BroadcastOp>();
  if ((!equal && op.getPredicate() != ComparePredicate::ne) || !iota || !broadcast || !isLastAxis(iota) ||
      program.isVector(broadcast.getOperand()) || !computeTypeOf(op.getLhs()).isInteger(64))
    return {};
  Value wide = scalar(broadcast.getOperand(), sourceRow(broadcast, row));
  Value narrow = arith::TruncIOp::create(a.b, a.loc, a.b.getI32Type(), wide);
  Value inside = a.compare(arith::CmpIPredicate::ult, wide, index(program.columns));
  narrow = a.select(inside, narrow, a.integer(narrow.getType(), -1));
  Value columns = laneIndices(chunk.column, a.b.getI32Type());
  auto predicate = equal ? arith::CmpIPredicate::eq : arith::CmpIPredicate::ne;
  return a.compare(predicate, columns, a.splat(columns.getType(), narrow));
}

Value RowEmitter::scalar(Value v, Value row) {
  if (Value known = scalars.lookup({v, row})) return known;
  Value result;
  if (auto argument = dyn_cast<BlockArgument>(v)) {
    result = memory.loadScalar(operands[argument.getArgNumber()], row);
  } else if (auto op = v.getDefiningOp<ConstantOp>()) {
    result = constantOf(op, computeTypeOf(v));
  } else if (auto op = v.getDefiningOp<BroadcastOp>()) {
    result = scalar(op.getOperand(), sourceRow(op, row));
  } else if (auto op = v.getDefiningOp<ReshapeOp>()) {
    result = scalar(op.getOperand(), row);
  } else if (auto op = v.getDefiningOp<IotaOp>()) {
    bool isLast = isLastAxis(op);
    Type type = computeTypeOf(v);
    if (!isLast)
      result = outerIndex(op, row);
    else
      result = isa<FloatType>(type) ? a.constant(type, 0.0) : a.integer(type, 0);
  } else {
    SmallVector<Value> inputs;
    for (Value input : v.getDefiningOp()->getOperands()) inputs.push_back(scalar(input, row));
    result = emitElementOp(a, v.getDefiningOp(), inputs);
  }
  return scalars[{v, row}] = result;
}

Value RowEmitter::vector(Chunk& chunk, Value v, Value row) {
  if (Value known = chunk.values.lookup({v, row})) return known;
  Value result;
  VectorType type = vectorType(computeTypeOf(v));
  if (auto argument = dyn_cast<BlockArgument>(v)) {
    const Buffer& buffer = operands[argument.getArgNumber()];
    Value offset = program.flat ? chunk.column : indexOf(buffer, row, chunk.column);
    result = memory.loadVector(buffer, offset, chunk.mask);
  } else if (auto op = v.getDefiningOp<ConstantOp>()) {
    result = constantOf(op, type);
  } else if (auto op = v.getDefiningOp<BroadcastOp>()) {
    Value source = program.flat ? row : sourceRow(op, row);
    result = program.isVector(op.getOperand()) ? vector(chunk, op.getOperand(), source)
                                               : a.splat(type, scalar(op.getOperand(), source));
  } else if (auto op = v.getDefiningOp<ReshapeOp>()) {
    result = vector(chunk, op.getOperand(), row);
  } else if (auto op = v.getDefiningOp<IotaOp>()) {
    bool isLast = isLastAxis(op);
    result = isLast ? laneIndices(chunk.column, type.getElementType()) : a.splat(type, outerIndex(op, row));
  } else {
    if (auto compare = v.getDefiningOp<CompareOp>()) result = compareWithColumn(chunk, compare, row);
    if (!result) {
      SmallVector<Value> inputs;
      for (Value input : v.getDefiningOp()->getOperands()) inputs.push_back(vector(chunk, input, row));
      result = emitElementOp(a, v.getDefiningOp(), inputs);
    }
  }
  return chunk.values[{v, row}] = result;
}

void RowEmitter::prepare(Value v, Value row, DenseSet<AtRow>& seen) {
  if (!seen.insert({v, row}).second) return;
  if (!program.isVector(v)) {
    scalar(v, row);
    return;
  }
  Operation* op = v.getDefiningOp();
  if (!op) return;
  Value source = row;
  if (auto broadcast = dyn_cast<BroadcastOp>(op); broadcast && !program.flat) source = sourceRow(broadcast, row);
  for (Value input : op->getOperands()) prepare(input, source, seen);
}

void RowEmitter::preparePass(int64_t pass, Value row) {
  DenseSet<AtRow> seen;
  if (!program.flat)
    for (ReduceOp reduce : program.reductions[pass]) prepare(reduce.getOperand(), row, seen);
  if (program.flat || pass + 1 == program.passes())
    for (const RowOutput& output : program.outputs)
      if (program.isVector(output.value)) prepare(output.value, row, seen);
}

scf::ForOp RowEmitter::forLoop(Value from, Value to, int64_t step, ValueRange init,
                               function_ref<SmallVector<Value>(Value, ValueRange)> body) {
  return scf::ForOp::create(a.b, a.loc, from, to, index(step), init,
                            [&](OpBuilder& inner, Location loc, Value i, ValueRange carried) {
                              OpBuilder::InsertionGuard guard(a.b);
                              a.b.setInsertionPoint(inner.getInsertionBlock(), inner.getInsertionPoint());
                              SmallVector<Value> results = body(i, carried);
                              scf::YieldOp::create(a.b, loc, results);
                            });
}

}  // namespace sheaf::codegen
