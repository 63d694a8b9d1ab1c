#include "codegen/cuda/GpuRowKernel.h"

#include "codegen/cuda/ThreadGroups.h"
#include "codegen/fusion/Reductions.h"
#include "codegen/fusion/RowEmitter.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

class GpuRowKernel : RowEmitter {
 public:
  GpuRowKernel(const RowProgram& program, const Mapping& mapping, ArithBuilder& arith, Value shared)
      : RowEmitter(program, arith, {mapping.lanes, true}),
        mapping(mapping),
        thread(position(gpu::ThreadIdOp::create(arith.b, arith.loc, gpu::Dimension::x))),
        block(position(gpu::BlockIdOp::create(arith.b, arith.loc, gpu::Dimension::x))),
        threads(arith, mapping, thread, shared) {}

  void emit(ValueRange parameters);
  int64_t sharedBytes() const { return threads.sharedBytes(); }
  KernelOperands operandsOf(gpu::GPUFuncOp function) const {
    return codegen::operandsOf(program, function, operands, results);
  }

 private:
  // A chunk of the columns that a thread does. Where it lies beyond the row it stands at the row's first columns
  // instead, and is not to be stored.
  struct ThreadChunk : Chunk {
    ThreadChunk(Value column, Value inside, Value lanes) : Chunk(column, {}), inside(inside), lanes(lanes) {}
    Value inside;  // null where it always is
    Value lanes;   // which of its lanes are columns; null where those of any chunk inside are
  };
  struct Store {
    Buffer buffer;
    Value offset, value;
  };

  Value position(Value index) { return arith::IndexCastUIOp::create(a.b, a.loc, a.b.getI64Type(), index); }
  Value both(Value x, Value y) { return !x ? y : !y ? x : a.bitAnd(x, y); }
  Value equals(Value x, int64_t y) { return a.compare(arith::CmpIPredicate::eq, x, index(y)); }
  Value orElse(Value condition, Value x, Value y) { return condition ? a.select(condition, x, y) : x; }
  void when(Value condition, function_ref<void()> body);
  bool isSum(const RowOutput& output) const { return output.kind == OutputKind::ColumnPartial; }
  // Whether the sums of columns are kept in registers until a block's last row; else in their place in memory.
  bool holdsSums() const { return mapping.rounds == 1; }

  std::optional<ThreadChunk> chunkAt(Value firstColumn, int64_t firstOfAll, int64_t chunk);
  void appendStores(Chunk& chunk, Value row, SmallVectorImpl<Store>& stores);

  void emitFlat();
  void emitOwnRows();
  void emitBlocks();
  void emitRow(Value row, Value valid, MutableArrayRef<Value> sums);
  void emitHeldPass(int64_t pass, Value row, Value valid, MutableArrayRef<ThreadChunk> chunks,
                    MutableArrayRef<Value> sums);
  void emitPassInRounds(int64_t pass, Value row, Value valid);
  void emitRound(int64_t pass, Value row, Value valid, MutableArrayRef<ThreadChunk> chunks,
                 MutableArrayRef<Value> accumulators, MutableArrayRef<Value> sums);
  void reduceRow(int64_t pass, Value row, MutableArrayRef<Value> accumulators);
  void storeChunks(Value row, Value valid, MutableArrayRef<ThreadChunk> chunks);
  void storeRowScalars(Value row, Value valid, MutableArrayRef<Value> sums);
  void storeSums(MutableArrayRef<Value> sums);
  void clearSumsInMemory();

  const Mapping& mapping;
  Value thread, block;
  ThreadGroups threads;
  Value lane, group, tile, partialRow;
};

