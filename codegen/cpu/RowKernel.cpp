#include "codegen/cpu/RowKernel.h"

#include "codegen/cpu/KernelMemory.h"
#include "codegen/fusion/ElementOps.h"
#include "codegen/fusion/Reductions.h"
#include "ir/Train/FusionCost.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

// Accumulators of a row reduction: as many vectors are in flight, so that a sum is not bound by the latency of one
// addition. Part of the order of summation, so a constant.
constexpr int64_t kAccumulators = 4;

int64_t lastDim(RankedTensorType type) {
  return type.getRank() ? type.getShape().back() : 1;
}
RankedTensorType tensor(Value v) {
  return cast<RankedTensorType>(v.getType());
}
bool isLastAxis(IotaOp op) {
  return static_cast<int64_t>(op.getAxis()) + 1 == tensor(op.getResult()).getRank();
}

// What a result is rounded from: the store rounds.
Value beforeRounding(Value v) {
  auto cast = v.getDefiningOp<CastOp>();
  return cast && tensor(cast.getOperand()).getElementType().isF32() &&
                 isa<BFloat16Type, Float16Type>(tensor(v).getElementType())
             ? cast.getOperand()
             : v;
}

// A value of the fusion at a row: the row is the index, in the kernel, of the value's own row.
using AtRow = std::pair<Value, Value>;

class RowKernel {
 public:
  RowKernel(const RowProgram& program, ArithBuilder& arith) : program(program), a(arith), memory(arith) {}

  void emit(Value arguments, Value begin, Value end);

 private:
  // kLanes columns of a row, and the values known there.
  struct Chunk {
    Chunk(Value column, Value mask) : column(column), mask(mask) {}
    Value column;
    Value mask;  // null where all lanes are columns
    DenseMap<AtRow, Value> values;
  };

  Value index(int64_t value) { return a.integer(a.b.getI64Type(), value); }
  VectorType vectorType(Type element) { return VectorType::get({kLanes}, element); }
  Type computeTypeOf(Value v) { return computeType(tensor(v).getElementType(), a.b.getContext()); }
  Value constantOf(ConstantOp op, Type type);
  Value laneIndices(Value offset, Type element);

  Value sourceRow(BroadcastOp op, Value row);
  Value outerIndex(IotaOp op, Value row);
  Value compareWithColumn(Chunk& chunk, CompareOp op, Value row);
  Value scalar(Value v, Value row);
  Value vector(Chunk& chunk, Value v, Value row);
  void prepare(Value v, Value row, DenseSet<AtRow>& seen);

  void emitFlat(Value begin, Value end);
  void emitRows(Value begin, Value end, Value partialRow);
  void emitRow(Value row, Value partialRow);
  void emitPass(int64_t pass, Value row, Value partialRow);
  void emitChunk(Chunk& chunk, int64_t pass, Value row, Value partialRow, MutableArrayRef<Value> accumulators);
  void storeRowOutputs(Value row, Value partialRow);
  void zeroPartials(Value partialRow);
  scf::ForOp forLoop(Value from, Value to, int64_t step, ValueRange init,
                     function_ref<SmallVector<Value>(Value, ValueRange)> body);

  int64_t unroll(int64_t pass);

  const RowProgram& program;
  ArithBuilder& a;
  KernelMemory memory;
  SmallVector<Buffer> operands, results;
  // What is known for the row at hand; emptied for the next.
  DenseMap<AtRow, Value> scalars;
  DenseMap<std::pair<Operation*, Value>, Value> sourceRows;
};

Value RowKernel::constantOf(ConstantOp op, Type type) {
  auto splat = cast<SplatElementsAttr>(op.getValue());
  if (isa<FloatType>(splat.getElementType())) return a.constant(type, splat.getSplatValue<APFloat>().convertToDouble());
  return a.integer(type, splat.getSplatValue<APInt>().getSExtValue());
}

