#include "codegen/cpu/RowKernel.h"

#include "codegen/fusion/Reductions.h"
#include "codegen/fusion/RowEmitter.h"
#include "ir/Train/FusionCost.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

// The number of elements in a vector, whatever the element type and the processor: the order of sums depends on it.
constexpr int64_t kLanes = 16;
// Accumulators of a row reduction: as many vectors are in flight, so that a sum is not bound by the latency of one
// addition. Part of the order of summation, so a constant.
constexpr int64_t kAccumulators = 4;

class RowKernel : RowEmitter {
 public:
  RowKernel(const RowProgram& program, ArithBuilder& arith) : RowEmitter(program, arith, {kLanes, false}) {}

  KernelOperands emit(LLVM::LLVMFuncOp function, Value arguments, Value begin, Value end);

 private:
  void emitLoops(Value begin, Value end);
  void emitFlat(Value begin, Value end);
  void emitRows(Value begin, Value end, Value partialRow);
  void emitRow(Value row, Value partialRow);
  void emitPass(int64_t pass, Value row, Value partialRow);
  void emitChunk(Chunk& chunk, int64_t pass, Value row, Value partialRow, MutableArrayRef<Value> accumulators);
  void storeRowOutputs(Value row, Value partialRow);
  void zeroPartials(Value partialRow);
  int64_t unroll(int64_t pass);
};

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
      offset = indexOf(buffer, bufferRow, chunk.column);
    }
    if (output.kind == OutputKind::ColumnPartial) value = a.add(memory.loadVector(buffer, offset, chunk.mask), value);
    stores.push_back({buffer, offset, value});
  }
  for (Store& store : stores) memory.storeVector(store.buffer, store.offset, store.value, chunk.mask);
}

void RowKernel::emitPass(int64_t pass, Value row, Value partialRow) {
  ArrayRef<ReduceOp> reductions = program.reductions[pass];
  preparePass(pass, row);

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
    auto type = cast<RankedTensorType>(output.value.getType());
    int64_t width = type.getRank() ? type.getShape().back() : 1;
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
  preparePass(0, zero);
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

KernelOperands RowKernel::emit(LLVM::LLVMFuncOp function, Value arguments, Value begin, Value end) {
  FusionOp fusion = program.fusion;
  auto pointer = LLVM::LLVMPointerType::get(a.b.getContext());
  auto bufferAt = [&](size_t i, Type type, int64_t pitch) {
    Value slot =
        LLVM::GEPOp::create(a.b, a.loc, pointer, pointer, arguments, ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    return Buffer{LLVM::LoadOp::create(a.b, a.loc, pointer, slot, 8), cast<RankedTensorType>(type).getElementType(),
                  pitch};
  };
  for (auto [i, type] : llvm::enumerate(fusion.getOperandTypes()))
    operands.push_back(bufferAt(i, type, program.operandPitches[i]));
  for (auto [i, type] : llvm::enumerate(fusion.getResultTypes()))
    results.push_back(bufferAt(fusion.getNumOperands() + i, type, program.resultPitches[i]));
  emitLoops(begin, end);
  return operandsOf(program, function, operands, results);
}

void RowKernel::emitLoops(Value begin, Value end) {
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

KernelOperands emitRowKernel(const RowProgram& program, StringRef symbol, ModuleOp module) {
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
  KernelOperands operands =
      RowKernel(program, arith).emit(function, entry->getArgument(0), entry->getArgument(1), entry->getArgument(2));
  LLVM::ReturnOp::create(builder, loc, ValueRange{});
  return operands;
}

}  // namespace sheaf::codegen