void GpuRowKernel::when(Value condition, function_ref<void()> body) {
  if (!condition) return body();
  auto branch = scf::IfOp::create(a.b, a.loc, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(a.b);
  a.b.setInsertionPointToStart(branch.thenBlock());
  body();
}

// The chunk-th vector of a thread in a round whose first column is `firstColumn`, which is at least `firstOfAll`
// (the same in all tiles but the last). Nothing if it lies beyond the columns in every thread.
std::optional<GpuRowKernel::ThreadChunk> GpuRowKernel::chunkAt(Value firstColumn, int64_t firstOfAll, int64_t chunk) {
  int64_t step = mapping.perRow * mapping.lanes, start = firstOfAll + chunk * step;
  int64_t columns = program.flat ? program.elements / mapping.lanes * mapping.lanes : program.columns;
  if (start >= columns && mapping.tiles == 1) return std::nullopt;
  Value column = a.add(a.add(firstColumn, index(chunk * step)), a.mul(lane, index(mapping.lanes)));
  bool always = mapping.tiles == 1 ? start + step <= columns : columns % mapping.span() == 0;
  if (always) return ThreadChunk(column, {}, {});
  Value inside = a.compare(arith::CmpIPredicate::slt, column, index(columns)), lanes;
  if (columns % mapping.lanes != 0) {
    Value each = laneIndices(column, a.b.getI32Type());
    lanes = a.compare(arith::CmpIPredicate::slt, each, a.integer(each.getType(), columns));
  }
  return ThreadChunk(a.select(inside, column, index(0)), inside, lanes);
}

void GpuRowKernel::appendStores(Chunk& chunk, Value row, SmallVectorImpl<Store>& stores) {
  for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
    if (!program.isVector(output.value) || (isSum(output) && holdsSums())) continue;
    Value value = vector(chunk, beforeRounding(output.value), row), offset = chunk.column;
    if (!program.flat) offset = indexOf(buffer, isSum(output) ? partialRow : row, offset);
    if (isSum(output)) value = a.add(memory.loadVector(buffer, offset, {}), value);
    stores.push_back({buffer, offset, value});
  }
}

// A thread's chunks are loaded and computed before any is stored, so that all loads are under way together; and an
// element is read and written by the same thread, so a result may lie where an operand does.
void GpuRowKernel::storeChunks(Value row, Value valid, MutableArrayRef<ThreadChunk> chunks) {
  SmallVector<SmallVector<Store>> stores(chunks.size());
  for (auto [chunk, list] : llvm::zip(chunks, stores)) appendStores(chunk, row, list);
  for (auto [chunk, list] : llvm::zip(chunks, stores)) {
    if (list.empty()) continue;
    when(both(valid, chunk.inside), [&] {
      for (Store& store : list) memory.storeVector(store.buffer, store.offset, store.value, {});
    });
  }
}

void GpuRowKernel::emitFlat() {
  Value zero = index(0);
  lane = thread;
  preparePass(0, zero);
  SmallVector<ThreadChunk> chunks;
  for (int64_t i = 0; i < mapping.chunks; ++i)
    if (auto chunk = chunkAt(a.mul(block, index(mapping.span())), 0, i)) chunks.push_back(*chunk);
  storeChunks(zero, {}, chunks);
  // The elements after the last whole vector.
  int64_t rest = program.elements % mapping.lanes;
  if (!rest) return;
  Value mine = a.compare(arith::CmpIPredicate::slt, thread, index(rest));
  when(a.bitAnd(mine, equals(block, 0)), [&] {
    memory.lanes.count = 1;
    ThreadChunk last(a.add(thread, index(program.elements - rest)), {}, {});
    storeChunks(zero, {}, last);
  });
}

void GpuRowKernel::reduceRow(int64_t pass, Value row, MutableArrayRef<Value> accumulators) {
  ArrayRef<ReduceOp> reductions = program.reductions[pass];
  if (reductions.empty()) return;
  size_t count = reductions.size();
  SmallVector<Value> values;
  for (size_t r = 0; r < count; ++r) {
    Value value = accumulators[r];
    for (size_t i = r + count; i < accumulators.size(); i += count)
      value = emitCombine(a, reductions[r], value, accumulators[i]);
    values.push_back(emitCombineLanes(a, reductions[r], value));
  }
  threads.reduce(reductions, values);
  for (size_t r = 0; r < count; ++r) {
    ReduceOp reduce = reductions[r];
    scalars[{reduce.getResult(), row}] = values[r];
  }
}