// offset, offset + 1, ... in 32-bit integers, converted to the element type.
Value RowKernel::laneIndices(Value offset, Type element) {
  SmallVector<int32_t> lanes;
  for (int32_t i = 0; i < kLanes; ++i) lanes.push_back(i);
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
Value RowKernel::sourceRow(BroadcastOp op, Value row) {
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
Value RowKernel::outerIndex(IotaOp op, Value row) {
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
// Columns fit 32 bits, so that a vector holds twice as many as of 64; a scalar that does not is no column.
Value RowKernel::compareWithColumn(Chunk& chunk, CompareOp op, Value row) {
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

Value RowKernel::scalar(Value v, Value row) {
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

Value RowKernel::vector(Chunk& chunk, Value v, Value row) {
  if (Value known = chunk.values.lookup({v, row})) return known;
  Value result;
  VectorType type = vectorType(computeTypeOf(v));
  if (auto argument = dyn_cast<BlockArgument>(v)) {
    Value offset = chunk.column;
    if (!program.flat) offset = a.add(a.mul(row, index(program.columns)), chunk.column);
    result = memory.loadVector(operands[argument.getArgNumber()], offset, chunk.mask);
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

// Emits the scalars that the vector code of `v` reads where the builder stands, outside of the loop over the columns:
// inside, stores that may overlap would keep the compiler from hoisting their loads.
void RowKernel::prepare(Value v, Value row, DenseSet<AtRow>& seen) {
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

scf::ForOp RowKernel::forLoop(Value from, Value to, int64_t step, ValueRange init,
                              function_ref<SmallVector<Value>(Value, ValueRange)> body) {
  return scf::ForOp::create(a.b, a.loc, from, to, index(step), init,
                            [&](OpBuilder& inner, Location loc, Value i, ValueRange carried) {
                              OpBuilder::InsertionGuard guard(a.b);
                              a.b.setInsertionPoint(inner.getInsertionBlock(), inner.getInsertionPoint());
                              SmallVector<Value> results = body(i, carried);
                              scf::YieldOp::create(a.b, loc, results);
                            });
}

// Vectors per iteration. With reductions one for each accumulator; else as many as hide the loop's overhead.
int64_t RowKernel::unroll(int64_t pass) {
  if (!program.flat && !program.reductions[pass].empty()) return kAccumulators;
  FusionOp fusion = program.fusion;
  int cost = 0;
  for (Operation& op : fusion.getBody().front()) cost += elementCost(&op);
  return cost <= 12 ? 4 : cost <= 40 ? 2 : 1;
}

// All of a chunk is loaded and computed before any of it is stored: a result may lie where an operand does.
void RowKernel::emitChunk(Chunk& chunk, int64_t pass, Value row, Value partialRow,
                          MutableArrayRef<Value> accumulators) {
  if (!program.flat)
    for (auto [r, accumulator] : llvm::enumerate(accumulators)) {
      ReduceOp reduce = program.reductions[pass][r];
      Value next = emitCombine(a, reduce, accumulator, vector(chunk, reduce.getOperand(), row));
      accumulator = chunk.mask ? a.select(chunk.mask, next, accumulator) : next;
    }
  if (!program.flat && pass + 1 != program.passes()) return;
  struct Store {
    Buffer buffer;
    Value offset, value;
  };
  SmallVector<Store> stores;
  for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
    if (!program.isVector(output.value)) continue;
    Value value = vector(chunk, beforeRounding(output.value), row), offset = chunk.column;
    if (!program.flat) {
      Value bufferRow = output.kind == OutputKind::ColumnPartial ? partialRow : row;
      offset = a.add(a.mul(bufferRow, index(program.columns)), chunk.column);
    }
    if (output.kind == OutputKind::ColumnPartial) value = a.add(memory.loadVector(buffer, offset, chunk.mask), value);
    stores.push_back({buffer, offset, value});
  }
  for (Store& store : stores) memory.storeVector(store.buffer, store.offset, store.value, chunk.mask);
}

void RowKernel::emitPass(int64_t pass, Value row, Value partialRow) {
  ArrayRef<ReduceOp> reductions = program.reductions[pass];
  DenseSet<AtRow> seen;
  for (ReduceOp reduce : reductions) prepare(reduce.getOperand(), row, seen);
  if (pass + 1 == program.passes())
    for (const RowOutput& output : program.outputs)
      if (program.isVector(output.value)) prepare(output.value, row, seen);

  // accumulators[i * reductions + r]: the i-th of reduction r.
  int64_t count = unroll(pass), perChunk = static_cast<int64_t>(reductions.size());
  SmallVector<Value> accumulators;
  for (int64_t i = 0; i < count; ++i)
    for (ReduceOp reduce : reductions)
      accumulators.push_back(emitIdentity(a, reduce, vectorType(computeTypeOf(reduce.getOperand()))));
  auto chunkAt = [&](Value column, Value mask, int64_t i, MutableArrayRef<Value> all) {
    Chunk chunk(column, mask);
    emitChunk(chunk, pass, row, partialRow, all.slice(i * perChunk, perChunk));
  };

  int64_t step = count * kLanes, bulk = program.columns / step * step;
  if (bulk) {
    scf::ForOp loop = forLoop(index(0), index(bulk), step, accumulators, [&](Value column, ValueRange carried) {
      SmallVector<Value> next(carried);
      for (int64_t i = 0; i < count; ++i) chunkAt(a.add(column, index(i * kLanes)), {}, i, next);
      return next;
    });
    accumulators.assign(loop.result_begin(), loop.result_end());
  }
  int64_t column = bulk, i = 0;
  for (; column + kLanes <= program.columns; column += kLanes) chunkAt(index(column), {}, i++, accumulators);
  if (int64_t rest = program.columns - column) {
    SmallVector<bool> bits(kLanes, false);
    std::fill_n(bits.begin(), rest, true);
    Value mask = arith::ConstantOp::create(a.b, a.loc,
                                           DenseElementsAttr::get(vectorType(a.b.getI1Type()), ArrayRef<bool>(bits)));
    chunkAt(index(column), mask, i, accumulators);
  }

  for (int64_t half = count / 2; half >= 1 && perChunk; half /= 2)
    for (int64_t k = 0; k < half * perChunk; ++k)
      accumulators[k] = emitCombine(a, reductions[k % perChunk], accumulators[k], accumulators[k + half * perChunk]);
  for (int64_t r = 0; r < perChunk; ++r) {
    ReduceOp reduce = reductions[r];
    scalars[{reduce.getResult(), row}] = emitCombineLanes(a, reduce, accumulators[r]);
  }
}

void RowKernel::storeRowOutputs(Value row, Value partialRow) {
  SmallVector<std::pair<size_t, Value>> values;
  for (auto [i, output] : llvm::enumerate(program.outputs))
    if (!program.isVector(output.value)) values.push_back({i, scalar(beforeRounding(output.value), row)});
  for (auto [i, value] : values) {
    bool partial = program.outputs[i].kind == OutputKind::ColumnPartial;
    Value at = partial ? partialRow : row;
    if (partial) value = a.add(memory.loadScalar(results[i], at), value);
    memory.storeScalar(results[i], at, value);
  }
}

void RowKernel::emitRow(Value row, Value partialRow) {
  scalars.clear();
  sourceRows.clear();
  for (int64_t pass = 0; pass < program.passes(); ++pass) emitPass(pass, row, partialRow);
  storeRowOutputs(row, partialRow);
}

void RowKernel::emitRows(Value begin, Value end, Value partialRow) {
  forLoop(begin, end, 1, {}, [&](Value row, ValueRange) {
    emitRow(row, partialRow);
    return SmallVector<Value>();
  });
}

void RowKernel::zeroPartials(Value partialRow) {
  for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
    if (output.kind != OutputKind::ColumnPartial) continue;
    int64_t width = lastDim(tensor(output.value));
    Type element = computeType(buffer.element, a.b.getContext());
    Value base = a.mul(partialRow, index(width));
    int64_t bulk = width / kLanes * kLanes;
    Buffer to = buffer;
    if (bulk)
      forLoop(index(0), index(bulk), kLanes, {}, [&](Value column, ValueRange) {
        memory.storeVector(to, a.add(base, column), a.constant(vectorType(element), 0.0), {});
        return SmallVector<Value>();
      });
    for (int64_t column = bulk; column < width; ++column)
      memory.storeScalar(to, a.add(base, index(column)), a.constant(element, 0.0));
  }
}

void RowKernel::emitFlat(Value begin, Value end) {
  Value zero = index(0), from = a.mul(begin, index(program.columns));
  Value to = arith::MinSIOp::create(a.b, a.loc, a.mul(end, index(program.columns)), index(program.elements));
  DenseSet<AtRow> seen;
  for (const RowOutput& output : program.outputs) prepare(output.value, zero, seen);
  int64_t count = unroll(0), step = count * kLanes;
  Value length = a.sub(to, from);
  Value bulk = a.add(from, a.sub(length, arith::RemSIOp::create(a.b, a.loc, length, index(step))));
  forLoop(from, bulk, step, {}, [&](Value at, ValueRange) {
    for (int64_t i = 0; i < count; ++i) {
      Chunk chunk(a.add(at, index(i * kLanes)), {});
      emitChunk(chunk, 0, zero, {}, {});
    }
    return SmallVector<Value>();
  });
  forLoop(bulk, to, kLanes, {}, [&](Value at, ValueRange) {
    Value left = arith::TruncIOp::create(a.b, a.loc, a.b.getI32Type(), a.sub(to, at));
    Value lanes = laneIndices(zero, a.b.getI32Type());
    Chunk chunk(at, a.compare(arith::CmpIPredicate::slt, lanes, a.splat(lanes.getType(), left)));
    emitChunk(chunk, 0, zero, {}, {});
    return SmallVector<Value>();
  });
}

void RowKernel::emit(Value arguments, Value begin, Value end) {
  FusionOp fusion = program.fusion;
  auto pointer = LLVM::LLVMPointerType::get(a.b.getContext());
  auto bufferAt = [&](size_t i, Type type) {
    Value slot =
        LLVM::GEPOp::create(a.b, a.loc, pointer, pointer, arguments, ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    return Buffer{LLVM::LoadOp::create(a.b, a.loc, pointer, slot, 8), cast<RankedTensorType>(type).getElementType()};
  };
  for (auto [i, type] : llvm::enumerate(fusion.getOperandTypes())) operands.push_back(bufferAt(i, type));
  for (auto [i, type] : llvm::enumerate(fusion.getResultTypes()))
    results.push_back(bufferAt(fusion.getNumOperands() + i, type));

  if (program.flat) return emitFlat(begin, end);
  if (!program.hasColumnPartials) return emitRows(begin, end, {});
  forLoop(begin, end, program.block, {}, [&](Value first, ValueRange) {
    Value partialRow = arith::DivUIOp::create(a.b, a.loc, first, index(program.block));
    zeroPartials(partialRow);
    Value last = arith::MinSIOp::create(a.b, a.loc, a.add(first, index(program.block)), end);
    emitRows(first, last, partialRow);
    return SmallVector<Value>();
  });
}

}  // namespace

void emitRowKernel(const RowProgram& program, StringRef symbol, ModuleOp module) {
  MLIRContext* context = module.getContext();
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  Location loc = UnknownLoc::get(context);
  Type i64 = builder.getI64Type();
  auto type =
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(context), {LLVM::LLVMPointerType::get(context), i64, i64});
  auto function = LLVM::LLVMFuncOp::create(builder, loc, symbol, type);
  // Loops that fill or copy stay loops: a kernel calls nothing. The vector widths are ours to choose.
  function.setPassthroughAttr(
      builder.getArrayAttr({builder.getStringAttr("no-builtins"), builder.getStringAttr("nounwind"),
                            builder.getStrArrayAttr({"min-legal-vector-width", "512"}),
                            builder.getStrArrayAttr({"prefer-vector-width", "512"})}));
  Block* entry = function.addEntryBlock(builder);
  builder.setInsertionPointToStart(entry);
  ArithBuilder arith(builder, loc);
  RowKernel(program, arith).emit(entry->getArgument(0), entry->getArgument(1), entry->getArgument(2));
  LLVM::ReturnOp::create(builder, loc, ValueRange{});
}

}  // namespace sheaf::codegen