// accumulators[i * reductions + r]: of the i-th chunk for reduction r.
void GpuRowKernel::emitRound(int64_t pass, Value row, Value valid, MutableArrayRef<ThreadChunk> chunks,
                             MutableArrayRef<Value> accumulators, MutableArrayRef<Value> sums) {
  ArrayRef<ReduceOp> reductions = program.reductions[pass];
  auto accumulator = accumulators.begin();
  for (ThreadChunk& chunk : chunks)
    for (ReduceOp reduce : reductions) {
      Value next = emitCombine(a, reduce, *accumulator, vector(chunk, reduce.getOperand(), row));
      *accumulator = orElse(chunk.lanes ? chunk.lanes : chunk.inside, next, *accumulator);
      ++accumulator;
    }
  if (pass + 1 != program.passes()) return;
  if (holdsSums()) {
    size_t next = 0;
    for (const RowOutput& output : program.outputs)
      if (isSum(output) && program.isVector(output.value))
        for (ThreadChunk& chunk : chunks) {
          Value& sum = sums[next++];
          sum = orElse(valid, a.add(sum, vector(chunk, beforeRounding(output.value), row)), sum);
        }
  }
  storeChunks(row, valid, chunks);
}

void GpuRowKernel::emitHeldPass(int64_t pass, Value row, Value valid, MutableArrayRef<ThreadChunk> chunks,
                                MutableArrayRef<Value> sums) {
  preparePass(pass, row);
  SmallVector<Value> accumulators;
  for (size_t i = 0; i < chunks.size(); ++i)
    for (ReduceOp reduce : program.reductions[pass])
      accumulators.push_back(emitIdentity(a, reduce, vectorType(computeTypeOf(reduce.getOperand()))));
  emitRound(pass, row, valid, chunks, accumulators, sums);
  reduceRow(pass, row, accumulators);
}

void GpuRowKernel::emitPassInRounds(int64_t pass, Value row, Value valid) {
  preparePass(pass, row);
  ArrayRef<ReduceOp> reductions = program.reductions[pass];
  if (reductions.empty() && pass + 1 != program.passes()) return;
  SmallVector<Value> accumulators;
  for (int64_t i = 0; i < mapping.chunks; ++i)
    for (ReduceOp reduce : reductions)
      accumulators.push_back(emitIdentity(a, reduce, vectorType(computeTypeOf(reduce.getOperand()))));
  int64_t whole = program.columns / mapping.span() * mapping.span();
  auto round = [&](Value first, int64_t firstOfAll, MutableArrayRef<Value> carried) {
    SmallVector<ThreadChunk> chunks;
    for (int64_t i = 0; i < mapping.chunks; ++i)
      if (auto chunk = chunkAt(first, firstOfAll, i)) chunks.push_back(*chunk);
    emitRound(pass, row, valid, chunks, carried, {});
  };
  if (whole) {
    scf::ForOp loop =
        forLoop(index(0), index(whole), mapping.span(), accumulators, [&](Value first, ValueRange carried) {
          SmallVector<Value> next(carried);
          round(first, 0, next);
          return next;
        });
    accumulators.assign(loop.result_begin(), loop.result_end());
  }
  if (whole < program.columns) round(index(whole), whole, accumulators);
  reduceRow(pass, row, accumulators);
}

// What a row has one of: every thread of its group knows the values, one stores them.
void GpuRowKernel::storeRowScalars(Value row, Value valid, MutableArrayRef<Value> sums) {
  SmallVector<Store> stores;
  size_t next = 0;
  for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
    if (program.isVector(output.value)) continue;
    Value value = scalar(beforeRounding(output.value), row);
    if (!isSum(output)) {
      stores.push_back({buffer, row, value});
      continue;
    }
    Value& sum = sums[next++];
    sum = orElse(valid, a.add(sum, value), sum);
  }
  if (stores.empty()) return;
  if (mayOverwriteRowOperand(program)) threads.barrierOfGroup();
  Value first = mapping.perRow > 1 ? equals(lane, 0) : Value();
  if (mapping.tiles > 1) first = both(first, equals(tile, 0));
  when(both(valid, first), [&] {
    for (Store& store : stores) memory.storeScalar(store.buffer, store.offset, store.value);
  });
}

// `sums`: those of columns that are held in registers, chunk by chunk for each output, then those of scalars.
void GpuRowKernel::emitRow(Value row, Value valid, MutableArrayRef<Value> sums) {
  scalars.clear();
  sourceRows.clear();
  SmallVector<ThreadChunk> chunks;
  if (mapping.rounds == 1) {
    Value first = mapping.tiles > 1 ? a.mul(tile, index(mapping.span())) : index(0);
    for (int64_t i = 0; i < mapping.chunks; ++i)
      if (auto chunk = chunkAt(first, 0, i)) chunks.push_back(*chunk);
  }
  for (int64_t pass = 0; pass < program.passes(); ++pass)
    if (mapping.rounds == 1)
      emitHeldPass(pass, row, valid, chunks, sums);
    else
      emitPassInRounds(pass, row, valid);
  size_t vectors = 0;
  if (holdsSums())
    for (const RowOutput& output : program.outputs)
      if (isSum(output) && program.isVector(output.value)) vectors += chunks.size();
  storeRowScalars(row, valid, sums.drop_front(vectors));
}

// Each group does one row.
void GpuRowKernel::emitOwnRows() {
  Value unit = mapping.tiles > 1 ? arith::DivUIOp::create(a.b, a.loc, block, index(mapping.tiles)).getResult() : block;
  Value row = a.add(a.mul(unit, index(mapping.groups)), group), valid;
  if (program.rows % mapping.groups != 0) {
    valid = a.compare(arith::CmpIPredicate::slt, row, index(program.rows));
    row = a.select(valid, row, index(0));
  }
  emitRow(row, valid, {});
}

void GpuRowKernel::clearSumsInMemory() {
  forLoop(index(0), index(mapping.rounds * mapping.chunks), 1, {}, [&](Value i, ValueRange) {
    Value vector = a.add(a.mul(i, index(mapping.perRow)), lane), column = a.mul(vector, index(mapping.lanes));
    when(a.compare(arith::CmpIPredicate::slt, column, index(program.columns)), [&] {
      for (auto [output, buffer] : llvm::zip(program.outputs, results))
        if (isSum(output) && program.isVector(output.value))
          memory.storeVector(buffer, indexOf(buffer, partialRow, column),
                             a.constant(vectorType(computeType(buffer.element, a.b.getContext())), 0.0), {});
    });
    return SmallVector<Value>();
  });
}

void GpuRowKernel::storeSums(MutableArrayRef<Value> sums) {
  threads.sumOverGroups(sums);
  Value owner = mapping.groups > 1 ? equals(group, 0) : Value();
  Value first = mapping.tiles > 1 ? a.mul(tile, index(mapping.span())) : index(0);
  size_t next = 0;
  if (holdsSums())
    for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
      if (!isSum(output) || !program.isVector(output.value)) continue;
      for (int64_t i = 0; i < mapping.chunks; ++i)
        if (auto chunk = chunkAt(first, 0, i)) {
          Value sum = sums[next++];
          Buffer to = buffer;
          when(both(owner, chunk->inside),
               [&] { memory.storeVector(to, indexOf(to, partialRow, chunk->column), sum, {}); });
        }
    }
  if (mapping.perRow > 1) owner = both(owner, equals(lane, 0));
  if (mapping.tiles > 1) owner = both(owner, equals(tile, 0));
  for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
    if (!isSum(output) || program.isVector(output.value)) continue;
    Value sum = sums[next++];
    Buffer to = buffer;
    when(owner, [&] { memory.storeScalar(to, partialRow, sum); });
  }
}

// A thread block does a block of the program: its groups take the rows in turn and add up their columns.
void GpuRowKernel::emitBlocks() {
  partialRow = mapping.tiles > 1 ? arith::DivUIOp::create(a.b, a.loc, block, index(mapping.tiles)).getResult() : block;
  SmallVector<Value> sums;
  int64_t held = mapping.tiles > 1 ? mapping.chunks : 0;
  if (!held)
    for (int64_t i = 0; i < mapping.chunks; ++i) held += i * mapping.perRow * mapping.lanes < program.columns;
  for (bool vectors : {true, false})
    for (auto [output, buffer] : llvm::zip(program.outputs, results)) {
      if (!isSum(output) || program.isVector(output.value) != vectors || (vectors && !holdsSums())) continue;
      Type element = computeType(buffer.element, a.b.getContext());
      sums.append(vectors ? held : 1, a.constant(vectors ? Type(vectorType(element)) : element, 0.0));
    }
  if (!holdsSums()) clearSumsInMemory();

  Value first = a.mul(partialRow, index(program.block)), end = a.add(first, index(program.block));
  bool even = program.rows % program.block == 0 && program.block % mapping.groups == 0;
  if (program.rows % program.block != 0) end = arith::MinSIOp::create(a.b, a.loc, end, index(program.rows));
  // All groups make the same rounds, so that all threads meet at the barriers.
  int64_t rounds = llvm::divideCeil(std::min(program.block, program.rows), mapping.groups) * mapping.groups;
  scf::ForOp loop = forLoop(index(0), index(rounds), mapping.groups, sums, [&](Value round, ValueRange carried) {
    SmallVector<Value> next(carried);
    Value row = a.add(a.add(first, round), group), valid;
    if (!even) {
      valid = a.compare(arith::CmpIPredicate::slt, row, end);
      row = a.select(valid, row, first);
    }
    emitRow(row, valid, next);
    // No thread reduces the next row while others still read the values of this one.
    if (mapping.perRow > 32) threads.barrier();
    return next;
  });
  sums.assign(loop.result_begin(), loop.result_end());
  storeSums(sums);
}

void GpuRowKernel::emit(ValueRange parameters) {
  FusionOp fusion = program.fusion;
  auto elementOf = [](Type type) { return cast<RankedTensorType>(type).getElementType(); };
  size_t count = fusion->getNumOperands();
  for (auto [i, type] : llvm::enumerate(fusion.getOperandTypes())) {
    bool overwritten = llvm::is_contained(fusion.getElementwise(), static_cast<int64_t>(i)) &&
                       llvm::is_contained(fusion.getResultTypes(), type);
    operands.push_back({parameters[i], elementOf(type), program.operandPitches[i], !overwritten});
  }
  for (auto [i, type] : llvm::enumerate(fusion.getResultTypes()))
    results.push_back({parameters[count + i], elementOf(type), program.resultPitches[i]});
  if (program.flat) return emitFlat();
  lane = a.bitAnd(thread, index(mapping.perRow - 1));
  group = a.shiftRightLogical(thread, llvm::Log2_64(mapping.perRow));
  if (mapping.tiles > 1) tile = arith::RemUIOp::create(a.b, a.loc, block, index(mapping.tiles));
  program.hasColumnPartials ? emitBlocks() : emitOwnRows();
}

}  // namespace

KernelOperands emitGpuRowKernel(const RowProgram& program, const Mapping& mapping, const GpuEmission& emission,
                                StringRef symbol, gpu::GPUModuleOp module) {
  MLIRContext* context = module.getContext();
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  Location loc = UnknownLoc::get(context);
  FusionOp fusion = program.fusion;
  Type pointer = LLVM::LLVMPointerType::get(context, kGlobalSpace);
  SmallVector<Type> parameters(fusion->getNumOperands() + fusion->getNumResults(), pointer);
  auto function = gpu::GPUFuncOp::create(builder, loc, symbol, builder.getFunctionType(parameters, {}));
  function->setAttr(gpu::GPUDialect::getKernelFuncAttrName(), builder.getUnitAttr());
  if (emission.oneBlockSuffices)
    function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), builder.getI32IntegerAttr(1));
  function.setKnownBlockSizeAttr(builder.getDenseI32ArrayAttr({static_cast<int32_t>(mapping.threads()), 1, 1}));
  function.setKnownGridSizeAttr(builder.getDenseI32ArrayAttr({static_cast<int32_t>(mapping.grid), 1, 1}));

  builder.setInsertionPointToStart(&function.getBody().front());
  ArithBuilder arith(builder, loc);
  arith.roundsToBf16 = emission.roundsToBf16;
  std::string sharedName = symbol.str() + "_shared";
  auto shared = LLVM::AddressOfOp::create(builder, loc, LLVM::LLVMPointerType::get(context, kSharedSpace), sharedName);
  GpuRowKernel kernel(program, mapping, arith, shared);
  kernel.emit(function.getArguments());
  gpu::ReturnOp::create(builder, loc);
  KernelOperands operands = kernel.operandsOf(function);

  if (!kernel.sharedBytes()) {
    shared.erase();
    return operands;
  }
  builder.setInsertionPoint(function);
  auto bytes = LLVM::LLVMArrayType::get(builder.getI8Type(), kernel.sharedBytes());
  LLVM::GlobalOp::create(builder, loc, bytes, /*isConstant=*/false, LLVM::Linkage::Internal, sharedName, Attribute(),
                         /*alignment=*/128, kSharedSpace);
  return operands;
}

}  // namespace sheaf::codegen
